"""Run an experiment: its runs and its answer as assets of one Dagster job, in this process.

file -> arms -> (side by side: the runs of a seed at once) -> Dagster run -> page
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from plinth.compute.context import Context
from plinth.compute.progress import for_terminal
from plinth.compute.select_engine import DEFAULT, Compute
from plinth.errors import MissingError, PlinthError
from plinth.experiment import record
from plinth.experiment.arms import Arm, Experiment
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.trust.root import Trust
from plinth_assets import arm_pipeline
from plinth_assets import experiment as wiring
from plinth_assets.framework.build import REQUESTED_BY, asset
from plinth_assets.framework.resources import PlinthResource, Session
from plinth_assets.framework.stage import Stage
from plinth_assets.framework.up_to_date import decide
from plinth_jobs import experiments
from plinth_jobs.dagster_run import QUIET, raise_first_failure, requested_by
from plinth_jobs.instance import interruptible, of_code_location, open_instance
from plinth_jobs.pipeline import take_harvest
from plinth_jobs.run_launcher import HOST, host

JOB = "run_experiment"


@dataclass(frozen=True)
class ExperimentSummary:
    """What an experiment came to."""

    name: str
    made: tuple[str, ...]
    fresh: tuple[str, ...]
    seconds: float
    page: Path
    effects: tuple[dict[str, Any], ...] = field(default=())
    failed: tuple[str, ...] = ()
    verdict: dict[str, Any] | None = None
    confirmation: dict[str, Any] | None = None


def definitions(
    stages: Sequence[Stage], workspace: Path, compute: Compute = DEFAULT, **resources: Any
) -> dg.Definitions:
    """The assets of an experiment's stages and the job that makes them."""
    made = [asset(stage) for stage in stages]
    job = dg.define_asset_job(JOB, dg.AssetSelection.assets(*made), executor_def=dg.in_process_executor)
    known = {"plinth": PlinthResource.over(str(workspace), compute), "session": Session(), **resources}
    return dg.Definitions(assets=made, jobs=[job], resources=known, executor=dg.in_process_executor)


def run(
    workspace: Path,
    path: Path,
    *,
    compute: Compute = DEFAULT,
    side_by_side: int = 1,
    again: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> ExperimentSummary:
    """Bring an experiment up to date: runs that are there are left alone, interrupted ones go on where they stopped.

    Args:
        side_by_side: runs of one seed that are under way at once.
        again: ask for runs again that failed.

    Raises:
        RecipeError, BudgetError, MissingError: the experiment is wrong; nothing was started.
        SignatureError: no root of trust is pinned.
        StageError: Dagster could not run it; a run of an arm that fails is a result and raises nothing.
    """
    started = time.monotonic()
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    experiment, arms = experiments.load(path)
    space = Workspace(workspace).ensure()
    Trust.of(space)  # checkpoints are signed: without a root of trust no run would keep one
    with space.locked(f"plinth experiment run {path}"):
        experiments.remember(space.root, experiment, path)
        progress = for_terminal()
        for recipe in {one.recipe.harvest: one.recipe for one in arms}.values():
            if recipe.harvest:
                take_harvest(space, recipe, progress)
        ctx = Context(space, progress=progress)
        if again:
            record.try_again(space, [one for one in arms if _status(ctx, one) == "failed"])
        todo = decide(ctx, wiring.of(experiment, arms, for_one_decision=True))
        waiting = [one for one in arms if one.asset in todo.stale]
        if experiment.source and wiring.sample_of(experiment) in todo.stale:
            _materialise(ctx, wiring.of(experiment, arms), [wiring.sample_of(experiment)], compute)
        say(f"{len(waiting)} of {len(arms)} runs to make")
        for due, foretold in _in_turn(experiment, waiting):
            played = _at_once(ctx, experiment, arms, due, compute, side_by_side, say) if side_by_side > 1 else {}
            ends = {one.asset for one in due} | ({wiring.forecast_of(experiment)} if foretold else set())
            chosen = [one for one in todo.stale if one in ends]
            _materialise(ctx, wiring.of(experiment, arms, played), chosen, compute)
        if todo.stale:
            _materialise(ctx, wiring.of(experiment, arms), [todo.stale[-1]], compute)
        made = ctx.refs.current(wiring.effects_of(experiment))
        page = wiring.show(ctx, experiment, arms, made)
        if experiment.confirms is not None:
            _show_swarm(ctx, experiment.confirms.experiment)
    failed = tuple(one.asset for one in arms if _status(ctx, one) in ("failed", "diverged"))
    seconds = time.monotonic() - started
    return ExperimentSummary(
        experiment.name, todo.stale, todo.fresh, seconds, page, tuple(made.stats["effects"]), failed,
        made.stats.get("value"), made.stats.get("confirmation"),
    )  # fmt: skip


def _in_turn(experiment: Experiment, waiting: Sequence[Arm]) -> list[tuple[list[Arm], bool]]:
    """Runs that may be under way at once, one group after the other, and whether a ladder's forecast follows."""
    if experiment.ladder:
        held = [one for one in waiting if one.size == experiment.ladder.held_out]
        return [([one for one in waiting if one not in held], True), (held, False)]
    seeds = [(seed,) for seed in experiment.seeds] if experiment.stop_losing else [experiment.seeds]
    return [([one for one in waiting if one.seed in own], False) for own in seeds]


def answer_of(ctx: Context, experiment: Experiment, arms: Sequence[Arm]) -> Manifest:
    """The published effects of an experiment as its file is now.

    Raises:
        MissingError: it was not run here, or file, sources or code have changed since.
    """
    if stale := decide(ctx, wiring.of(experiment, arms, for_one_decision=True)).stale:
        raise MissingError(
            f"experiment {experiment.name} has no answer, or it has changed since it was run",
            found=f"{len(stale)} of its assets to make, {stale[0]} among them",
            remedy="`plinth experiment run FILE` makes them",
        )
    return ctx.refs.current(wiring.effects_of(experiment))


def _show_swarm(ctx: Context, name: str) -> None:
    """Write the page of a swarm again, with what new runs say of its proposal; not where its answer is out of date."""
    try:
        swarm, arms = experiments.load(experiments.noted(ctx.workspace.root, name))
        wiring.show(ctx, swarm, arms, answer_of(ctx, swarm, arms))
    except PlinthError:
        return  # `plinth experiment show` says what is wrong with it


def _status(ctx: Context, arm: Arm) -> str:
    ref = ctx.refs.seen(arm.asset)
    return str(ctx.refs.load(ref.digest).stats["status"]) if ref else ""


def _at_once(
    ctx: Context,
    experiment: Experiment,
    every: Sequence[Arm],
    arms: Sequence[Arm],
    compute: Compute,
    side_by_side: int,
    say: Callable[[str], None],
) -> dict[str, PlinthError]:
    """Play runs, several at once; their assets find all of it made.

    Args:
        every: all runs of the experiment.
        arms: those to play.

    Returns:
        How those failed whose failure is a result, by asset.

    Raises:
        PlinthError: any other failure; runs that wait are not begun.
    """
    failed: dict[str, PlinthError] = {}
    engine, over = compute.open(), threading.Event()

    def play(arm: Arm) -> None:
        own = Context(ctx.workspace, engine, requested_by=requested_by())
        if over.is_set() or wiring.is_stopped(own, experiment, arm, every):
            return
        try:
            arm_pipeline.played(own, experiment, arm, say)
        except arm_pipeline.NOT_OF_THE_ARM:
            over.set()
            raise
        except arm_pipeline.OF_THE_ARM as error:
            failed[arm.asset] = error
        except BaseException:
            over.set()
            raise

    try:
        with ctx.progress.meter("runs", len(arms)) as meter:
            for one in arms[:1]:
                play(one)  # what all have in common is made once, before they share it
                meter.advance()
            with ThreadPoolExecutor(side_by_side) as pool:
                for _ in pool.map(play, arms[1:]):
                    meter.advance()
    finally:
        engine.close()
    return failed


@interruptible()
def _materialise(ctx: Context, stages: Sequence[Stage], chosen: Sequence[str], compute: Compute) -> None:
    if not chosen:
        return
    space, session = ctx.workspace, Session(ctx.progress)
    with ctx.progress.meter("assets", len(chosen)) as session.assets, open_instance(space) as instance:
        defs = definitions(stages, space.root, compute, session=session)
        result = defs.resolve_job_def(JOB).execute_in_process(
            instance=of_code_location(instance, JOB),
            asset_selection=[dg.AssetKey(one.split("/")) for one in chosen],
            run_config=QUIET,
            tags={REQUESTED_BY: requested_by(), HOST: host()},
            raise_on_error=False,
        )
    if not result.success:
        raise_first_failure(space, JOB, result, session)
