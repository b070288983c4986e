"""One row per document, with all that is known of it.

columns    fixed columns, and one for every column of every sidecar
ledger     write the ledger of all buckets, as Parquet parts
placement  shard and position of each document
"""
