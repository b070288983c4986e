"""Execution of an experiment in this process. Its runs and its results are assets of one Dagster job.

file -> arms -> (concurrently: all runs of a seed) -> Dagster run -> page

A user can name an experiment by its file, by the name of a packaged experiment, or by its name in a workspace where it
has run:

    filters   FineWeb's rules and Plinth's policy against raw text, on the demo's text
    pages     the policy compared with C4's, Gopher's and FineWeb's rules, on pages of Debian's documentation packages
    ladder    prediction of a fifth size from four sizes, on the same text
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from plinth.compute.context import Context
from plinth.compute.progress import for_terminal
from plinth.compute.select_engine import DEFAULT, Compute
from plinth.errors import MissingError, PlinthError, RequestError
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import files, named, read
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.trust.root import Trust
from plinth_assets.framework import Decision, Stage, decide
from plinth_assets.framework.build import REQUESTED_BY, Session, asset, resources_of
from plinth_assets.framework.placement import ALONE, DagsterPlacement
from plinth_jobs import recipes
from plinth_jobs.dagster_parts import HOST, host
from plinth_jobs.definitions import QUIET, AddedDefinitions, raise_first_failure, requested_by
from plinth_jobs.instance import interruptible, of_code_location, open_instance
from plinth_jobs.pipeline import take_harvest
from plinth_lab.experiments import arms, pipeline
from plinth_lab.experiments import stages as wiring
from plinth_lab.experiments.arms import Arm, Experiment

FOLDER = Path(__file__).parent / "packaged"
#: File in the folder of an experiment with the path of its recipe file.
NOTE = "experiment.json"


def load(path: Path) -> tuple[Experiment, tuple[Arm, ...]]:
    """Load an experiment from its file, or a packaged experiment by its name. Return the experiment and its runs.

    Raises:
        MissingError: there is no such file and no such packaged experiment.
        RecipeError, BudgetError: the experiment is invalid or would exceed its budget (`arms.load`).
    """
    return arms.load(find(path), recipes.FOLDER)


def find(path: Path) -> Path:
    """Return the path of an experiment's file. The argument is that path, or the name of a packaged experiment.

    Raises:
        MissingError: there is no such file and no such packaged experiment.
    """
    packaged = FOLDER / f"{path.name.removesuffix('.yaml')}.yaml"
    target = path if path.is_file() else packaged
    if not target.is_file():
        known = ", ".join(sorted(one.stem for one in FOLDER.glob("*.yaml")))
        raise MissingError(f"no experiment {path}", expected=f"a file, or a packaged experiment: {known}")
    return target


def remember(workspace: Path, experiment: Experiment, path: Path) -> None:
    """Record the path of an experiment's file, so that `plinth up` shows its assets."""
    note = {"path": str(find(path).absolute())}
    recipes.write_note(workspace, _note(experiment.name), json.dumps(note).encode())


def noted(workspace: Path, name: str) -> Path:
    """Return the file of an experiment that this user has run in a workspace, by the experiment's name.

    Raises:
        MissingError: no experiment of that name has run.
        RequestError: another user ran it, or its file or recipe is in the workspace, where others may have edited it.
    """
    again = "run the experiment from its file: `plinth experiment run FILE`"
    data = recipes.read_note(workspace, _note(name), again)
    if data is None:
        raise MissingError(
            f"this workspace has not run an experiment named {name}", expected=f"a file {workspace / _note(name)}"
        )
    path = Path(json.loads(data)["path"])
    if path.is_file() and recipes.passes(workspace, _files(path)):
        raise RequestError(
            f"experiment {name} cannot be loaded by its name",
            found=f"a file in the workspace, which others may have edited: {path}, or its recipe",
            remedy="keep the file and its recipe outside the workspace",
        )
    return path


def remembered(workspace: Path) -> Iterator[Stage]:
    """Yield the stages of the experiments that this user has run in a workspace.

    Experiments whose file is missing or invalid are skipped.
    """
    for name in sorted(note.parent.name for note in (workspace / "experiments").glob(f"*/{NOTE}")):
        try:
            experiment, runs = load(noted(workspace, name))
        except (PlinthError, ValueError, KeyError) as error:
            warnings.warn(f"experiment {name} is not shown: {error}", stacklevel=2)
            continue
        if experiment.name == name:  # else the file was given another name since
            yield from wiring.of(experiment, runs)


def exists(ctx: Context, name: str) -> bool:
    """Return True if runs of this name have results in the workspace, or if this user has run such an experiment."""
    return (ctx.workspace.root / _note(name)).exists() or any(ctx.refs.all(f"{arms.PREFIX}/{name}"))


def _require_no_loop(ctx: Context, name: str) -> None:
    if any(ctx.workspace.objects(arms.tries_of(name)).names()):
        raise RequestError(
            f"experiment {name} has the name of a loop",
            found=f"a loop {name} in this workspace",
            expected="a name that no loop has, because a loop has the assets of an experiment",
            remedy="change `name` in the experiment file",
        )


def _note(name: str) -> str:
    return f"experiments/{name}/{NOTE}"


def _files(path: Path) -> tuple[Path, ...]:
    """Return the file of an experiment, its recipe, and the recipes that the recipe extends."""
    recipe = read(path, path.name).data.get("recipe")
    found = named(recipe, path.parent, recipes.FOLDER) if isinstance(recipe, str) else None
    return (path, *(files(found, recipes.FOLDER) if found else ()))


JOB = "run_experiment"


@dataclass(frozen=True)
class ExperimentSummary:
    """Summary of an executed experiment: computed and up-to-date assets, effects, failures, and verdict."""

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
    stages: Sequence[Stage], workspace: Path, compute: Compute = DEFAULT, session: Session | None = None
) -> dg.Definitions:
    """Return Dagster definitions: the assets of an experiment's stages, and a job that materializes them."""
    made = [asset(stage) for stage in stages]
    job = dg.define_asset_job(JOB, dg.AssetSelection.assets(*made), executor_def=dg.in_process_executor)
    resources = resources_of(str(workspace), compute, session)
    return dg.Definitions(assets=made, jobs=[job], resources=resources, executor=dg.in_process_executor)


def run(
    workspace: Path,
    path: Path,
    *,
    compute: Compute = DEFAULT,
    side_by_side: int = 1,
    again: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> ExperimentSummary:
    """Bring an experiment up to date. Finished runs are kept, and interrupted runs continue where they stopped.

    Args:
        side_by_side: maximum number of concurrent runs of one seed.
        again: retry failed runs.

    Raises:
        RecipeError, BudgetError, MissingError: the experiment is invalid, and nothing was started.
        RequestError: a loop has the name of the experiment.
        SignatureError: no root of trust is pinned.
        StageError: Dagster could not run the experiment. A failed run of an arm is a result and raises no error.
    """
    started = time.monotonic()
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    experiment, arms = load(path)
    space = Workspace(workspace).ensure()
    Trust.of(space)  # checkpoints are signed: without a root of trust no run would keep one
    with space.locked(f"plinth experiment run {path}"):
        ctx = Context(space, progress=for_terminal())
        _require_no_loop(ctx, experiment.name)
        remember(space.root, experiment, path)
        if again:
            pipeline.try_again(space, [one for one in arms if _status(ctx, one) == "failed"])
        todo = bring_up_to_date(ctx, experiment, arms, compute, side_by_side, say)
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


def bring_up_to_date(
    ctx: Context,
    experiment: Experiment,
    arms: Sequence[Arm],
    compute: Compute,
    side_by_side: int,
    say: Callable[[str], None],
) -> Decision:
    """Execute the missing runs of an experiment and compare its arms. The caller holds the lock of the workspace.

    Returns:
        The assets that were stale or up to date before.

    Raises:
        StageError: Dagster could not run the experiment.
    """
    for recipe in {one.recipe.harvest: one.recipe for one in arms}.values():
        if recipe.harvest:
            take_harvest(ctx.workspace, recipe, ctx.progress)
    todo = decide(ctx, wiring.of(experiment, arms, for_one_decision=True))
    waiting = [one for one in arms if one.asset in todo.stale]
    if experiment.source and wiring.sample_of(experiment) in todo.stale:
        _materialise(ctx, wiring.of(experiment, arms), [wiring.sample_of(experiment)], compute)
    say(f"{len(waiting)} of {len(arms)} runs to execute")
    for due, foretold in _in_turn(experiment, waiting):
        played = _at_once(ctx, experiment, arms, due, compute, side_by_side, say) if side_by_side > 1 else {}
        ends = {one.asset for one in due} | ({wiring.forecast_of(experiment)} if foretold else set())
        chosen = [one for one in todo.stale if one in ends]
        _materialise(ctx, wiring.of(experiment, arms, played), chosen, compute)
    if todo.stale:
        _materialise(ctx, wiring.of(experiment, arms), [todo.stale[-1]], compute)
    return todo


def _in_turn(experiment: Experiment, waiting: Sequence[Arm]) -> list[tuple[list[Arm], bool]]:
    """Return the groups of runs to execute, one group after the other. Runs in a group can run concurrently.

    The second value of each group is True if a ladder's forecast follows the group.
    """
    if experiment.ladder:
        held = [one for one in waiting if one.size == experiment.ladder.held_out]
        return [([one for one in waiting if one not in held], True), (held, False)]
    seeds = [(seed,) for seed in experiment.seeds] if experiment.stop_losing else [experiment.seeds]
    return [([one for one in waiting if one.seed in own], False) for own in seeds]


def answer_of(ctx: Context, experiment: Experiment, arms: Sequence[Arm]) -> Manifest:
    """Return the manifest of an experiment's published effects, if it is up to date.

    Raises:
        MissingError: the experiment was not run here, or its file, sources or code have changed after the last run.
    """
    if stale := decide(ctx, wiring.of(experiment, arms, for_one_decision=True)).stale:
        raise MissingError(
            f"experiment {experiment.name} has no results, or changed after its last run",
            found=f"{len(stale)} stale assets, such as {stale[0]}",
            remedy="run `plinth experiment run FILE`",
        )
    return ctx.refs.current(wiring.effects_of(experiment))


def _show_swarm(ctx: Context, name: str) -> None:
    """Rewrite the page of a swarm experiment, to show if new runs confirmed its proposal.

    If the swarm's results are out of date, nothing is written.
    """
    try:
        swarm, arms = load(noted(ctx.workspace.root, name))
        wiring.show(ctx, swarm, arms, answer_of(ctx, swarm, arms))
    except PlinthError:
        return  # `plinth experiment show` reports the problem


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
    """Execute runs concurrently. The Dagster assets of the runs then only load results from the store.

    Args:
        every: all runs of the experiment.
        arms: runs to execute.

    Returns:
        Failures that count as a result, by asset.

    Raises:
        PlinthError: any other failure. Waiting runs are not started.
    """
    failed: dict[str, PlinthError] = {}
    engine, over = compute.open(), threading.Event()

    def play(arm: Arm) -> None:
        own = Context(ctx.workspace, engine, requested_by=requested_by())
        if over.is_set() or wiring.is_stopped(own, experiment, arm, every):
            return
        try:
            pipeline.played(own, experiment, arm, say)
        except pipeline.NOT_OF_THE_ARM:
            over.set()
            raise
        except pipeline.OF_THE_ARM as error:
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
        defs = definitions(stages, space.root, compute, session)
        result = defs.resolve_job_def(JOB).execute_in_process(
            instance=of_code_location(instance, JOB),
            asset_selection=[*map(ALONE.key, chosen)],
            run_config=QUIET,
            tags={REQUESTED_BY: requested_by(), HOST: host()},
            raise_on_error=False,
        )
    if not result.success:
        raise_first_failure(space, JOB, result, session)


def _added(recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.Definitions:
    return dg.Definitions(assets=[asset(stage, place) for stage in remembered(workspace)])


DEFINITIONS = AddedDefinitions("experiments", _added, in_runs=False)
