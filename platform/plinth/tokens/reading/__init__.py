"""Reading of a rank's batches, from shards that are local, cached or remote.

    loader         the batches of one rank, starting at any step; pieces are assembled into rows in one compiled pass
                   over mapped shards
    compact_batch  sequences as the shards store them, with the starts of documents; statistics of the text in rows
    shard_sources  open the shards of a job from the workspace's store, a cache or spans; fetch and verify them ahead of
                   use
"""
