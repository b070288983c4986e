"""Submit, poll, find and cancel training jobs. A job outlives the process that submitted it.

    base        the interface of launchers: handles, job status, methods; selection of a launcher; files of a job's
                directory; a cache of scheduler answers; shell wrapper of a command
    local       a detached process on this machine
    slurm       a batch job, requeued until the run has finished
    ray_jobs    a job of a Ray cluster's Jobs API
    ray_nodes   entry point of a Ray job with several nodes
    kubernetes  a Job, created from the manifest that `manifest` builds
    manifest    the Job and the Service of a run, as plain dictionaries
    parameters  launcher and supervision parameters of a recipe
    devices     accelerators: memory, FLOP/s, bandwidth
    submission_rate  rate limit of submissions, and pauses after refusals
    conformance      tests of the launchers' contract, for launchers of other packages too

A launcher knows only a command, a directory and a log; the work of the job does not belong here.
"""

from plinth.launch.base import Handle, JobStatus, Launcher

__all__ = ["Handle", "JobStatus", "Launcher"]
