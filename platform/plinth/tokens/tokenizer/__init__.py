"""Train a tokenizer, encode with it, audit it.

    tokenizer   the stage: train on a sample of the curated buckets (byte-pair encoding, unigram model), load
    parameters  kind, size and bounds, as a recipe states them
    sample      a capped sample of the buckets, chosen by hash, in documents' order
    encode      texts to token ids: how each kind cuts text into words (a scan) and joins tokens into text; tokens of a
                word from a table
    vocabulary  the bytes of every token; unreachable and unused tokens, digits, white space
    template    the tokens that an exported tokenizer puts around a text; the padding token
    audit       the stage: measure a tokenizer before anything is built on it
"""
