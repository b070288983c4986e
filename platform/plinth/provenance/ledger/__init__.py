"""One row per document, with all that is known of it.

    columns    Columns of the ledger: what is always there, and one for every column of every sidecar.
    export     The ledger as a folder that a query can name by a pattern.
    ledger     The ledger: one row per document with all that is known of it, as Parquet that any engine can query.
    placement  Where documents lie in the shards, by walking the index of tokens beside the documents: both are in one
"""
