"""One row per document, with all that is known of it.

ledger     write the ledger of all buckets, as Parquet parts
"""
