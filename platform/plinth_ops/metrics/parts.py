"""Parts of a workspace's exporter, and the child process that collects the large parts.

Only new lines of timelines and `alerts.jsonl` are read.

    part due ──▶ request ──▶ (child) samples or error ──▶ taken at the next refresh; the child exits when idle

The exporter keeps only the data that it needs every few seconds. The code that reads signatures, lineage and whole
timelines is not imported here: it runs in a child process (`signed`), which frees its memory on exit. The other parts
are refreshed in the meantime. The child is a worker of `plinth.compute`; the kernel ends the child when the exporter
ends. A part fails with an error if it exceeds its timeout or the child dies; pending requests for other parts are
repeated.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from plinth import processes
from plinth.compute.context import Context
from plinth.compute.worker import Program, Worker, wait
from plinth.errors import PlinthError, WorkerError
from plinth.operation import spending
from plinth.operation.spending_ledger import MICROS, Ledger
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.run_state import RunState, RunWatch, TimelineFile, run_state
from plinth.training.sinks.run_metrics import MetricSample, RunFollower
from plinth.training.telemetry.timeline import TimelineReader
from plinth_jobs.instance import ALARMS, HEARTBEAT, RELEASE_JOBS
from plinth_ops.metrics.exporter import Exporter, ExportPart

#: Seconds after its last event for which a run is exported.
KEPT_S: Final = 86400.0

#: Interval at which the launcher of a run is queried, in seconds: a killed supervisor raises an alert within a minute.
ASKED_EVERY_S: Final = 15.0
#: Maximum seconds that one collection spends on queries to launchers; the rest is queried in the next collection.
ASKING_S: Final = 2.0


class RunsCollector:
    """Collector of the metrics of all runs of a workspace.

    Args:
        folder: `runs/` of the workspace.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._watch = folder, RunWatch(folder, KEPT_S)
        self._followed: dict[str, RunFollower] = {}
        self._seen: dict[str, TimelineFile] = {}  # the timeline when it was read
        self._samples: dict[str, list[MetricSample]] = {}  # by exported run
        self._last: dict[str, float] = {}  # time of the last event
        self._configs: dict[str, RunConfig] = {}  # by followed run
        self._polled: dict[str, float] = {}  # time of the last query to the launcher
        self._read = 0

    @property
    def read_bytes(self) -> int:
        """Number of bytes that were read from timelines and samples so far."""
        return self._read + sum(one.read_bytes for one in self._followed.values())

    def collect(self) -> Iterator[MetricSample]:
        """Yield metric samples of the runs with an event in the last day. Unchanged timelines are not read again."""
        now, timelines = time.time(), self._watch.look().timelines()
        for gone in self._seen.keys() - timelines.keys():
            self._forget(gone)
        for name, timeline in sorted(timelines.items()):
            if now - timeline.written_ns / 1e9 >= KEPT_S:
                self._forget(name)
                continue
            if self._seen.get(name) != timeline:
                self._seen[name] = timeline
                self._samples[name] = self._look(name)
            if name in self._followed and time.time() - now < ASKING_S and self._is_lost(name):
                self._followed[name].state.lose()
                self._samples[name] = list(self._followed[name].state.samples())
                self._unfollow(name)
            if now - self._last.get(name, 0.0) < KEPT_S:
                yield from self._samples[name]

    def _look(self, name: str) -> list[MetricSample]:
        """Return the current samples of a run, or the previous samples if the run's files cannot be read."""
        try:
            follower = self._followed.get(name) or self._follow(name)
            follower.poll()
        except (PlinthError, ValueError, KeyError, TypeError, OSError):  # one broken run hides no other
            return self._samples.get(name, [])
        self._last[name] = follower.state.last
        if not follower.state.active:  # freed here; read again when another job starts
            self._unfollow(name)
        return list(follower.state.samples())

    def _is_lost(self, name: str) -> bool:
        """Return True if the launcher reports the run as lost. Queries to the launcher are rate-limited."""
        now = time.time()
        if now - self._polled.get(name, 0.0) < ASKED_EVERY_S:
            return False
        self._polled[name] = now
        with suppress(PlinthError):
            return run_state(self._configs[name]) is RunState.LOST
        return False

    def _follow(self, name: str) -> RunFollower:
        self._configs[name] = configuration.load(RunDirectory(self._folder / name).config)
        self._followed[name] = RunFollower(self._configs[name])
        return self._followed[name]

    def _unfollow(self, name: str) -> None:
        if follower := self._followed.pop(name, None):
            self._read += follower.read_bytes
        self._configs.pop(name, None)

    def _forget(self, name: str) -> None:
        self._unfollow(name)
        for known in (self._seen, self._samples, self._last, self._polled):
            known.pop(name, None)


class WorkspaceState:
    """Collector of the disk, alarm and orchestrator metrics. Only new lines of `alerts.jsonl` are read."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._alarms = workspace, TimelineReader(workspace.root / ALARMS)
        self._counts, self._last = Counter[str](), dict[str, float]()

    def collect(self) -> Iterator[MetricSample]:
        """Yield the current samples of disk, alarms and orchestrator."""
        disk = shutil.disk_usage(self._workspace.root)
        yield MetricSample("plinth_workspace_free_ratio", (), disk.free / disk.total)
        heartbeat = self._workspace.dagster / HEARTBEAT
        if heartbeat.exists():
            yield MetricSample("plinth_orchestrator_timestamp_seconds", (), heartbeat.stat().st_mtime)
        for line in self._alarms.poll():
            source = "release" if line["job"] in RELEASE_JOBS else "pipeline"
            self._counts[source] += 1
            self._last[source] = float(line["time"])
        for source in ("pipeline", "release"):
            yield MetricSample("plinth_alarms_total", (source,), float(self._counts[source]))
        for source, when in self._last.items():
            yield MetricSample("plinth_alarm_timestamp_seconds", (source,), when)


class CorpusState:
    """Collector of the metrics of published assets. Each manifest is read once."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: dict[str, tuple[str, int, int]] = {}  # asset -> digest, rows, bytes

    def collect(self) -> Iterator[MetricSample]:
        """Yield the current samples of published assets and of the funnel."""
        for ref in self._ctx.refs.all():
            known = self._known.get(ref.asset)
            if known is None or known[0] != ref.digest:
                manifest = self._ctx.refs.load(ref.digest)
                known = self._known[ref.asset] = ref.digest, manifest.rows, manifest.bytes
            yield MetricSample("plinth_asset_rows", (ref.asset,), float(known[1]))
            yield MetricSample("plinth_asset_bytes", (ref.asset,), float(known[2]))
            if ref.asset == "funnel":
                yield from self._funnel(ref.digest)

    def _funnel(self, digest: str) -> Iterator[MetricSample]:
        for stage in self._ctx.refs.load(digest).stats["total"]["stages"]:
            yield MetricSample("plinth_documents_in", (stage["stage"],), float(stage["documents_in"]))
            for reason, removed in stage["reasons"].items():
                yield MetricSample("plinth_documents_removed", (stage["stage"], reason), float(removed["documents"]))


def budget(ctx: Context) -> Iterator[MetricSample]:
    """Yield each cost limit with the amount used, and the spending by team and experiment.

    Raises:
        StorageError: the ledger cannot be reached.
    """
    place = spending.ledger_place(ctx.workspace, spending.load(ctx.workspace))
    if "://" not in place and not Path(place).exists():  # without reservations there is no ledger
        return
    ledger = Ledger(place)
    for limit, counted in ledger.limits(time.time()):
        assert limit.amount is not None
        labels = limit.scope, limit.name, limit.period
        yield MetricSample("plinth_budget_limit", labels, limit.amount / MICROS)
        yield MetricSample("plinth_budget_used", labels, counted / MICROS)
    for (team, experiment), (spent, reserved) in ledger.totals(spending.workspace_name(ctx.workspace)).items():
        yield MetricSample("plinth_spent", (team, experiment), spent / MICROS)
        yield MetricSample("plinth_reserved", (team, experiment), reserved / MICROS)


#: Timeout of a part in seconds, including the start of the process.
LIMIT_S: Final = 120.0


class PartProcess:
    """Process that collects parts of the metrics one after the other and exits when idle.

    Args:
        program: program of the worker, with the handler of `signed.handler`.
        limit_s: timeout of a part, in wall-clock seconds.
    """

    def __init__(self, program: Program, limit_s: float = LIMIT_S) -> None:
        self._program, self._limit_s = program, limit_s
        self._worker: Worker | None = None
        self._asked, self._since = deque[str](), 0.0
        self._answers: dict[str, bytes | PlinthError] = {}

    def collect(self, part: str) -> list[MetricSample] | None:
        """Return the samples of a part, or None if the collection still runs.

        If the result is None, call this method again at the next refresh.

        Raises:
            PlinthError: the part failed or exceeded its timeout, or the process ended.
        """
        self._receive()
        if part in self._answers:
            return _samples(self._answers.pop(part))
        if part not in self._asked:
            self._ask(part)
        return None

    def end(self) -> None:
        """Kill the process, if any; a later call of `collect` starts another process."""
        self._asked.clear()
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _ask(self, part: str) -> None:
        if self._worker is None:
            self._worker, self._since = Worker(self._program), time.monotonic()
        self._worker.send([part.encode()])
        self._asked.append(part)

    def _receive(self) -> None:
        if self._worker is None:
            return
        try:
            while wait([self._worker], 0):
                for answer in self._worker.receive():
                    self._answers[self._asked.popleft()] = answer
                    self._since = time.monotonic()
        except WorkerError as error:
            self._fail(error)
        except EOFError:
            self._fail(PlinthError("the collecting process has ended", found=f"status {self._worker.died()}"))
        if self._asked and time.monotonic() - self._since > self._limit_s:
            self._fail(PlinthError(f"timeout after {self._limit_s:g} s"))
        if not self._asked:
            self.end()

    def _fail(self, fault: PlinthError) -> None:
        """Record the error of the current part. Other pending requests are dropped; their callers repeat them."""
        if self._asked:
            self._answers[self._asked[0]] = fault
        self.end()


def _samples(answer: bytes | PlinthError) -> list[MetricSample]:
    if isinstance(answer, PlinthError):
        raise answer
    content = json.loads(answer)
    if "fault" in content:
        raise PlinthError(content["fault"])
    return [MetricSample(name, tuple(labels), value) for name, labels, value in content["samples"]]


#: Collection interval of releases whose files did not change, in seconds: a head expires without a change, and release
#: pages have a response target of three minutes. Each collection takes a process and one CPU second.
RELEASES_S = 120.0
#: Collection interval of parts that are read in full; a multiple of the other, so that one process serves both.
SELDOM_S = 3 * RELEASES_S


def exporter(ctx: Context, recipe: Path | None = None, say: Callable[[str], None] | None = None) -> Exporter:
    """Return the exporter of a workspace with all its parts.

    Args:
        recipe: recipe file that names the release whose canary is watched. Default: the recipe of the last run.
        say: receives a message when a part starts to fail. Default: print to stderr.
    """
    space = ctx.workspace
    runs = RunsCollector(space.runs)
    arguments = (str(space.root), *([str(recipe.absolute())] if recipe else []))
    needs = (*processes.STORES, *processes.SERVICES, *processes.KEYS)
    apart = PartProcess(Program("plinth_ops.metrics.signed:serve", arguments, needs=needs))
    signed = (space.releases, space.taint, space.trust, space.policies)
    parts = (
        ExportPart("runs", 0.0, runs.collect),
        ExportPart("workspace", 0.0, WorkspaceState(space).collect),
        ExportPart("corpus", 60.0, CorpusState(ctx).collect),
        ExportPart("budget", 60.0, lambda: budget(ctx)),
        ExportPart("registry", RELEASES_S, lambda: apart.collect("registry"), lambda: _states(signed)),
        ExportPart("canary", SELDOM_S, lambda: apart.collect("canary")),
        ExportPart("service levels", SELDOM_S, lambda: apart.collect("service levels")),
    )
    return Exporter(parts, lambda: runs.read_bytes, say or _printed, apart.end)


def _states(folders: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return the path, size and modification time of every file. A change means a new signature or tampering."""
    found = []
    for folder in folders:
        for above, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(above, name)
                with suppress(FileNotFoundError):  # replaced meanwhile
                    state = os.lstat(path)
                    found.append((path, state.st_size, state.st_mtime_ns))
    return found


def _printed(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
