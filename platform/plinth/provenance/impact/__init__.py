"""The lineage read the other way: everything made of a manifest, an asset, a source, a document or a commit.

    edges        digests and the links between them as arrays: growing, searching by breadth, bytes and back
    index        the edges of a workspace: kept beside it, brought up to date, made anew when anything is wrong
    descendants  what came of something, nearest first, and the links between those assets
    runs         training runs that read something of it and committed a checkpoint
    targets      what a person names: a digest, an asset, a source, a document, a commit

Does not belong here: marks and their consequences, versions, consumers (registry).
"""
