"""Train a tokenizer, encode with it, audit it.

    alphabet    Which characters get tokens of their own, and texts prepared for a trainer that must not learn some th
    audit/      A tokenizer judged before anything is built on it.
    bpe         Byte-pair encoding (Sennrich et al. 2016): merges of bytes, or of characters with bytes to fall back o
    encode      Texts to token ids.
    encoder     Encode columns of text: words by a scan, tokens of a word from a table, the library only for words not
    parameters  The tokenizer.
    pipelines   What a tokenizer does around its vocabulary: how text is cut into words, and how tokens become text ag
    sample      A capped sample of the buckets: the same documents whatever the workers, in documents' order.
    tokenizer   Train a tokenizer on a sample of the curated buckets, and load it.
    unigram     Unigram language model (Kudo 2018, arXiv:1804.10959): pieces by likelihood, bytes to fall back on.
    vocabulary  What the tokens of a vocabulary stand for: bytes.
    words       Cut UTF-8 text into the words of our pipelines, as their regular expressions do, at the speed of a sca
"""
