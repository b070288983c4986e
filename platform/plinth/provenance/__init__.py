"""Lineage: the origin of every artifact, verification of that origin, and everything derived from an artifact.

    statements   chain of a checkpoint as data: provenance.json, in-toto / SLSA
    lineage      walk a manifest's ancestry; verify it down to the raw sources, naming the first broken link; links
                 between manifests as arrays, kept next to the workspace: growing, searching, bytes and back
    explain      one document: source, scores, verdict, cluster, edits, shard, steps and checkpoints that read it
    document_rows  one document's row in every table; its tokens, training steps and checkpoints
    impact       the same links in reverse: everything derived from a manifest, asset, source, document or commit
    ledger       one row per document with all measurements and decisions
    ledger_columns  columns of the ledger: fixed columns, those of every sidecar, shard and position

Does not belong here: signatures and keys (trust), taint and its consequences (registry), the exclusion list
(`corpus.exclusions`).
"""
