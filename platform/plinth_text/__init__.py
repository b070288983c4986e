"""Compiled kernels over Arrow string buffers: one pass over the bytes, columns out, no Python objects.

    unicode     decode, classify and fold code points
    words       words, their hashes, n-grams, sets and look-ups of hashes                      on unicode
    english     words and sentences as spaCy's blank English pipeline has them                 on words
    similarity  MinHash, SimHash, bags of words, hashes of lines and passages: to find copies  on words
    rules       counts behind published rule sets: Gopher, C4, FineWeb, RedPajama, RefinedWeb  on words, english
    terms       lexicon terms, obfuscated ones too; candidates for personal data               on words
    fasttext    fastText inference                                                             on words
    libm        exponentials and logarithms, the same bits on every processor
    scoring     n-gram language models; features of linear models and trees                    on words
    arrays      types of the arrays that kernels take
    compiled    functions over arrays in C: declared in Python, compiled once per machine by gcc
    private     folders that no other user can write
    errors      exceptions that say what was found, what was expected and what to do

Kernels release the GIL, are compiled once and cached, and agree with slow references in the tests.
Does not belong here: thresholds, tables, anything of Plinth. README.md has an example that uses this package alone.
"""
