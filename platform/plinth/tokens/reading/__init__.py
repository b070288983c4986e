"""The batches of a rank, from shards that are local, cached or remote.

    loader         the batches of one rank, from any step on
    compact_batch  sequences as the shards store them, with where documents begin
    row_facts      facts about the text of rows, from their token ids
    shard_sources  open the shards of a job: the workspace's store, a cache, or spans
    shards_ahead   fetch and prove shards before the steps that read them
    parameters     where a job reads its shards from, as a recipe states it
"""
