"""The value of a source before it is taken: from a bounded sample, and from runs with it and without it.

    sample      a bounded sample of a new source, taken through the pipeline as far as the policy; its overlap with the
                corpus: near duplicates and known word n-grams
    proxy       the gain of a byte model on held-out text from the sample, next to as much more of the corpus
    assessment  the report: overlap, verdicts, proxy, with intervals
    question    the key `source` of an experiment: price and share, and its arms; samples that decide it; its file
    verdict     the verdict: buy, do not buy, or not decided, by corrected intervals; its tile on the index page
    command     `plinth corpus source`
"""
