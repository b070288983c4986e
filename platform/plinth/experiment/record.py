"""What is kept of an experiment beside its manifests: attempts, and what runs took over instead of making.

These differ from one repetition to the next and are in no identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from plinth.compute.costs import StepCost
from plinth.experiment.arms import Arm
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace


class Spent(Frozen):
    """Assets that a run made, assets it took over as they were, and what the making cost.

    Args:
        parts: tasks of steps that were worked on.
        spared: of those of `made`, tasks whose result was in the step cache.
        written: files written to the store.
    """

    made: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    parts: int = Field(0, ge=0)
    spared: int = Field(0, ge=0)
    written: int = Field(0, ge=0)

    def with_taken(self, asset: str) -> Spent:
        """The same with one more asset that was there already."""
        return self.model_copy(update={"taken": (*self.taken, asset)})

    def with_made(self, asset: str, cost: StepCost, written: int) -> Spent:
        """The same with one more asset that was made.

        Args:
            cost: of the tasks of its steps.
            written: files that its driver wrote.
        """
        return Spent(
            made=(*self.made, asset),
            taken=self.taken,
            parts=self.parts + cost.tasks,
            spared=self.spared + cost.spared,
            written=self.written + cost.written + written,
        )


def save(workspace: Workspace, arm: Arm, spent: Spent) -> None:
    """Keep what a run made and took over, of the last time that it made anything."""
    write_bytes(_path(workspace, arm), spent.model_dump_json().encode())


def spent(workspace: Workspace, arms: Sequence[Arm]) -> dict[str, Spent]:
    """What the runs made and took over, by asset; of those that were played here."""
    found = {one.asset: _path(workspace, one) for one in arms}
    return {asset: Spent.model_validate_json(path.read_bytes()) for asset, path in found.items() if path.exists()}


def attempt(workspace: Workspace, arm: Arm) -> int:
    """How often a run was asked for again after it had failed."""
    return _attempts(workspace, arm.experiment).get(arm.asset, 0)


def try_again(workspace: Workspace, arms: Sequence[Arm]) -> None:
    """Ask for runs again that have failed: their assets are no longer up to date."""
    for one in arms:
        known = _attempts(workspace, one.experiment)
        data = {**known, one.asset: known.get(one.asset, 0) + 1}
        write_bytes(_attempts_path(workspace, one.experiment), json.dumps(data, indent=1).encode())


def _attempts(workspace: Workspace, experiment: str) -> Mapping[str, int]:
    path = _attempts_path(workspace, experiment)
    found: Mapping[str, int] = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def _attempts_path(workspace: Workspace, experiment: str) -> Path:
    return workspace.root / "experiments" / experiment / "attempts.json"


def _path(workspace: Workspace, arm: Arm) -> Path:
    return workspace.root / "experiments" / arm.branch / "spent.json"
