"""The pipeline of one run of an experiment: which stages it has, what they read from outside, and how it is played.

It is played over references of its own; what the workspace or another arm has made of the same inputs is taken over,
part by part from the step cache where not as a whole.

Does not belong here: the assets of an experiment (`experiment`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.costs import StepCost
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
from plinth.experiment import record
from plinth.experiment.arms import Arm, Experiment
from plinth.experiment.record import Spent
from plinth.experiment.value.verdict import MEASURED
from plinth.records import Manifest
from plinth_assets.catalog import selected, stages
from plinth_assets.framework.build import bring, publish
from plinth_assets.framework.stage import Say, Stage
from plinth_assets.framework.up_to_date import up_to_date

#: The last asset of a run's own pipeline.
LAST = "checkpoint"
#: The last assets of the corpus that a source is compared with.
CORPUS = ("mixture", "funnel")

#: Failures that are a result: this recipe does not get there. All others, as a full disk or a missing key, and these
#: exceptions, say nothing of the arm.
OF_THE_ARM = (RecipeError, StageError, TrainingError)
NOT_OF_THE_ARM = (
    BudgetError, ExtensionError, LaunchError, WorkerError, StoppedRunError, CheckpointError, ResumeError,
)  # fmt: skip

#: What stages read from outside, and its identity.
Known = list[tuple[Callable[[Context], str | None], str | None]]


def last_assets(experiment: Experiment, arm: Arm) -> tuple[str, ...]:
    """The last assets of a run: its checkpoint; where a source is asked about, what else measures that."""
    known = {one.asset for one in stages(arm.recipe)} if experiment.source else set()
    return (LAST, *(name for name in MEASURED if name in known))


def read_outside(arm: Arm, own: Sequence[Stage], known: Known | None, ctx: Context) -> str:
    """Identity of the sources, and which attempt this is where an earlier one failed."""
    read = {one.asset: _identity(one.outside, known, ctx) for one in own if one.outside}
    return fingerprint.digest({"read": read, "attempt": record.attempt(ctx.workspace, arm)})


def _identity(outside: Callable[[Context], str | None], known: Known | None, ctx: Context) -> str | None:
    """Identity of what a stage reads from outside, taken from another run's stage that reads the same."""
    for other, found in known or ():
        if _same(outside, other):
            return found
    found = outside(ctx)
    if known is not None:
        known.append((outside, found))
    return found


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions are one function of equal arguments; of functions that cannot be compared, no."""
    if not (isinstance(one, partial) and isinstance(other, partial)):
        return one is other
    return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)


def _neighbours(ctx: Context, experiment: Experiment, arm: Arm) -> list[Context]:
    """Where most of a run may be made already: the workspace's own recipe, the first runs of the arm and the base."""
    size, seed = next(iter(experiment.sizes)), experiment.seeds[0]
    first = [replace(arm, arm=name, size=size, seed=seed).branch for name in (arm.arm, experiment.base)]
    branches = [ctx.workspace.branch(name) for name in first if name != arm.branch]
    return [ctx, *(Context(space, ctx.engine) for space in branches)]


def played(ctx: Context, experiment: Experiment, arm: Arm, say: Say, ends: tuple[str, ...] = ()) -> dict[str, Manifest]:
    """Bring the pipeline of a run up to date over references of its own: as far as its checkpoint, or the given ends.

    Returns:
        The manifests of its stages. What was made, taken over and written is recorded beside the references.

    Raises:
        PlinthError: a stage failed; what was finished before it is kept.
    """
    space, neighbours = ctx.workspace.branch(arm.branch), _neighbours(ctx, experiment, arm)
    made: dict[str, Manifest] = {}
    spent = record.spent(ctx.workspace, [arm]).get(arm.asset, Spent())
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
            record.save(ctx.workspace, arm, spent)
            continue
        say(f"{arm.arm}, size {arm.size}, seed {arm.seed}: {stage.asset}")
        made[stage.asset] = publish(stage, own, bring(stage, own, say))
        spent = spent.with_made(stage.asset, sum(own.costs.values(), StepCost()), own.store.written)
        record.save(ctx.workspace, arm, spent)  # at once: what was made is not made again after a kill
    return made
