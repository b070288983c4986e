"""Where a training job runs. The job outlives whoever submitted it.

    base   Handle (durable), Status, and the Launcher protocol: submit, poll, find, cancel, logs
    local  a detached process on this machine

A launcher knows a command, a directory and a log; not what the job does.
"""

from plinth.launch.base import Handle, Launcher, Status

__all__ = ["Handle", "Launcher", "Status"]
