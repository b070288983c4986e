"""The lineage read the other way: everything made of a manifest, an asset, a source, a document or a commit.

    descendants  what came of something, nearest first, and the links between those assets
    runs         training runs that read something of it and committed a checkpoint
    targets      what a person names: a digest, an asset, a source, a document, a commit

Does not belong here: marks and their consequences, versions, consumers (registry).
"""
