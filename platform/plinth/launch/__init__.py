"""Submit, poll, find and cancel training jobs. A job outlives the process that submitted it.

    base        the interface of launchers: handles, job status, methods; the launcher of a kind; files of a job's
                directory; a cache of a scheduler's answers; shell around a command
    local       a detached process on this machine
    slurm       a batch job, requeued until the run has finished
    ray_jobs    a job of a Ray cluster's Jobs API
    ray_nodes   the entry point of such a job when it has several nodes
    kubernetes  a Job, made from the manifest of `manifest`
    manifest    the Job and the Service of a run, as plain dictionaries
    parameters  launchers and supervision, as a recipe sets them
    devices     accelerators: memory, FLOP/s, bandwidth
    submission_rate  how often jobs may be submitted, and pauses after refusals

Does not belong here: the work of the job. A launcher knows a command, a directory and a log.
"""

from plinth.launch.base import Handle, JobStatus, Launcher

__all__ = ["Handle", "JobStatus", "Launcher"]
