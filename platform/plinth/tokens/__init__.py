"""From curated text to the sequences of a training run.

    curated -> sample -> tokenizer -> audit
    curated + tokenizer -> shards -> mixture -> order -> loader -> training
                             reader ----------^       \\-> batch (which documents, which steps)

sample       a capped, hash-chosen sample of the buckets, in documents' order
tokenizer    byte-level BPE: train, load
encode       texts to token ids; the bytes of a token
audit        fertility, bytes per token, round trip, unused tokens, against the recipe's bounds
streams      names of streams: a bucket, or `bucket/axis=value,…`
shards       each bucket's streams in even binary shards with a document index
             axes, cut, staged   values of documents; even files; tokens on their way, stored once
reader       token spans and documents of a stream, memory-mapped (index, verified)
remote       blobs of S3: a cache that a node shares (spans: rows alone; opening: which of them, and ahead of need)
export       Megatron's and plain files for other trainers
packing      both ways to fill sequences, said exactly; concatenating on paper; document masks
             packing_fit     best-fit-decreasing: lengths -> pieces of sequences
             packing_index   the stage: `{bucket}/packed`, a mapped index of pieces per sequence
             packing_layout  sequence -> pieces and back, for both packings (joint: of all streams at once)
             packing_gather  pieces -> rows, in one compiled pass over mapped shards (pointers)
permutation  keyed bijection of range(n), and its inverse, in constant time
apportion    how many sequences each bucket gives to a block: exact, in closed form
mixture      phases and weights to exact counts; epochs caps
order        position -> sequence and sequence -> positions, as arithmetic
batch        documents of a step; steps of a document
rows         sequences as they are stored, and where documents begin in them
loader       the sequences of a rank from any step on

Does not belong here: what a sequence is used for (training), and where bytes lie (storage).
"""
