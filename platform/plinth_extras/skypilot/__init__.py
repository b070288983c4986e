"""Launcher of SkyPilot managed jobs: `training.launch.kind: skypilot`.

    task        parameters of the launcher, and the task of a run for `sky jobs launch`
    launcher    submits, polls and cancels the managed job with the `sky` program

SkyPilot has its own environment: its requirements conflict with Plinth's. The launcher calls the `sky` on the PATH.
"""

from plinth_extras.skypilot.launcher import KIND

__all__ = ["KIND"]
