"""Bits per byte of held-out text by slice, down to documents, token positions and byte spans.

    choice     selection of held-out documents and protected items to score; the slices of every document
    tables     scores as Parquet: documents, tokens, protected items; the baselines gzip -9 and a byte trigram; byte
               spans for comparing two models with different tokenizers on the same text
    job        the evaluation of a checkpoint: sums by slice with intervals, documents with the highest loss

Bits are stored as multiples of 2^-20. Sums are therefore exact in any order, and the slices of an axis add up exactly
to the total. The bits per byte of a slice are a ratio of sums and never a mean of the documents' ratios.
"""
