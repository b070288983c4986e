"""The game days, by what the fault acts on.

checkpoint_days   a corrupted checkpoint, a partial write, a full disk
run_days          a preemption, a lost node, a clock that jumps; a revoked key; MLflow away
data_days         a bad shard, a poisoned batch, storage that stalls
orchestrator_day  Dagster is killed; `orchestrated` is the Dagster that is killed
release_day       a bad release: detect, taint, roll back, find the cause, close the gate
"""
