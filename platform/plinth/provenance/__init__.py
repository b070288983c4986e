"""Lineage: the origin of every artifact, the verification of this origin, and everything derived from an artifact.

    statements   chain of a checkpoint as data: provenance.json, in-toto / SLSA
    lineage      walk a manifest's ancestry; verify it down to the raw sources, naming the first broken link; index of
                 links between manifests, cached on disk: update, search, serialization
    explain      all facts about one document: source, scores, verdict, cluster, edits, shard, steps and checkpoints
    document_rows  one document's row in every table; its tokens, training steps and checkpoints
    impact       reverse lineage: everything derived from a manifest, asset, source, document or commit
    ledger       one row per document with all measurements and decisions
    ledger_columns  columns of the ledger: fixed columns, columns of every sidecar, shard and position

The following does not belong here: signatures and keys (trust), taint and its consequences (registry), the exclusion
list (`corpus.exclusions`).
"""
