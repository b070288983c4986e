"""Signatures and hashes of texts, for finding copies.

signatures    MinHash signatures of word n-grams, and keys of locality-sensitive hashing
simhash       SimHash of texts, and the search for hashes that differ in few bits
line_hashes   lines and paragraphs: positions, sizes and hashes
passages      windows of n words, their hashes, and the positions of words
"""
