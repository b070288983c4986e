"""Dagster's view of a recipe.

`build` takes the recipe and the workspace and accepts overrides, so that tests swap resources without
patching. Dagster itself loads this module and finds both in the environment: PLINTH_RECIPE and
PLINTH_WORKSPACE, and PLINTH_PAGES where the pages are served, which `plinth up` sets.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from assets import drift, service_levels
from assets.catalog import stages
from assets.framework.build import asset
from assets.framework.resources import PlinthResource, Session
from assets.framework.stage import Stage
from jobs import checklists, experiments, marks, queueing, schedules, sensors
from jobs.recipes import find, load
from plinth.compute.select_engine import DEFAULT, Compute
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace, folder_of

#: Names of jobs; an asset may not have the same one.
CORPUS, CANDIDATE, RELEASE = "make_corpus", "make_candidate", "make_release"
LEVELS, DRIFT = "measure_service_levels", "score_drift"

#: Groups that a corpus job makes; later groups use accelerators and are started on purpose.
CORPUS_GROUPS = (
    "sources",
    "documents",
    "models",
    "annotations",
    "verdicts",
    "dedup",
    "curated",
    "tokens",
    "mixture",
    "report",
)
TRAINING_GROUPS = ("training", "evaluation", "registry")


def build(
    recipe: Recipe,
    workspace: Path,
    *,
    compute: Compute = DEFAULT,
    resources: Mapping[str, Any] | None = None,
    further: Iterable[Stage] = (),
    pages: str = "",
) -> dg.Definitions:
    """All assets, checks, jobs, schedules and sensors of a recipe, and assets of `further` stages.

    Args:
        pages: where the pages of the workspace are served; every asset links them.
    """
    in_process, tags = dg.in_process_executor, queueing.tags(recipe, Workspace(workspace))
    marks_check = marks.check(recipe, workspace)
    apart = dg.AssetSelection.checks(marks_check)  # whoever marks or makes an asset has it evaluated
    corpus = dg.define_asset_job(
        CORPUS,
        dg.AssetSelection.groups(*CORPUS_GROUPS) - apart,
        executor_def=in_process,
        tags=tags,
        description="From sources to mixture.",
    )
    candidate = dg.define_asset_job(
        CANDIDATE,
        dg.AssetSelection.groups(*CORPUS_GROUPS, *TRAINING_GROUPS) - apart,
        executor_def=in_process,
        tags=tags,
        description="From sources to a registered candidate.",
    )
    release = dg.define_asset_job(
        RELEASE,
        dg.AssetSelection.groups("release") - apart,
        executor_def=in_process,
        tags=tags,
        description="Promote the approved candidate.",
    )
    levels = dg.define_asset_job(
        LEVELS,
        dg.AssetSelection.assets(service_levels.ASSET),
        executor_def=in_process,
        description="Service levels and error budgets as they stand.",
    )
    watching = drift.stages(recipe)
    drifting = dg.define_asset_job(
        DRIFT,
        dg.AssetSelection.assets(drift.ASSET),
        executor_def=in_process,
        description="The champion on held-out text that came since the last look.",
    )
    checked = dg.define_asset_job(
        checklists.JOB,
        dg.AssetSelection.groups(checklists.GROUP),
        executor_def=in_process,
        description="Evaluates the checklists.",
    )
    released = [
        sensors.approval(recipe, workspace, release),
        sensors.canary(recipe, workspace, release),
        sensors.mirror(recipe, workspace),
    ]
    return dg.Definitions(
        assets=[
            *(asset(stage, pages, nightly=stage.group in CORPUS_GROUPS) for stage in stages(recipe)),
            *(asset(stage, pages) for stage in (*watching, *further)),
            service_levels.asset(recipe),
            *checklists.assets(recipe, workspace),
        ],
        asset_checks=[marks_check],
        jobs=[
            *(corpus, candidate, levels, checked),
            *([] if recipe.release is None else [release]),
            *([drifting] if watching else []),
        ],
        schedules=[
            *(sensors.nightly(corpus), sensors.hourly(levels)),
            *([sensors.daily(drifting)] if watching else []),
            *schedules.of_reviews(workspace),
            checklists.schedule(checked),
        ],
        sensors=[
            sensors.arrival(recipe, workspace, corpus),
            *(released if recipe.release else []),
            *([sensors.drift(workspace)] if watching else []),
            sensors.feed(recipe, workspace),
            sensors.pages(workspace),
            sensors.failure(workspace),
            sensors.automation(),
        ],
        resources={"plinth": PlinthResource.over(str(workspace), compute), "session": Session(), **(resources or {})},
        executor=in_process,
    )


@dg.definitions
def definitions() -> dg.Definitions:
    """The code location, from the environment."""
    workspace = folder_of(os.environ.get("PLINTH_WORKSPACE", "workspace")).absolute()
    recipe = load(find(os.environ["PLINTH_RECIPE"]))
    compute = Compute.from_environment()
    further, pages = experiments.remembered(workspace), os.environ.get("PLINTH_PAGES", "")
    return build(recipe, workspace, compute=compute, further=further, pages=pages)
