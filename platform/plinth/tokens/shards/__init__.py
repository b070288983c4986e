"""Binary token shards of even size with a document index. Shards are made from curated text and read in place.

Modules that make shards, in this order:

    shards             the stage: each bucket's token streams cut into even shards, with a document index
    staged_tokens      the stream of every document, from the recipe's axes and sidecars; tokens of curated parts in
                       staging, until the shards are cut

Modules that read shards:

    reader             spans of tokens of one stream from mapped files; digests of blocks
    exports            files for other trainers: Megatron, OLMo-core, MosaicML Streaming, plain token files
    index              the document index of a stream, in Arrow files that are mapped and read in place

parameters             axes and sizes, source and cache of a job's shards, names of streams: a bucket, or
                       `bucket/axis=value,…`
"""
