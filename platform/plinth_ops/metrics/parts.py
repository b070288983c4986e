"""All parts of a workspace's exporter, and the process that collects the large ones.

    part due ──▶ asked ──▶ (child) samples or the fault ──▶ taken at the next refresh; nothing more to answer: it ends

The exporter holds what it needs every few seconds and little more. What reads signatures, lineage and whole timelines
is loaded by a process that gives its memory back with its end (`signed`), so none of it is imported here. The other
parts are refreshed meanwhile. The process is a worker of `plinth.compute`, which the kernel ends with its owner. A part
that takes too long, or on which the process dies, fails by name; the parts asked after it are asked again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from plinth import processes
from plinth.compute.context import Context
from plinth.compute.worker import Program, Worker, wait
from plinth.errors import PlinthError, WorkerError
from plinth.training.sinks.metric import MetricSample
from plinth_ops.metrics.collectors import CorpusState, RunsCollector, WorkspaceState, budget
from plinth_ops.metrics.exporter import Exporter, ExportPart

#: Seconds that a part may take, its share of the start included.
LIMIT_S: Final = 120.0


class PartProcess:
    """Collects parts by name, one after the other, in one process while there is any to collect.

    Args:
        program: whose handler is that of `handler`.
        limit_s: wall-clock seconds of a part.
    """

    def __init__(self, program: Program, limit_s: float = LIMIT_S) -> None:
        self._program, self._limit_s = program, limit_s
        self._worker: Worker | None = None
        self._asked, self._since = deque[str](), 0.0
        self._answers: dict[str, bytes | PlinthError] = {}

    def collect(self, part: str) -> list[MetricSample] | None:
        """The samples of a part, or None while they are collected: call again at the next refresh.

        Raises:
            PlinthError: the part failed, took too long, or the process ended.
        """
        self._receive()
        if part in self._answers:
            return _samples(self._answers.pop(part))
        if part not in self._asked:
            self._ask(part)
        return None

    def end(self) -> None:
        """Kill the process, if there is one; a later `collect` starts another."""
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
            self._fail(PlinthError("the process that collects it has ended", found=f"status {self._worker.died()}"))
        if self._asked and time.monotonic() - self._since > self._limit_s:
            self._fail(PlinthError(f"it takes longer than {self._limit_s:g} s"))
        if not self._asked:
            self.end()

    def _fail(self, fault: PlinthError) -> None:
        """Of the part in hand; those after it are forgotten, and asked again."""
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


#: Seconds between two collections of releases where none of their files changed: a head expires without a change, and
#: the pages of a release are promised within three minutes. Each takes a process and a second of the processor.
RELEASES_S = 120.0
#: Of what is read whole each time; a multiple of the other, so that one process serves both.
SELDOM_S = 3 * RELEASES_S


def exporter(ctx: Context, recipe: Path | None = None, say: Callable[[str], None] | None = None) -> Exporter:
    """All parts, each at its pace.

    Args:
        recipe: whose release's canary is watched; None: that of the last run of the workspace, if there was one.
        say: takes a sentence about a part that begins to fail; by default it is printed as an error.
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
    """Path, size and time of change of every file: another answer means that something was signed, or tampered with."""
    found = []
    for folder in folders:
        for above, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(above, name)
                with suppress(FileNotFoundError):  # replaced just now
                    state = os.lstat(path)
                    found.append((path, state.st_size, state.st_mtime_ns))
    return found


def _printed(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
