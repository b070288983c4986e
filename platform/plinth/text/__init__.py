"""Compiled kernels over Arrow string buffers: one pass over the bytes, columns out, no Python objects.

    characters   what a code point is: white space, line break, letter, punctuation
    codepoints   decode UTF-8 in place; the buffers of a string column
    lookup       find hashes in a large sorted array
    fold         texts in the form in which they count as equal
    word_hashes  words as 64-bit hashes (word_blocks: many at once)
    ngrams       word n-grams as 64-bit hashes
    minhash      MinHash signatures of shingle sets (lanes: a vector instruction by name)
    sets         sets of hashes in a table that many texts share
    chunks       read and hash eight bytes at a time
    split        where words and line ends lie
    copies       n-grams that a text repeats
    quality      counts behind Gopher's quality rules and FineWeb's
    repetition   repeated lines, paragraphs and n-grams
    pages        C4's line and page rules
    fasttext     labels of texts and of their blocks (fasttext_file, _tokens, _words, _scores)
    pii_scan     places of a text that can hold personal data (pii_words: the words beside them)

Kernels release the GIL, are compiled once and cached, and agree with slow, obvious references in the tests.
Does not belong here: thresholds, tables, files.
"""
