"""Parts of the metrics that read much and seldom: collected by a process that gives its memory back with its end.

    part due ──▶ asked ──▶ (child) samples or the fault ──▶ taken at the next refresh; nothing more to answer: it ends

Nobody waits for it: other parts are refreshed meanwhile. The process is a worker of `plinth.compute`, which the kernel
ends with its owner. A part that takes too long, or on which the process dies, fails by name; the parts asked after it
are asked again.
Does not belong here: which parts there are, and what they read (`plinth_jobs.exporter_parts`).
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from plinth.compute.worker import Program, Worker, wait
from plinth.compute.worker_process import Handler, ItemWatch
from plinth.errors import PlinthError, WorkerError
from plinth.training.sinks.metric import MetricSample

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


def handler(watch: ItemWatch, parts: Mapping[str, Callable[[], Iterable[MetricSample]]]) -> Handler:
    """The child's side: names in; samples, or the sentence of a fault, out. A defect ends the process."""

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


def _samples(answer: bytes | PlinthError) -> list[MetricSample]:
    if isinstance(answer, PlinthError):
        raise answer
    content = json.loads(answer)
    if "fault" in content:
        raise PlinthError(content["fault"])
    return [MetricSample(name, tuple(labels), value) for name, labels, value in content["samples"]]
