"""Conversion of curated text to the batches of a training run.

    curated text ─► tokenizer ─► shards ─► packing ─► mixture ─► order ─► reading ─► batches

    tokenizer  train a tokenizer on a sample, encode with it, audit it                      asset `tokenizer`
    shards     equally large binary files of tokens with a document index; read and export  asset `{bucket}/shards`
    packing    division of documents into sequences: concatenated, or best-fit              asset `{bucket}/packed`
               packing_layout: sequence -> pieces, and span -> sequences, in constant time
    mixture    exact counts of sequences per stream and block, from the recipe's weights    asset `mixture`
    order      position of a run -> sequence, and back, in constant time; documents of a step
    reading    sequences of a rank, starting at any step, from a local or remote store

Each module or package imports only modules above it in this list. Code that uses sequences belongs in `training`, and
code that chooses storage locations belongs in `storage`.
"""
