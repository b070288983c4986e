"""Even-sized binary shards with a document index: made from curated text, read in place.

made in this order:

    shards             the stage: each bucket's token streams cut into even shards, with a document index
    staged_tokens      the stream of every document: values of the recipe's axes, joined from sidecars; tokens of
                       curated parts in staging, until the shards are cut

read by:

    reader             spans of tokens of one stream from mapped files; digests of blocks; exports: Megatron, plain
                       token files, files by name
    index              the document index of a stream, in Arrow files that are mapped and read in place

parameters             axes and sizes, where a job reads from, names of streams: a bucket, or `bucket/axis=value,…`
"""
