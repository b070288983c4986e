"""Compiled kernels that read Arrow string buffers in one pass and return columns, without creating Python objects.

    unicode     decode, classify and fold code points
    words       words, their hashes, n-grams, sets and look-ups of hashes                      uses unicode
    english     words and sentences as in spaCy's blank English pipeline                       uses words
    similarity  MinHash, SimHash, bags of words, hashes of lines and passages: to find copies  uses words
    rules       counts for published rule sets: Gopher, C4, FineWeb, RedPajama, RefinedWeb     uses words, english
    terms       lexicon terms, including obfuscated terms; candidates for personal data        uses words
    fasttext    fastText inference                                                             uses words
    libm        exponentials and logarithms, the same bits on every processor
    scoring     n-gram language models; features of linear models and trees                    uses words
    arrays      types of the arrays that kernels take
    compiled    functions over arrays in C: declared in Python, compiled once per machine by gcc
    shared      results about a column that several annotators of a pass need
    private     folders that no other user can write
    errors      exceptions that report what was found, what was expected and what to do

Kernels release the GIL. They are compiled once and cached. Tests compare the kernels with slow reference
implementations. This package has no thresholds or tables of rule sets, and does not depend on Plinth. README.md has an
example that uses the package without Plinth.
"""
