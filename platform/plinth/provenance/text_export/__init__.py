"""Curated text for others: Parquet or JSON lines with what the ledger knows of every document, and a data card.

    rows      training text beside its row of the ledger
    formats   rows to Parquet or JSON lines, the same bytes every time
    manifest  the files at a place: planned, under way, finished with their digests
    export    what is wanted there, written where it is missing
    verify    the files of an export compared with its manifest

Does not belong here: tokens for other trainers (`tokens.shards.export`), the ledger alone (`provenance.ledger`).
"""
