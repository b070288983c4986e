"""Bits per byte of held-out text by slice, down to documents, token positions and byte spans.

    documents  chooses held-out documents, cut to a number of bytes per bucket
    items      chooses items of protected sets, apart by whether training text held them
    axes       the slices of every document: bucket, language, domain, length, and expressions over the ledger
    tables     scores as Parquet: a row per document, its tokens' bytes and bits, a row per protected item
    totals     sums by slice, with intervals; the documents that cost most
    spans      two models with different tokenizers on the same text, byte span by byte span

Bits are stored as multiples of 2^-20, so that sums of them are exact in any order: the slices of an axis add up to the
whole to the last bit. Bits per byte of a slice are the ratio of sums, never a mean of documents' ratios.
"""
