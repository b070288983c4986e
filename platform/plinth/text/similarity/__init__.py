"""Signatures and hashes of texts, for finding copies.

    line_hashes   Lines of Arrow `large_string` columns: where they lie, what they hold, and two hashes of each, in on
    passages      Passages of n words: which of them could occur elsewhere, their hashes, and where words lie in the t
    signatures    MinHash signatures of word n-grams, and the keys of locality-sensitive hashing.
    simd_minhash  One vector instruction by name, where the compiler does not find it on its own: minima of upper halv
    simhash       SimHash of texts, and the search for hashes that differ from a listed one in few bits.
"""
