"""The launcher of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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


def given(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
    """The script for `sbatch`, the manifests for `kubectl apply -f -`, or the request of an installed launcher.

    Raises:
        LaunchError: this kind has none.
        RecipeError: no launcher of this kind.
    """
    kind = LAUNCHERS.find(launch.kind)
    if kind.preview is None:
        raise LaunchError(
            f"the launcher {launch.kind} has no manifest",
            expected="training.launch.kind slurm or kubernetes, or an installed launcher that shows its request",
            remedy="`plinth run job submit RUN` starts it",
        )
    return kind.preview(launch, grace_s, command, directory.absolute(), log.absolute())
