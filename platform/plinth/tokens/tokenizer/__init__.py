"""Tokenizers: training, encoding and audit.

    tokenizer   the stage: train on a sample of the curated buckets (byte-pair encoding, unigram model), load
    parameters  kind, size and limits, as a recipe states them
    sample      a capped sample of the buckets, chosen by hash, in the order of the documents
    pipeline    how each kind splits text into words and joins tokens into text
    encode      texts to token ids: loads a tokenizer and chooses its encoder (byte_level, word_table, reference)
    comparison  a sample of each part's tokens, compared with the tokenizers library
    vocabulary  the bytes of every token; unreachable and unused tokens, digits, white space
    template    the tokens that an exported tokenizer puts around a text; the padding token
    audit       the stage: measure a tokenizer before it is used
"""
