"""Conversion of sources to documents: reads records, extracts and normalizes text, computes ids, and writes parts.

    documents   the stage: records to parts of documents; exclusions and damage become counted rejects
    normalize   one normal form of text: line ends, mojibake, invisible and control characters, NFC; rows to record
                batches
    removal     removal of documents that an exclusion matches, or that an earlier part already contains
"""
