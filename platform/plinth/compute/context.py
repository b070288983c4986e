"""The runtime context of a stage, the run of its items through the step cache, and the cost of its tasks.

A stage divides its work into items, calls `run_items`, and returns a `manifest`; a stage that needs no workers calls
`cached` instead. Only items without a record are run, so a crashed stage resumes where it stopped, and a new input file
costs only its own item. Context and costs are excluded from content hashes.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.engine import Engine, InlineEngine
from plinth.compute.progress import Progress, Silent
from plinth.errors import PlinthError, RecipeError
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.atomic import write_bytes
from plinth.storage.state import State, StepCache
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace

# Share of a stage's tasks that one of several processes runs first, for schedulers that provide only process indices.
#
# Processes 0 … n-1 run the same command on the same workspace and do not communicate. Each process first runs its own
# share of a stage, then the tasks of other shares that have no record yet, last tasks first. So a process that was
# killed or has not started delays the others but does not stop them. A task that is run twice gives the same record,
# and the first record stays.


@dataclass(frozen=True)
class TaskShare:
    """Index of one process in an array job of `count` processes, counted from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> TaskShare | None:
        """Parse `i/n`; return None for an empty string.

        Raises:
            RecipeError: the text is not an index below a count.
        """
        if not text:
            return None
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise RecipeError(
                f"no part {text!r}",
                expected="i/n with i from 0 to n-1, such as --part 0/8",
                remedy="in an array job: --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT, with --array=0-7",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def order(self, tasks: list[int]) -> list[int]:
        """Return task numbers in the order in which this process works on them.

        The process starts with its own tasks. It then takes the tasks of each following process from the end, so that
        two processes meet in the middle.
        """

        def place(task: int) -> tuple[int, int]:
            away = (task - self.index) % self.count
            return away, -task if away else task

        return sorted(tasks, key=place)


class StepCost(Frozen):
    """Cost of a step's tasks, and the number of items whose results were already in the step cache. `tokens` are those
    of language models at endpoints, and `endpoint_price` is their price."""

    tasks: int = 0
    spared: int = 0
    cpu_s: float = 0.0
    opened: int = 0
    written: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    tokens: int = 0
    endpoint_price: float = 0.0

    def __add__(self, other: StepCost) -> StepCost:
        return StepCost(**{name: value + getattr(other, name) for name, value in self})

    @property
    def operations(self) -> int:
        """Number of files opened or written in the store."""
        return self.opened + self.written


# Static configuration (the recipe's frozen parameters) and the runtime context are separate types:
# a stage function is `run(ctx, params, inputs…) -> Manifest`.


@dataclass
class Context(State):
    """Workspace, engine, progress display and task order of a stage, with the cost and the times of its tasks by step.

    `requested_by` is the person who requested the run, if known; `run` is the orchestrator's run id, if any, and
    `recipe` the name of its recipe. `programs` run the named annotators outside this process; each gets the path of a
    description of its work (`plinth.corpus.annotate.external`). A step's times are Unix seconds: when its first tasks
    began, and its last ended.
    """

    engine: Engine = field(default_factory=InlineEngine)
    progress: Progress = field(default_factory=Silent)
    share: TaskShare | None = None
    requested_by: str | None = None
    run: str = ""
    recipe: str = ""
    programs: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    costs: defaultdict[str, StepCost] = field(default_factory=lambda: defaultdict(StepCost))


TaskFn = Callable[[Store, Any], tuple[Part, ...]]


@dataclass(frozen=True)
class Item:
    """Unit of work whose result is cached.

    Args:
        inputs: digests that identify the inputs of the task, in order.
        task: small picklable record for the task function.
        rows: number of documents, for the progress bar.
        also: keys of other steps that the task may complete along the way. The task then returns its own part and one
            part per key, which are recorded under these keys; otherwise it returns only its own part.
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
    unit: str = "",
    timeout_s: float | None = None,
) -> list[tuple[Part, ...]]:
    """Return the parts of every item in item order; parts that are not in the step cache are computed. `unit` is the
    plural noun of the items' rows, for progress.

    Raises:
        PlinthError: the error of the task function; finished items keep their records.
    """
    began = time.time()
    keys = [step.key(item.inputs) for item in items]
    found = ctx.cache.get_many(keys)
    missing = [i for i, parts in enumerate(found) if parts is None]
    ctx.costs[step.name] += StepCost(spared=len(items) - len(missing))
    if ctx.share:
        missing = ctx.share.order(missing)
    if missing:
        with ctx.progress.meter(label, sum(items[i].rows for i in missing), unit) as meter:

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
    ctx.times[step.name] = ctx.times.get(step.name, (began,))[0], time.time()
    return [parts for parts in found if parts is not None]


def cached(
    ctx: Context, step: Step, inputs: Iterable[Manifest | str], make: Callable[[], Sequence[Part]]
) -> tuple[Part, ...]:
    """Return the parts of a step from the step cache, or compute them in this process.

    Args:
        inputs: manifests or digests that identify the inputs of the step, in order.
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
    """Return the manifest of an asset: its step, its inputs by digest, and its uniquely named parts in order.

    Raises:
        ValueError: the number in a part's name is not its index. A cached part keeps its name from the run that
            produced it, and later runs may insert parts before it. `renamed` assigns the current name.
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
        raise ValueError(f"the number in the part name {made.misplaced} of {asset} is not the part's position")
    return made


def renamed(parts: Iterable[Part], stem: str) -> list[Part]:
    """Return the parts under names numbered in order (`stem-00000.parquet`), as manifests require."""
    return [
        part.model_copy(update={"name": f"{stem}-{index:05d}{Path(part.name).suffix}"})
        for index, part in enumerate(parts)
    ]


def add_stats(parts: Iterable[Part]) -> dict[str, Any]:
    """Return the sums of the parts' numeric statistics by name; nested mappings are summed recursively."""
    return sum_stats(part.stats for part in parts)


def sum_stats(many: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of numbers by name; nested mappings are summed recursively, other values are omitted."""
    total: dict[str, Any] = {}
    for stats in many:
        _add(total, stats)
    return total


def _add(total: dict[str, Any], stats: Mapping[str, Any]) -> None:
    for key, value in stats.items():
        if isinstance(value, (int, float)):  # nearly all values are numbers, and the test for a mapping is slow
            total[key] = total.get(key, 0) + value
        elif isinstance(value, Mapping):
            _add(total.setdefault(key, {}), value)


def _call(
    fn: TaskFn, step: str, libraries: Mapping[str, str], store: Store, shared: StepCache | None, work: tuple[str, Any]
) -> tuple[tuple[Part, ...], StepCost]:
    """Run a task in a worker; return its parts and their cost.

    `shared` is the step cache if other processes may already have done the task.
    """
    fingerprint.require_libraries(step, libraries)
    key, task = work
    if shared and (done := shared.get(key)) is not None:
        return done, StepCost()
    with store.for_task() as own:
        try:
            return measured(fn, own, task)
        except PlinthError:
            # Another process may have finished the task and removed temporary files that it needed.
            if shared and (done := shared.get(key)) is not None:
                return done, StepCost()
            raise


# Costs of the tasks of a stage: CPU time, store operations, bytes. They are recorded with the results for `plinth
# corpus scale` and excluded from content hashes.
#
# CPU time covers the worker and the processes it started. Bytes read cover read calls to the system, but not
# memory-mapped files.

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class AssetCost(Frozen):
    """Cost of one materialization of an asset: its tasks by step, the driver's own CPU time, and wall-clock time."""

    asset: str
    steps: dict[str, StepCost]
    driver_cpu_s: float
    wall_s: float
    input_bytes: int = 0  # size of its input parts; 0 if not recorded
    run: str = ""  # id of the orchestrator's run; empty if not recorded

    @property
    def tasks(self) -> StepCost:
        """Cost of the tasks of all steps."""
        return sum(self.steps.values(), StepCost())


def measured(fn: Callable[[Store, Any], Any], store: Store, task: Any) -> tuple[Any, StepCost]:
    """Return a task's result and its cost."""
    cpu_s, read_bytes = _cpu_s(), _read_bytes()
    found = fn(store, task)
    return found, StepCost(
        tasks=1,
        cpu_s=_cpu_s() - cpu_s,
        opened=store.opened,
        written=store.written,
        read_bytes=_read_bytes() - read_bytes,
        written_bytes=store.written_bytes,
    )


def save(workspace: Workspace, cost: AssetCost) -> None:
    """Save the cost of an asset's last materialization."""
    write_bytes(_path(workspace, cost.asset), cost.model_dump_json().encode())


def load(workspace: Workspace, asset: str) -> AssetCost | None:
    """Return the cost of an asset's last materialization, or None if it is not recorded."""
    path = _path(workspace, asset)
    return AssetCost.model_validate_json(path.read_bytes()) if path.exists() else None


def _path(workspace: Workspace, asset: str) -> Path:
    return workspace.costs / f"{asset}.json"


def _cpu_s() -> float:
    """Return the CPU time of this process, of the children that it waited for, and of its live children."""
    spent = sum(os.times()[:4])
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no children; skip the search in /proc, which costs more than a small task
        return spent
    return spent + sum(map(_of_child, _children(os.getpid())))


def _children(pid: int) -> list[int]:
    found = list[int]()
    with suppress(OSError):  # the child has ended, or the system has no such list
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _of_child(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) * _TICK_S + sum(map(_of_child, _children(pid)))
    return 0.0


def _read_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/io").read_text().split()[1])
    return 0
