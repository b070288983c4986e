"""The batches of a rank, from shards that are local, cached or remote.

    loader         the batches of one rank, from any step on; pieces to rows in one compiled pass over mapped shards
    compact_batch  sequences as the shards store them, with where documents begin; facts about the text of rows
    shard_sources  open the shards of a job: the workspace's store, a cache, or spans; fetch and prove them ahead of
                   use
"""
