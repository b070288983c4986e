"""Launcher of SkyPilot managed jobs: `training.launch.kind: skypilot`.

The module `launcher` has the parameters, the task of a run for `sky jobs launch`, and the `sky` program's calls that
submit, poll and cancel the managed job.

SkyPilot has its own environment: its requirements conflict with Plinth's. The launcher calls the `sky` on the PATH.
"""

from plinth_extras.skypilot.launcher import KIND

__all__ = ["KIND"]
