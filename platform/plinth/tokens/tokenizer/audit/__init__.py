"""A tokenizer judged before anything is built on it.

    audit             Judge a tokenizer before anything is built on it.
    part              Measure a tokenizer on one part's documents: how often each token is used, sums by language and
    vocabulary_audit  What a vocabulary looks like from inside: tokens nobody can reach, tokens nobody trains, digits,
"""
