"""What a scheduler is given for a run, as text that its own tools take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plinth.errors import LaunchError
from plinth.launch.parameters import Launch


def given(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
    """The script for `sbatch`, or the manifests for `kubectl apply -f -`.

    Raises:
        LaunchError: this kind is given none.
    """
    directory, log = directory.absolute(), log.absolute()
    if launch.kind == "slurm":
        from plinth.launch.slurm import sbatch_script

        return sbatch_script(launch, grace_s, command, directory, log)
    if launch.kind == "kubernetes":
        import yaml

        from plinth.launch import manifest

        objects = [manifest.service(launch, directory), manifest.job(launch, grace_s, command, directory, log)]
        return str(yaml.safe_dump_all([given for given in objects if given is not None], sort_keys=False))
    raise LaunchError(
        f"launcher {launch.kind} is given no manifest",
        expected="training.launch.kind slurm or kubernetes",
        remedy="`plinth job submit RUN` starts it",
    )
