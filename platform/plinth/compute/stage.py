"""Run a step over items through the step cache, and build the manifest of what came out.

A stage is: cut the work into items, `run_items`, `manifest`; or `cached`, where it is not for workers. Only items
without a record are run, so a crashed stage resumes at the part it was on and one new part costs only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.costs import StepCost, measured
from plinth.errors import PlinthError
from plinth.records import Manifest, Part, Step
from plinth.storage.state import StepCache
from plinth.storage.store import Store

TaskFn = Callable[[Store, Any], tuple[Part, ...]]


@dataclass(frozen=True)
class Item:
    """One unit of cached work.

    Args:
        inputs: digests that identify what the task reads, in order.
        task: a small picklable record for the task function.
        rows: how many documents it stands for, for the progress bar.
        also: keys of other steps that the task may do on the way. It then returns one part of its own and one for
            each of them, and those are recorded under their keys; or only its own.
    """

    inputs: tuple[str, ...]
    task: Any
    rows: int = 1
    also: tuple[str, ...] = ()


def run_items(
    ctx: Context,
    step: Step,
    fn: TaskFn,
    items: Sequence[Item],
    *,
    label: str,
    timeout_s: float | None = None,
) -> list[tuple[Part, ...]]:
    """The parts of every item, in item order; cached where a record exists, computed where not.

    Raises:
        PlinthError: what the task function raised; finished items keep their records.
    """
    keys = [step.key(item.inputs) for item in items]
    found = ctx.cache.get_many(keys)
    missing = [i for i, parts in enumerate(found) if parts is None]
    ctx.costs[step.name] += StepCost(spared=len(items) - len(missing))
    if ctx.share:
        missing = ctx.share.order(missing)
    if missing:
        with ctx.progress.meter(label, sum(items[i].rows for i in missing)) as meter:

            def done(position: int, answer: tuple[tuple[Part, ...], StepCost]) -> None:
                index, (parts, cost) = missing[position], answer
                ctx.costs[step.name] += cost
                if also := items[index].also:
                    for key, part in zip(also, parts[1:], strict=False):
                        ctx.cache.put(key, (part,))
                    parts = parts[:1]
                found[index] = ctx.cache.put(keys[index], parts)
                meter.advance(items[index].rows)

            call = partial(_call, fn, step.name, dict(step.libraries), ctx.store, ctx.cache if ctx.share else None)
            tasks = [(keys[i], items[i].task) for i in missing]
            for _ in ctx.engine.map(call, tasks, timeout_s=timeout_s, done=done):
                pass
    return [parts for parts in found if parts is not None]


def cached(
    ctx: Context, step: Step, inputs: Iterable[Manifest | str], make: Callable[[], Sequence[Part]]
) -> tuple[Part, ...]:
    """The parts of a step that is done in this process: cached where a record exists, made where not.

    Args:
        inputs: manifests or digests that identify what the step reads, in order.
    """
    key = step.key([one if isinstance(one, str) else one.digest for one in inputs])
    found = ctx.cache.get(key)
    return ctx.cache.put(key, make()) if found is None else found


def manifest(
    asset: str,
    step: Step,
    inputs: Mapping[str, Manifest | str],
    parts: Iterable[Part],
    stats: Mapping[str, Any] | None = None,
) -> Manifest:
    """A manifest with parts named uniquely, in order, and inputs given as manifests or digests.

    Raises:
        ValueError: the number in a part's name is not its place. What the step cache returns bears the name of the run
            that made it, and parts may have come before it since: `renamed` gives it the one that it has now.
    """
    made = Manifest(
        asset=asset,
        step=step.name,
        version=step.version,
        params=step.params,
        libraries=step.libraries,
        inputs={key: value if isinstance(value, str) else value.digest for key, value in inputs.items()},
        parts=tuple(parts),
        stats=dict(stats or {}),
    )
    if made.misplaced:
        raise ValueError(f"{made.misplaced} of {asset} is not in its place")
    return made


def renamed(parts: Iterable[Part], stem: str) -> list[Part]:
    """The parts under names numbered in order (`stem-00000.parquet`), as manifests want them."""
    return [
        part.model_copy(update={"name": f"{stem}-{index:05d}{Path(part.name).suffix}"})
        for index, part in enumerate(parts)
    ]


def add_stats(parts: Iterable[Part]) -> dict[str, Any]:
    """Sum numeric statistics of parts by name; nested mappings are summed inside."""
    return sum_stats(part.stats for part in parts)


def sum_stats(many: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum numbers by name; nested mappings are summed inside, everything else is left out."""
    total: dict[str, Any] = {}
    for stats in many:
        _add(total, stats)
    return total


def _add(total: dict[str, Any], stats: Mapping[str, Any]) -> None:
    for key, value in stats.items():
        if isinstance(value, (int, float)):  # nearly all are numbers, and asking for a mapping is slow
            total[key] = total.get(key, 0) + value
        elif isinstance(value, Mapping):
            _add(total.setdefault(key, {}), value)


def _call(
    fn: TaskFn, step: str, libraries: Mapping[str, str], store: Store, shared: StepCache | None, work: tuple[str, Any]
) -> tuple[tuple[Part, ...], StepCost]:
    """In a worker. `shared` is the step cache where other processes may have done the task by now."""
    fingerprint.require_libraries(step, libraries)
    key, task = work
    if shared and (done := shared.get(key)) is not None:
        return done, StepCost()
    with store.for_task() as own:
        try:
            return measured(fn, own, task)
        except PlinthError:
            # Another process may have finished the task and removed what it needs only until then.
            if shared and (done := shared.get(key)) is not None:
                return done, StepCost()
            raise
