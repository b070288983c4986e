"""Compiled kernels over Arrow string buffers: one pass over the bytes, columns out, no Python objects.

    unicode     decode, classify and fold code points
    words       words, their hashes, n-grams, sets and look-ups of hashes                      on unicode
    english     words and sentences as spaCy's blank English pipeline has them                 on words
    similarity  MinHash, SimHash, line hashes, passages: for finding copies                    on words
    rules       counts behind published rule sets: Gopher, C4, FineWeb, RedPajama, RefinedWeb  on words, english
    terms       lexicon terms, obfuscated ones too; candidates for personal data               on words
    fasttext    fastText inference                                                             on words
    scoring     n-gram language models; features of linear models and trees                    on words
    terminal    foreign text as a terminal may print it
    markdown    foreign text as a Markdown page may show it
    plural      counts in words
    hosts       host names of addresses in one form

The last four have no kernels.

Kernels release the GIL, are compiled once and cached, and agree with slow references in the tests.
Does not belong here: thresholds, tables, files.
"""
