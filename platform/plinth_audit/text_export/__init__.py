"""Curated text for others: Parquet or JSON lines with the ledger's columns of every document, and a data card.

    export    the files of an export, written where they are missing: text with its rows of the ledger
    manifest  the files at the place of an export; its README for the Hugging Face Hub
    command   `plinth export text`, `plinth export verify`

Does not belong here: tokens for other trainers (`plinth.tokens.shards.reader`), the ledger alone
(`plinth.provenance.ledger`).
"""
