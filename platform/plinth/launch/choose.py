"""The launcher of a kind."""

from __future__ import annotations

from plinth.errors import LaunchError
from plinth.launch.base import Launcher
from plinth.launch.parameters import Launch


def choose(kind: str, launch: Launch, grace_s: float) -> Launcher:
    """The launcher of a kind, set up as the recipe says.

    Args:
        kind: of the recipe, or of a handle.
        launch: the recipe's block.
        grace_s: how long a job may take to leave after SIGTERM.

    Raises:
        LaunchError: no launcher of this kind.
    """
    if kind == "local":
        from plinth.launch.local import LocalLauncher

        return LocalLauncher()
    if kind == "slurm":
        from plinth.launch.slurm import SlurmLauncher

        return SlurmLauncher(launch, grace_s)
    if kind == "ray":
        from plinth.launch.ray_jobs import RayLauncher

        return RayLauncher(launch, grace_s)
    if kind == "kubernetes":
        from plinth.launch.kubernetes import KubernetesLauncher

        return KubernetesLauncher(launch, grace_s)
    raise LaunchError(f"no launcher {kind!r}", expected="local, slurm, ray or kubernetes")
