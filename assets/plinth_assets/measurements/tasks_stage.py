"""The assets `task_files/{set}` and `tasks/{set}`: the files of a set of tasks for lm-evaluation-harness, and the
checkpoint's scores on them. Scored items can be recomputed, compared between two models, and shown on the evaluation
page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, groups
from plinth.evaluation.measurement import Figures, ModelScores, Stats
from plinth.evaluation.parameters import TaskSet
from plinth.evaluation.tasks import job
from plinth.evaluation.tasks.job import ITEMS
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part
from plinth.report.evaluation import MeasureGroup, Section, measure
from plinth.storage.parts import read_table
from plinth.storage.store import Store
from plinth_assets.framework import Inputs, Stage, Suite, between, rows_between, shared_owner
from plinth_assets.framework.present import interval, markdown, table


def stages(recipe: Recipe) -> list[Stage]:
    """Return two stages per task set: one for its files, and one for the checkpoint's scores."""
    sets = recipe.evaluation.tasks
    return [stage(recipe, name, given) for name, given in sets.items() for stage in (_files, _tasks)]


def _files(recipe: Recipe, name: str, given: TaskSet) -> Stage:
    return Stage(
        asset=f"task_files/{name}",
        deps=(),
        make=lambda ctx, inputs, _: job.task_files(ctx, name, given.include),
        outside=partial(lists.digest, location=given.include),
        version=job.FILES_VERSION,
        params={},
        group="sources",
        description=f"Files of the task set `{name}`: YAML, functions and data in its folder.",
        owner=shared_owner(recipe),
        kinds=("yaml",),
    )


def _tasks(recipe: Recipe, name: str, given: TaskSet) -> Stage:
    return Stage(
        asset=f"tasks/{name}",
        deps=("checkpoint", f"task_files/{name}"),
        make=lambda ctx, inputs, _: job.run(ctx, name, given, inputs["checkpoint"], inputs[f"task_files/{name}"]),
        version=job.VERSION,
        params=given.model_dump(mode="json", exclude={"include"}),
        libraries=fingerprint.libraries(*job.LIBRARIES),
        group="evaluation",
        description=f"Results of the task set `{name}` in lm-evaluation-harness: every item, and an interval for every "
        "metric.",
        owner=shared_owner(recipe),
        kinds=("pytorch",),
        schema=ITEMS,
        suite=_suite,
        present=_present,
        pool="training",
    )


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Check that every task has items. Report damaged items, and warn if there are many."""
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


#: Metrics derived from likelihoods by lm-evaluation-harness; bits of the correct answer are a separate measure.
_RIGHT_ANSWER = "bits per byte of the right answer"
_TASK_COLUMNS = ("document", "hash", "filter", "metric", "score", "weight", "bits", "bytes", "reason")
#: Metrics of lm-evaluation-harness where lower is better; for all others, higher is.
LOWER_IS_BETTER = ("bits_per_byte", "byte_perplexity", "word_perplexity", "perplexity", "ter", "brier_score")


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    counted = {}
    for part in made.parts:
        rows = read_table(ctx.store, part, ["document", "reason"])
        lost = pc.is_valid(rows["reason"])
        documents = len(pc.unique(rows.filter(pc.invert(lost))["document"]))
        counted[part.name.removesuffix(".parquet")] = {"documents": documents, "damaged": pc.sum(lost).as_py() or 0}
    names = ("documents", "damaged")
    return {task: {name: one[name] for name in names} for task, one in made.stats["tasks"].items()}, counted


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Yield the paired items of two models for every task metric that is a mean or a ratio over items, and for the bits
    of right answers."""
    ours, theirs = ({part.name.removesuffix(".parquet"): part for part in made.parts} for made in (a, b))
    for task in sorted(set(ours) | set(theirs)):
        known = {at: _asked(store, part[task]) for at, part in enumerate((ours, theirs)) if task in part}
        none = next(iter(known.values())).slice(0, 0)
        sides = [known.get(at, none) for at in (0, 1)]
        yield from _right_answers(task, sides)
        scored = [side.filter(pc.is_valid(side["score"])) for side in sides]
        for metric, own in groups("measure", *scored):
            ratio = all(side["weight"].null_count == 0 for side in own)
            pair = [chosen(side, "score", "weight" if ratio else None, item="hash") for side in own]
            fewer = not _higher(ours.get(task) or theirs[task], metric)
            yield align("tasks", f"{task}: {metric}", *pair, fewer_is_better=fewer, ratio=ratio)


def _asked(store: Store, part: Part) -> pa.Table:
    """Return the rows of undamaged items, with the name of their measure (metric and filter)."""
    table = read_table(store, part, _TASK_COLUMNS)
    table = table.filter(pc.and_(pc.is_null(table["reason"]), pc.is_valid(table["document"])))
    plain = pc.equal(table["filter"], "none")
    named = pc.if_else(plain, table["metric"], pc.binary_join_element_wise(table["metric"], table["filter"], ","))
    return table.append_column("measure", named)


def _right_answers(task: str, sides: Sequence[pa.Table]) -> Iterator[Pairs]:
    """Yield the paired bits of right answers. The rows of every metric repeat these bits, so only the first metric is
    read."""
    known = [side.filter(pc.and_(pc.is_valid(side["bits"]), pc.greater(side["bytes"], 0))) for side in sides]
    if any(len(side) for side in known):
        pair = []
        for side in known:
            first = pc.min(side["measure"])
            pair.append(chosen(side.filter(pc.equal(side["measure"], first)), "bits", "bytes", item="hash"))
        yield align("tasks", f"{task}: {_RIGHT_ANSWER}", *pair, fewer_is_better=True, ratio=True)


def _higher(part: Part, measure: str) -> bool:
    return bool(part.stats["metrics"].get(measure, {}).get("higher_is_better", True))


def scores(made: Manifest) -> ModelScores:
    """Return every metric of every task, for MLflow."""
    dataset, digest = next((key, value) for key, value in made.inputs.items() if key.startswith("task_files/"))
    groups = {f"{made.asset}/{task}": facts["metrics"] for task, facts in made.stats["tasks"].items()}
    return ModelScores(dataset, digest, groups)


def section(name: str, stats: Stats) -> Section:
    """Build the page section with every metric of the tasks in a set."""
    groups = []
    for metric in sorted({metric for facts in stats["tasks"].values() for metric in facts["metrics"]}):
        measures = [
            measure(task, facts["metrics"][metric])
            for task, facts in stats["tasks"].items()
            if metric in facts["metrics"]
        ]
        better = "lower" if metric in LOWER_IS_BETTER else "higher"
        groups.append(MeasureGroup(title=metric, unit=metric, better=better, measures=tuple(measures)))
    damaged = f" {stats['damaged']:,} damaged items were excluded." if stats["damaged"] else ""
    return Section(
        key=f"tasks-{name}",
        title=f"Tasks: {name}",
        lead="Tasks of lm-evaluation-harness, from files of this workspace. Intervals are computed over "
        f"items.{damaged}",
        groups=tuple(groups),
    )
