"""Parts collected in a separate process: releases and canaries from the signed history, and service levels.

These parts load about 80 MiB that the exporter itself does not need (see `parts`). MLflow is not queried.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from plinth.compute.context import Context
from plinth.compute.worker_process import Handler, ItemWatch
from plinth.errors import MissingError, PlinthError, TrustError
from plinth.provenance.impact import descent
from plinth.storage.workspace import Workspace
from plinth.training.sinks.run_metrics import MetricSample
from plinth_jobs.recipes import recall
from plinth_ops.service_levels import objectives
from plinth_registry import releases, taint
from plinth_registry.canary.watch import observe
from plinth_registry.releases import ReleaseHistory

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe


def release_samples(ctx: Context) -> Iterator[MetricSample]:
    """Yield the versions and movements of every release, the number of taints, and whether the release history
    verifies."""
    try:
        history, marks = releases.history(ctx), taint.records(ctx)
    except TrustError:
        yield MetricSample("plinth_trust_broken", (), 1.0)
        yield MetricSample("plinth_taints", (), 0.0)
        return
    yield MetricSample("plinth_trust_broken", (), 0.0)
    yield MetricSample("plinth_taints", (), float(len(marks)))
    unfit = _unfit(ctx, marks)
    for model in sorted({record.model for record in history}):
        yield from _release(model, history.of(model), unfit)


def canary_samples(ctx: Context, recipe: Callable[[], Recipe | None]) -> Iterator[MetricSample]:
    """Yield the number of pairs and the loss bounds of the current canary of the recipe's release.

    Args:
        recipe: function that loads the recipe. It is called only if there is a canary, because recipe and comparison
            need 80 MB of memory.

    Raises:
        PlinthError: the recipe cannot be read.
        TrustError: the release's policy or history fails verification.
    """
    history = releases.history(ctx)
    if all(history.of(model).standing.canary is None for model in {record.model for record in history}):
        return
    named = recipe()
    if named is None or named.release is None:
        return

    found = observe(ctx, named)
    if found is None:
        return
    status = found.status
    yield MetricSample("plinth_canary_timestamp_seconds", (status.release,), _seconds(status.since))
    pairs = {stream.name: len(stream.values) for stream in found.streams}
    for stream in status.trial.streams:
        yield MetricSample("plinth_canary_pairs", (status.release, stream.name), float(pairs[stream.name]))
        if stream.worse is not None:
            yield MetricSample("plinth_canary_worse_bound", (status.release, stream.name), stream.worse.high)


def level_samples(ctx: Context) -> Iterator[MetricSample]:
    """Yield the current value and objective of every service level indicator.

    This is slow, because all timelines are read in full.

    Raises:
        PlinthError: a timeline or the objectives cannot be read.
    """
    for one in objectives.measure(ctx, objectives.load(ctx.workspace), time.time(), objectives.completeness(ctx)):
        yield MetricSample("plinth_sli_objective_ratio", (one.indicator,), one.target)
        if one.value is not None and one.spent is not None:
            yield MetricSample("plinth_sli_ratio", (one.indicator,), one.value)
            yield MetricSample("plinth_error_budget_spent_ratio", (one.indicator,), one.spent)


def _release(model: str, records: ReleaseHistory, unfit: frozenset[str]) -> Iterator[MetricSample]:
    held = records.standing
    for place, version in held.aliases.items():
        if version is not None:
            yield MetricSample("plinth_release_version", (model, place), float(version))
    yield MetricSample("plinth_release_timestamp_seconds", (model,), _seconds(records[-1].at))
    for action, times in sorted(Counter(record.action for record in records).items()):
        yield MetricSample("plinth_release_movements_total", (model, action), float(times))
    champions = [record.candidate.get("checkpoint") for record in records if record.version == held.champion]
    if held.champion is not None:
        yield MetricSample("plinth_champion_tainted", (model,), float(any(one in unfit for one in champions)))


def _unfit(ctx: Context, marks: tuple[taint.Taint, ...]) -> frozenset[str]:
    """Return the digests of tainted artifacts and of everything derived from them."""
    marked = [digest for one in marks for digest in ([one.target] if one.kind == "manifest" else one.holders)]
    return frozenset((*marked, *descent(ctx, marked).digests)) if marked else frozenset()


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def serve(watch: ItemWatch, workspace: str, recipe: str = "") -> Handler:
    """Return the request handler of the process that collects parts.

    Args:
        workspace: folder of the workspace.
        recipe: recipe file that names the release whose canary is watched. Default: the recipe of the last run.
    """
    ctx = Context(Workspace(workspace))

    def loaded() -> Recipe | None:
        from plinth_jobs.recipes import load

        try:
            return load(Path(recipe) if recipe else recall(ctx.workspace.root))
        except MissingError:
            return None

    return handler(
        watch,
        {
            "registry": lambda: release_samples(ctx),
            "canary": lambda: canary_samples(ctx, loaded),
            "service levels": lambda: level_samples(ctx),
        },
    )


def handler(watch: ItemWatch, parts: Mapping[str, Callable[[], Iterable[MetricSample]]]) -> Handler:
    """Return a handler that answers a request for a part with samples or an error.

    A programming error ends the process.
    """

    def answers(items: Iterator[memoryview]) -> Iterator[bytes]:
        for item in items:
            watch.begin()
            yield _answer(parts[bytes(item).decode()])
            watch.end()

    return answers


def _answer(collect: Callable[[], Iterable[MetricSample]]) -> bytes:
    try:
        return json.dumps({"samples": list(collect())}).encode()
    except (PlinthError, OSError, ValueError) as error:
        return json.dumps({"fault": str(error)}).encode()
