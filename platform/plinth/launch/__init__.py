"""Where a training job runs. The job outlives whoever submitted it.

    base        Handle (durable), Status, and the Launcher protocol: submit, poll, find, cancel, logs
    local       a detached process on this machine
    slurm       a batch job, requeued until the run has finished
    ray_jobs    a job of a Ray cluster's Jobs API
    ray_nodes   what such a job runs where it is to have several nodes
    kubernetes  a Job, made from what `manifest` says
    choose      the launcher of a kind
    files       submits once; the handle, the log
    script      shell that runs a command under a scheduler
    patience    asks a scheduler seldom, and outlives its silence

A launcher knows a command, a directory and a log; not what the job does.
"""

from plinth.launch.base import Handle, JobStatus, Launcher

__all__ = ["Handle", "JobStatus", "Launcher"]
