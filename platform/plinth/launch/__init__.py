"""Submit, poll, find and cancel training jobs. A job outlives the process that submitted it.

    base        Handle (durable), JobStatus, and the Launcher protocol: submit, poll, find, cancel, logs
    local       a detached process on this machine
    slurm       a batch job, requeued until the run has finished
    ray_jobs    a job of a Ray cluster's Jobs API
    ray_nodes   the entry point of such a job when it has several nodes
    kubernetes  a Job, made from the manifest of `manifest`
    manifest    the Job and the Service of a run, as plain dictionaries
    choose      the launcher of a kind
    parameters  launchers and supervision, as a recipe sets them
    devices     accelerators: memory, FLOP/s, bandwidth
    files       the files of a job's directory: handle, submission lock, log
    script      shell that runs a command under a scheduler
    submission_rate  how often jobs may be submitted, and pauses after refusals
    preview     the batch script or manifests of a job, without submitting it
    status_cache  a scheduler's last answer, kept for a while and when the scheduler does not answer

Does not belong here: the work of the job. A launcher knows a command, a directory and a log.
"""

from plinth.launch.base import Handle, JobStatus, Launcher

__all__ = ["Handle", "JobStatus", "Launcher"]
