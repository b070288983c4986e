"""Conversion of sources to documents: reads records, extracts and normalizes text, computes ids, and writes parts.

    documents          the stage: records to parts of documents; exclusions and damage become counted rejects
    extraction_model   the stage that learns a model of main content on pages of the sources, and measures it
    normalize          one normal form of text: line ends, mojibake, invisible and control characters, NFC; rows to
                       record batches
    removal            removal of documents that an exclusion matches, or that an earlier part already contains
"""
