"""Pipeline of one run of an experiment: its stages, their external inputs, and its execution.

The pipeline runs with its own references. If the workspace or another arm has results from the same inputs, they are
reused, as whole assets or as single results from the step cache. The number of retries and the reused assets are
recorded next to the manifests, because they differ between repetitions and are not part of an asset's identity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from plinth import fingerprint
from plinth.compute.context import Context, StepCost
from plinth.errors import (
    BudgetError,
    CheckpointError,
    ExtensionError,
    LaunchError,
    RecipeError,
    ResumeError,
    StageError,
    StoppedRunError,
    TrainingError,
    WorkerError,
)
from plinth.records import Frozen, Manifest
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import selected, stages
from plinth_assets.framework import Say, Stage, up_to_date
from plinth_assets.framework.build import bring, publish
from plinth_lab.experiments.arms import Arm, Experiment
from plinth_lab.source_value.verdict import MEASURED


class Spent(Frozen):
    """Assets that a run computed, assets that it reused, and the cost of the computation.

    Args:
        parts: number of step tasks that were executed.
        spared: number of tasks of computed assets whose result was in the step cache.
        written: number of files written to the store.
    """

    made: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    parts: int = Field(0, ge=0)
    spared: int = Field(0, ge=0)
    written: int = Field(0, ge=0)

    def with_taken(self, asset: str) -> Spent:
        """Return a copy of the record with one more reused asset."""
        return self.model_copy(update={"taken": (*self.taken, asset)})

    def with_made(self, asset: str, cost: StepCost, written: int) -> Spent:
        """Return a copy of the record with one more computed asset.

        Args:
            cost: cost of the asset's step tasks.
            written: number of files that the asset's driver wrote.
        """
        return Spent(
            made=(*self.made, asset),
            taken=self.taken,
            parts=self.parts + cost.tasks,
            spared=self.spared + cost.spared,
            written=self.written + cost.written + written,
        )


def save_spent(workspace: Workspace, arm: Arm, spent: Spent) -> None:
    """Save the record of the assets that a run computed and the assets that it reused."""
    write_bytes(_path(workspace, arm), spent.model_dump_json().encode())


def spent_by_asset(workspace: Workspace, arms: Sequence[Arm]) -> dict[str, Spent]:
    """Return the record of computed and reused assets for each run that was executed here, by the run's asset key."""
    found = {one.asset: _path(workspace, one) for one in arms}
    return {asset: Spent.model_validate_json(path.read_bytes()) for asset, path in found.items() if path.exists()}


def attempt(workspace: Workspace, arm: Arm) -> int:
    """Return the number of retries of a run."""
    return _attempts(workspace, arm.experiment).get(arm.asset, 0)


def try_again(workspace: Workspace, arms: Sequence[Arm]) -> None:
    """Mark the assets of failed runs as out of date, so that the next execution retries the runs."""
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


#: The last asset of a run's own pipeline.
LAST = "checkpoint"
#: The last assets of the corpus that a source is compared with.
CORPUS = ("mixture", "funnel")

#: Failures that count as a result, because they are caused by the arm's recipe. Other failures, such as a full disk or
#: a missing key, and the exceptions listed here say nothing about the arm.
OF_THE_ARM = (RecipeError, StageError, TrainingError)
NOT_OF_THE_ARM = (
    BudgetError, ExtensionError, LaunchError, WorkerError, StoppedRunError, CheckpointError, ResumeError,
)  # fmt: skip

#: External inputs of stages, and their identity.
Known = list[tuple[Callable[[Context], str | None], str | None]]


def last_assets(experiment: Experiment, arm: Arm) -> tuple[str, ...]:
    """Return the assets at which a run's pipeline ends: its checkpoint and, to evaluate a source, its measurements."""
    known = {one.asset for one in stages(arm.recipe)} if experiment.source else set()
    return (LAST, *(name for name in MEASURED if name in known))


def read_outside(arm: Arm, own: Sequence[Stage], known: Known | None, ctx: Context) -> str:
    """Return a digest over the external inputs of a run's stages and the number of the run's retries."""
    read = {one.asset: _identity(one.outside, known, ctx) for one in own if one.outside}
    return fingerprint.digest({"read": read, "attempt": attempt(ctx.workspace, arm)})


def _identity(outside: Callable[[Context], str | None], known: Known | None, ctx: Context) -> str | None:
    """Return the identity of a stage's external input.

    If a stage of another run reads the same input, the known identity is reused.
    """
    for other, found in known or ():
        if _same(outside, other):
            return found
    found = outside(ctx)
    if known is not None:
        known.append((outside, found))
    return found


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return True if two functions are the same function with equal arguments.

    The result is False for functions that cannot be compared.
    """
    if not (isinstance(one, partial) and isinstance(other, partial)):
        return one is other
    return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)


def _neighbours(ctx: Context, experiment: Experiment, arm: Arm) -> list[Context]:
    """Return contexts that may already have most results of a run.

    The contexts belong to the workspace's own recipe, the arm's first run, and the base arm's first run.
    """
    size, seed = next(iter(experiment.sizes)), experiment.seeds[0]
    first = [replace(arm, arm=name, size=size, seed=seed).branch for name in (arm.arm, experiment.base)]
    branches = [ctx.workspace.branch(name) for name in first if name != arm.branch]
    return [ctx, *(Context(space, ctx.engine) for space in branches)]


def played(ctx: Context, experiment: Experiment, arm: Arm, say: Say, ends: tuple[str, ...] = ()) -> dict[str, Manifest]:
    """Bring the pipeline of a run up to date, up to its checkpoint or the last assets in `ends`.

    The run has its own references.

    Returns:
        The manifests of its stages. Computed, reused and written assets are recorded next to the references.

    Raises:
        PlinthError: a stage failed; results of earlier stages are kept.
    """
    space, neighbours = ctx.workspace.branch(arm.branch), _neighbours(ctx, experiment, arm)
    made: dict[str, Manifest] = {}
    spent = spent_by_asset(ctx.workspace, [arm]).get(arm.asset, Spent())
    for stage in selected(stages(arm.recipe), ends or last_assets(experiment, arm)):
        own = Context(space, ctx.engine, ctx.progress, requested_by=ctx.requested_by)
        digests = {dep: made[dep].digest for dep in stage.deps}
        if found := up_to_date(stage, own, digests):
            made[stage.asset] = found
            continue
        if found := next((one for other in neighbours if (one := up_to_date(stage, other, digests))), None):
            own.refs.publish(found, stage.key(own, digests))
            if stage.suite:
                publish(stage, own, bring(stage, own, say))  # found now, and held to the arm's own bounds
            made[stage.asset], spent = found, spent.with_taken(stage.asset)
            save_spent(ctx.workspace, arm, spent)
            continue
        say(f"{arm.arm}, size {arm.size}, seed {arm.seed}: {stage.asset}")
        made[stage.asset] = publish(stage, own, bring(stage, own, say))
        spent = spent.with_made(stage.asset, sum(own.costs.values(), StepCost()), own.store.written)
        save_spent(ctx.workspace, arm, spent)  # at once: what was made is not made again after a kill
    return made
