"""Train a tokenizer, encode with it, audit it.

    tokenizer   the stage: train on a sample of the curated buckets
    parameters  kind, size and bounds, as a recipe states them
    sample      a capped sample of the buckets, chosen by hash, in documents' order
    pipelines   how each kind cuts text into words and joins tokens into text
    trainers    byte-pair encoding and the unigram model, over an alphabet of characters
    encode      texts to token ids
    encoder     words by a scan, tokens of a word from a table
    words       the scan: where the words of a pipeline end
    vocabulary  the bytes of every token
    template    the tokens that an exported tokenizer puts around a text
    audit/      measure a tokenizer before anything is built on it
"""
