"""The game days, by what the fault acts on.

checkpoint_days   a corrupted checkpoint, a partial write, a full disk
job_days          a preemption, a lost node, a clock that jumps
data_days         a bad shard, a poisoned batch, storage that stalls
trust_days        a revoked key
orchestrator_day  Dagster is killed; `orchestrated` is the Dagster that is killed
mlflow_day        MLflow is away
release_day       a bad release: detect, taint, roll back, find the cause, close the gate
"""
