"""One row per document, with all that is known of it.

columns    fixed columns, and one for every column of every sidecar
ledger     write the ledger of all buckets, as Parquet parts
planted    rows of planted copies
placement  shard and position of each document
export     the ledger as a folder that a query can name by a pattern
"""
