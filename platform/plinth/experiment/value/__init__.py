"""The value of a source, before it is taken: from a bounded sample, with intervals.

    byte_model  a small language model over bytes, trained in seconds
    overlap     the share of a sample that the corpus has already: near duplicates and known word n-grams
    proxy       the gain of a byte model on held-out text from the sample, beside as much more of the corpus
    sample      a bounded sample of a new source, taken through the pipeline as far as the policy
    value       the report: overlap, verdicts, proxy, with intervals
"""
