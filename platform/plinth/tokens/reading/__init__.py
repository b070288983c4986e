"""Tokens from shards to batches: local, cached or remote.

    blob_cache     Blobs of a remote store, fetched whole into a cache that the processes of a machine share.
    buffer_pool    Memory of batches that nobody looks at any more, for the batches that follow.
    leases         Leases between the processes of a machine that share a cache: locked files, so that a dead process
    loader         Sequences of one rank, from any step on.
    parameters     Where a job reads its shards from.
    pointers       Addresses inside compiled code: how a kernel reads from many mapped files in one call, many tokens
    prefetch       Batches by a background thread, ahead of use, and how long their consumer waited.
    reader         Read a stream of a shard set: spans of tokens from mapped files, documents by binary search in the
    remote_blobs   Blobs of a remote store, by spans, with another attempt where one fails.
    rows           Sequences as they are stored, and where documents begin in them: what travels from shards to a devi
    shard_sources  Open what a job reads its tokens from: the workspace's store, or a remote through a cache or by spa
    span_reader    Read shards by spans, for what is larger than a machine's cache: each rank fetches the tokens of it
    verified       Digests of shards compared once: per file, not per read, and not again by every rank that opens it.
"""
