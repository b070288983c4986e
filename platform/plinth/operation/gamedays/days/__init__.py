"""The game days of the library, by what the fault acts on.

checkpoint_days  a corrupted checkpoint, a partial write, a full disk
job_days         a preemption, a lost node, a clock that jumps
data_days        a bad shard, a poisoned batch, storage that stalls
trust_days       a revoked key
left_out         a run in which some steps never were
s3_server        the S3 server that stalls
"""
