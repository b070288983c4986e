"""The launcher of a kind."""

from __future__ import annotations

from plinth.errors import LaunchError
from plinth.extensions import Catalogue
from plinth.launch.base import Launcher, LauncherKind
from plinth.launch.parameters import Launch

#: Built-in launchers, and those of installed packages (entry points of the group `plinth.launchers`).
LAUNCHERS = Catalogue(
    "plinth.launchers",
    "launcher",
    LauncherKind,
    {
        "local": "plinth.launch.local:KIND",
        "slurm": "plinth.launch.slurm:KIND",
        "ray": "plinth.launch.ray_jobs:KIND",
        "kubernetes": "plinth.launch.kubernetes:KIND",
    },
)


def choose(kind: str, launch: Launch, grace_s: float) -> Launcher:
    """The launcher of a kind, with the settings of the recipe.

    Args:
        kind: of the recipe, or of a handle.
        launch: the recipe's block.
        grace_s: how long a job may take to leave after SIGTERM.

    Raises:
        LaunchError: no launcher of this kind.
        ExtensionError: the package that provides it cannot be used.
    """
    if kind not in LAUNCHERS:
        raise LaunchError(
            f"no launcher {kind!r}",
            expected=", ".join(LAUNCHERS),
            remedy="install the package that has it; `plinth doctor` lists what is installed",
        )
    return LAUNCHERS[kind].make(launch, grace_s)
