"""The value of a source, before it is taken: from a bounded sample, with intervals.

    byte_model  A small language model over bytes, to ask in seconds what a text would teach.
    overlap     How much of a sample the corpus has already: near duplicates by signatures, and word n-grams never see
    proxy       What a sample teaches a small byte model about held-out text, beside as much more of the corpus.
    sample      A bounded sample of a source that is not in the corpus yet, taken down the line as far as the policy.
    value       What a source would be worth, before it is taken: from a bounded sample, with intervals.
"""
