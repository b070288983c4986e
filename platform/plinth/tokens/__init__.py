"""From curated text to the batches of a training run.

    curated text ─► tokenizer ─► shards ─► packing ─► mixture ─► order ─► reading ─► batches

    tokenizer  train a tokenizer on a sample, encode with it, audit it                    asset `tokenizer`
    shards     even binary files of tokens with a document index; read them, export them  asset `{bucket}/shards`
    packing    how documents fill sequences: concatenated, or best-fit                    asset `{bucket}/packed`
               packing_layout: sequence -> pieces, and span -> sequences, in constant time
    mixture    weights of a recipe to exact counts of sequences per stream and block      asset `mixture`
    order      position of a run -> sequence, and back, as arithmetic; documents of a step
    reading    sequences of a rank from any step on, from a local store or a remote

Each imports only those before it. Does not belong here: the use of a sequence (training), and where bytes are
stored (storage).
"""
