"""`task_files/{set}` and `tasks/{set}`: tasks of lm-evaluation-harness on a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.evaluation.parameters import TaskSet
from plinth.evaluation.tasks import job
from plinth.evaluation.tasks.exchange import ITEMS
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import interval, markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """Two assets per set of tasks."""
    sets = recipe.evaluation.tasks
    return [stage(recipe, name, given) for name, given in sets.items() for stage in (_files, _tasks)]


def _files(recipe: Recipe, name: str, given: TaskSet) -> Stage:
    return Stage(
        asset=f"task_files/{name}",
        deps=(),
        make=partial(_copy, name, given),
        outside=partial(_outside, given.include),
        version=job.FILES_VERSION,
        params={},
        group="sources",
        description=f"Task files of `{name}`: YAML, functions and data, as they lie in the folder.",
        owner=shared_owner(recipe),
        kinds=("yaml",),
    )


def _tasks(recipe: Recipe, name: str, given: TaskSet) -> Stage:
    return Stage(
        asset=f"tasks/{name}",
        deps=("checkpoint", f"task_files/{name}"),
        make=partial(_run, name, given),
        version=job.VERSION,
        params=given.model_dump(mode="json", exclude={"include"}),
        libraries=fingerprint.libraries(*job.LIBRARIES),
        group="evaluation",
        description=f"Tasks of `{name}` through lm-evaluation-harness: every item, and an interval for every metric.",
        owner=shared_owner(recipe),
        kinds=("pytorch",),
        schema=ITEMS,
        suite=_suite,
        present=_present,
        pool="training",
    )


def _outside(location: str, ctx: Context) -> str:
    return lists.digest(ctx, location)


def _copy(name: str, given: TaskSet, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return job.task_files(ctx, name, given.include)


def _run(name: str, given: TaskSet, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return job.run(ctx, name, given, inputs["checkpoint"], inputs[f"task_files/{name}"])


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Every task has items; damaged ones are reported, and where they are many somebody should look."""
    rows = [
        {"documents": one["documents"], "damaged_share": one["damaged"] / (one["documents"] + one["damaged"])}
        for one in made.stats["tasks"].values()
    ]
    expected = [rows_between(1), between("documents", 1, None), between("damaged_share", 0, 0.05, "warning")]
    return Suite(made.asset.replace("/", "-"), rows, expected)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [
        [task, metric, found["value"], interval(found), found["n"], facts["damaged"], facts["fewshot"]]
        for task, facts in made.stats["tasks"].items()
        for metric, found in facts["metrics"].items()
    ]
    header = ["task", "metric", "value", "95% interval", "items", "damaged", "examples"]
    return {"scores": markdown(table(header, rows)), "damaged_items": made.stats["damaged"]}
