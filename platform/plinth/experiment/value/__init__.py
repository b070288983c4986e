"""The value of a source before it is taken: from a bounded sample, and from runs with it and without it.

    byte_model  a small language model over bytes, trained in seconds
    overlap     the share of a sample that the corpus has already: near duplicates and known word n-grams
    proxy       the gain of a byte model on held-out text from the sample, beside as much more of the corpus
    sample      a bounded sample of a new source, taken through the pipeline as far as the policy
    value       the report: overlap, verdicts, proxy, with intervals
    question    the key `source` of an experiment: price and share, and the arms that it makes
    screen      a source that cannot be asked about, or whose sample is an answer already
    price       price of an effective token, and of a bit per byte gained
    changes     what else the source changes: probes, memorisation, toxicity, personal data
    verdict     buy, do not buy or not decided, by intervals
"""
