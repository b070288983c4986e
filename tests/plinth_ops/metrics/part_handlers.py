"""Parts for the tests of `parts`: one that answers, and every way in which one may not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from plinth.compute.worker_process import Handler, ItemWatch
from plinth.errors import StorageError
from plinth.training.sinks.run_metrics import MetricSample
from plinth_ops.metrics.signed import handler

MANY = 5000


def sound() -> Iterator[MetricSample]:
    yield MetricSample("plinth_taints", (), float(os.getpid()))


def many() -> Iterator[MetricSample]:
    yield from (MetricSample("plinth_step", (f"run-{number}",), float("nan")) for number in range(MANY))


def fails() -> Iterator[MetricSample]:
    yield MetricSample("plinth_taints", (), 1.0)
    raise StorageError("the ledger does not answer")


def defect() -> Iterator[MetricSample]:
    raise KeyError("x")


def dies() -> Iterator[MetricSample]:
    os.kill(os.getpid(), 9)
    yield from ()


def hangs() -> Iterator[MetricSample]:
    time.sleep(3600)
    yield from ()


def serve(watch: ItemWatch) -> Handler:
    """Return the handler that the process runs."""
    return handler(watch, {one.__name__: one for one in (sound, many, fails, defect, dies, hangs)})
