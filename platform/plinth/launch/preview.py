"""The batch script or the manifests of a run, as text for the scheduler's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plinth.errors import LaunchError
from plinth.launch.choose import LAUNCHERS
from plinth.launch.parameters import Launch


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
