"""Where a thing comes from, whether that still holds, and what was made of it.

    statements   the chain of a checkpoint as data: provenance.json, in-toto / SLSA
    lineage      walk a manifest's ancestry; verify it down to the raw sources, naming the first broken link
    downstream   the same links read the other way: everything made of a manifest, asset or source
    explain      one document: source, scores, verdict, cluster, edits, shard, steps and checkpoints that saw it
    search       documents by the beginning of their text
    evidence     the rows that explain reads: one document's row in every table that has one
    seen         tokens, training steps and checkpoints of a curated document

Does not belong here: signatures and keys (registry), and what a mark of unfitness does (registry).
"""
