"""Dagster definitions of a recipe: jobs over assets with schedules, owners and priorities; definitions added by
packages; Dagster runs in this process.
"""

from __future__ import annotations

import gc
import getpass
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import dagster as dg

from plinth import processes
from plinth.compute.progress import Progress
from plinth.compute.select_engine import DEFAULT, Compute
from plinth.errors import RecipeError, StageError
from plinth.extensions import Catalogue
from plinth.launch.parameters import NORMAL, Queueing
from plinth.operation import spending
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace, folder_of
from plinth_assets.catalog import stages
from plinth_assets.framework import Stage
from plinth_assets.framework.build import REQUESTED_BY, Session, asset, resources_of
from plinth_assets.framework.pipes import PipesAnnotator
from plinth_assets.framework.placement import ALONE, DagsterPlacement
from plinth_assets.framework.present import expected_cost
from plinth_jobs import CANDIDATE, RELEASE, sensors
from plinth_jobs.dagster_parts import HOST, host, kept_connections
from plinth_jobs.instance import interruptible, of_code_location, open_instance, record_failure
from plinth_jobs.recipes import find, load

# Dagster jobs over assets, their schedules and run tags, and definitions added by packages.

# Dagster run tags: owner and priority. Dagster's queue orders runs by priority and limits each team.

#: Limited per value by `concurrency.runs.tag_concurrency_limits` in `dagster.yaml`.
TEAM: Final = "plinth/team"
#: One run per job at a time, by the same setting: if two ticks request a job at once, the second run has nothing to do.
JOB: Final = "plinth/job"
#: Dagster's run priority; higher runs first.
RUN_PRIORITY: Final = "dagster/priority"
_ORDER: Final = {"low": "-10", "high": "10"}


def run_tags(recipe: Recipe, workspace: Workspace) -> dict[str, str]:
    """Return the tags of every run of a recipe; the default team is that of the workspace's budget."""
    asked = Queueing() if recipe.training is None else recipe.training.launch.queueing
    team = asked.team or spending.load(workspace).team
    found = {TEAM: team} if team else {}
    return found | ({} if asked.priority == NORMAL else {RUN_PRIORITY: _ORDER[asked.priority]})


@dataclass(frozen=True)
class AddedDefinitions:
    """Assets, jobs, schedules and sensors that a ring or user package adds: a member of `plinth.definitions`.

    Args:
        name: name of the entry point.
        build: `(recipe, workspace, placement)` -> definitions, without resources or an executor. All keys and names are
            made by the placement, so that several recipes can be in one code location.
        in_runs: False if only Dagster's code location has them, not a run in this process (`plinth run`).
    """

    name: str
    build: Callable[[Recipe, Path, DagsterPlacement], dg.Definitions]
    in_runs: bool = True


#: Imported when the code location is built.
ADDED = Catalogue("plinth.definitions", "definitions", AddedDefinitions, {})


class AssetJob(NamedTuple):
    """Job over assets, with its schedule if it has one."""

    name: str
    selection: dg.AssetSelection
    description: str
    schedule: str = ""
    cron: str = ""
    scheduled: str = ""
    queued: bool = False  # has the priority and quota of the recipe's team

    def job(self, place: DagsterPlacement, tags: Mapping[str, str] | None = None) -> Any:
        """Build the Dagster job."""
        name = place.name(self.name)
        return dg.define_asset_job(
            name,
            self.selection,
            executor_def=dg.in_process_executor,
            tags={**(tags or {}), JOB: name},
            description=self.description,
        )


def scheduled(job: Any, name: str, cron: str, description: str) -> dg.ScheduleDefinition:
    """Build the schedule of a job, active from the start; times in UTC."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=description,
    )


def with_schedule(one: AssetJob, place: DagsterPlacement) -> dg.Definitions:
    """Build a job and its schedule."""
    job = one.job(place)
    return dg.Definitions(jobs=[job], schedules=[scheduled(job, place.name(one.schedule), one.cron, one.scheduled)])


# Dagster's view of a recipe, and Dagster runs in this process, recorded in the workspace's instance as the daemon's
# are.

# Dagster definitions of a recipe.
#
# `build` takes the recipe and the workspace and accepts overrides, so that tests swap resources without
# patching. Dagster itself loads this module and finds both in the environment: PLINTH_RECIPE and
# PLINTH_WORKSPACE, and PLINTH_PAGES where the pages are served, which `plinth up` sets.

#: Names of jobs; asset names must differ.
CORPUS = "make_corpus"

#: Groups of the corpus job; later groups use accelerators and start on request.
CORPUS_GROUPS = (
    "sources", "documents", "models", "annotations", "verdicts", "dedup", "curated", "tokens", "mixture", "report",
)  # fmt: skip
TRAINING_GROUPS = ("training", "evaluation", "registry")
#: Maximum number of readable assets in an expanded group of the graph.
READABLE = 60


def group_names(all_stages: Sequence[Stage]) -> dict[str, str]:
    """Return the Dagster group of each asset: its stage's group.

    A group above the limit is divided by kind, such as `annotations_c4`, or by bucket, `annotations_web`, whichever
    gives fewer groups.
    """
    by_group = dict[str, list[list[str]]]()
    for stage in all_stages:
        by_group.setdefault(stage.group, []).append(stage.asset.split("/"))
    named = dict[str, str]()
    for group, keys in by_group.items():
        place = min((-1, 0), key=lambda at: len({key[at] for key in keys}))
        for key in keys:
            apart = f"_{key[place].replace('-', '_')}" if len(keys) > READABLE else ""
            named["/".join(key)] = group + apart
    return named


def _asset_jobs(recipe: Recipe, all_stages: Sequence[Stage], named: Mapping[str, str]) -> list[AssetJob]:
    def groups(*wanted: str) -> dg.AssetSelection:
        return dg.AssetSelection.groups(*sorted({named[one.asset] for one in all_stages if one.group in wanted}))

    found = [
        AssetJob(CORPUS, groups(*CORPUS_GROUPS), "From sources to mixture.",
                 "nightly", "0 2 * * *", "Updates the corpus at 02:00 UTC; assets that are up to date are skipped.",
                 queued=True),
        AssetJob(CANDIDATE, groups(*CORPUS_GROUPS, *TRAINING_GROUPS), "Builds a registered candidate from sources.",
                 queued=True),
    ]  # fmt: skip
    if recipe.release is not None:
        found.append(AssetJob(RELEASE, groups("release"), "Promote the approved candidate.", queued=True))
    return found


def build(
    recipe: Recipe,
    workspace: Path,
    *,
    compute: Compute = DEFAULT,
    session: Session | None = None,
    pages: str = "",
    served: bool = False,
    upstream: Mapping[str, Sequence[str]] = MappingProxyType({}),
    key_prefix: str | Sequence[str] = "",
    pipes: Mapping[str, PipesAnnotator] = MappingProxyType({}),
) -> dg.Definitions:
    """Build all assets, checks, jobs, schedules and sensors of a recipe, with those that packages add.

    The definitions have no executor, so they can be merged with those of a user's project.

    Args:
        session: shared with the caller of a run in this process.
        pages: address of the workspace's pages; every asset links to them.
        served: True for the code location of Dagster, False for a run in this process.
        upstream: asset keys by bucket: assets of the user's project that write the files of the bucket's sources.
        key_prefix: prefix of all keys and names, for several recipes in one code location (`DagsterPlacement`).
        pipes: annotators that run in an external process, by name; their clients are resources of the user's project.

    Raises:
        RecipeError: `upstream` names a bucket or `pipes` an annotator that the recipe does not have, or the prefix is
            invalid.
    """
    if unknown := sorted(set(upstream) - set(recipe.corpus.buckets)):
        raise RecipeError(
            f"recipe {recipe.name} has no bucket {unknown[0]}",
            found=f"upstream assets for {', '.join(unknown)}",
            expected=f"buckets of the recipe: {', '.join(recipe.corpus.buckets)}",
        )
    if unknown := sorted(set(pipes) - set(recipe.corpus.annotate)):
        raise RecipeError(
            f"recipe {recipe.name} has no annotator {unknown[0]}",
            found=f"Pipes clients for {', '.join(unknown)}",
            expected=f"annotators of the recipe: {', '.join(recipe.corpus.annotate)}",
            remedy="add the annotator to `corpus.annotate` of the recipe, or remove it from `pipes`",
        )
    all_stages, place = stages(recipe), DagsterPlacement.of(key_prefix, pages)
    outside = {f"{bucket}/sources": tuple(keys) for bucket, keys in upstream.items()}
    named = {asset: place.name(group) for asset, group in group_names(all_stages).items()}
    table = _asset_jobs(recipe, all_stages, named)
    marks_checks = sensors.checks(named, workspace, place)
    # Taint checks are separate: they are evaluated when an asset is tainted or materialized.
    space = Workspace(workspace)
    tags, apart = run_tags(recipe, space), dg.AssetSelection.checks(*marks_checks)
    jobs = {
        one.name: one._replace(selection=one.selection - apart).job(place, tags if one.queued else None)
        for one in table
    }
    own = dg.Definitions(
        assets=[
            asset(
                stage,
                place,
                group=named[stage.asset],
                nightly=stage.group in CORPUS_GROUPS,
                upstream=outside.get(stage.asset, ()),
                expected=expected_cost(space, stage.asset) if served else {},
                pipes=pipes,
            )
            for stage in all_stages
        ],
        asset_checks=marks_checks,
        jobs=list(jobs.values()),
        schedules=[
            scheduled(jobs[one.name], place.name(one.schedule), one.cron, one.scheduled) for one in table if one.cron
        ],
        sensors=_sensors(recipe, workspace, jobs, place),
        resources=resources_of(str(workspace), compute, session, recipe.name, place),
    )
    added = (one for one in ADDED.values() if served or one.in_runs)
    return dg.Definitions.merge(own, *(one.build(recipe, workspace, place) for one in added))


def _sensors(
    recipe: Recipe, workspace: Path, jobs: Mapping[str, Any], place: DagsterPlacement
) -> list[dg.SensorDefinition]:
    found = [sensors.arrival(recipe, workspace, jobs[CORPUS], place.name("arrival"))]
    if RELEASE in jobs:
        of_release = jobs[RELEASE]
        found += [
            sensors.approval(recipe, workspace, of_release, place),
            sensors.canary(recipe, workspace, of_release, place),
            sensors.mirror(recipe, workspace, place),
        ]
    return [
        *found,
        sensors.feed(recipe, workspace, place),
        sensors.pages(workspace, place),
        sensors.failure(workspace, place),
        sensors.automation(stages(recipe), place),
    ]


def _recipe_named() -> str:
    """Return the recipe that the environment names.

    Raises:
        RecipeError: the environment names none.
    """
    if named := os.environ.get("PLINTH_RECIPE"):
        return named
    raise RecipeError(
        "no recipe for the Dagster code location",
        found="PLINTH_RECIPE is not set",
        expected="a recipe file in PLINTH_RECIPE and its workspace in PLINTH_WORKSPACE (default: ./workspace)",
        remedy="set both, as `PLINTH_RECIPE=recipe.yaml PLINTH_WORKSPACE=workspace dagster asset materialize -m "
        "plinth_jobs.definitions --select ASSET`; `plinth up` sets them itself",
    )


@dg.definitions
def definitions() -> dg.Definitions:
    """Build the code location from the environment."""
    gc.set_threshold(50_000, 10, 10)  # the default of 700 spends a tenth of the time on collections with 2,000 assets
    workspace = folder_of(os.environ.get("PLINTH_WORKSPACE", "workspace")).absolute()
    processes.shut_out(workspace)
    recipe = load(find(_recipe_named()))
    compute = Compute.from_environment()
    built = build(recipe, workspace, compute=compute, pages=os.environ.get("PLINTH_PAGES", ""), served=True)
    return dg.Definitions.merge(built, dg.Definitions(executor=dg.in_process_executor))


QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def requested_by() -> str:
    """Return the requester of runs in this process: `PLINTH_REQUESTED_BY`, or the user of this machine."""
    return os.environ.get("PLINTH_REQUESTED_BY") or getpass.getuser()


@interruptible()
def execute(
    space: Workspace, recipe: Recipe, assets: list[str], compute: Compute, job: str, progress: Progress
) -> tuple[str, ...]:
    """Run these assets in one Dagster run of this process, recorded in the workspace's instance.

    Returns:
        Warnings of their checks.
    """
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    session = Session(progress)
    with (
        progress.meter("release" if job == RELEASE else "assets", len(assets)) as session.assets,
        kept_connections(),
        dg.DagsterInstance.ephemeral() if compute.share else open_instance(space) as instance,
    ):
        session.assets.advance(0, "starting Dagster")
        defs = build(recipe, space.root, compute=compute, session=session)
        result = defs.resolve_job_def(job).execute_in_process(
            instance=of_code_location(instance, job),
            asset_selection=[*map(ALONE.key, assets)],
            run_config=QUIET,
            tags={REQUESTED_BY: requested_by(), HOST: host(), **run_tags(recipe, space)},
            raise_on_error=False,
        )
        if not result.success:
            raise_first_failure(space, job, result, session)
    return tuple(session.warnings)


def raise_first_failure(space: Workspace, job: str, result: dg.ExecuteInProcessResult, session: Session) -> None:
    """Raise the error of a failed Dagster run and write it to the alerts; an interrupted run raises no alert.

    Raises:
        PlinthError: the error of the first asset that failed.
        KeyboardInterrupt: the run was interrupted.
    """
    failures = [event for event in result.all_events if event.is_step_failure]
    if not failures:
        raise StageError(f"the Dagster run {result.run_id} failed before its first step", remedy="see `plinth up`")
    known = session.failures[0] if session.failures else None
    data = failures[0].step_failure_data
    cause = data.error.cause if data.error and data.error.cause else data.error
    text = str(known) if known else cause.message.strip() if cause else str(failures[0].message)
    if "DagsterExecutionInterruptedError" in text:  # interrupted by a user: no failure, no alert
        raise KeyboardInterrupt
    record_failure(space.root, result.run_id, job, text)
    if known:
        raise known
    raise StageError(
        f"stage {(failures[0].step_key or '').replace('__', '/')} failed",
        found=text,
        remedy=f"internal error: Dagster run {result.run_id} (`plinth up`) has the traceback; finished work is kept",
    )
