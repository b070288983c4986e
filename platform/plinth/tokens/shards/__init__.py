"""Even-sized binary shards with a document index: made from curated text, read in place.

made in this order:

    shards             the stage: each bucket's token streams in even shards, with a document index
    staged_tokens      tokens of curated parts in staging, until the shards are cut
    axes               the stream of every document: values of the recipe's axes, joined from sidecars
    cut                cut token streams into shards, and index them
    streams            names of streams: a bucket, or `bucket/axis=value,…`

read by:

    reader             spans of tokens of one stream, from mapped files
    index              the document index of a stream (lookup: a few documents by small reads)
    mapped             Arrow files of one record batch that are mapped and read in place
    blocks             digests of the blocks of shards, which prove spans that are fetched from a bucket
    export             shards for other trainers: Megatron, plain token files, files by name

parameters             axes and sizes, as a recipe states them
"""
