"""Ranks that wait before a step until a test lets them continue: nothing depends on their speed.

A test calls `hold(folder, 6)`: no rank takes step 6 until `let_go(folder)`, or until it receives a request to stop.
`waiting` returns True when all ranks wait: if stopped then, they take step 6, which they have entered, and step 7, in
which they exchange the request. `held_ranks:open_batches` are the run's own batches, held; the folder is in HELD.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.data import open_batches as real

TIMEOUT_S = 1800.0


def hold(folder: Path, step: int) -> None:
    """Hold the ranks before this step, and before any later one."""
    for rank in folder.glob("rank-*"):
        rank.unlink()
    write_bytes(folder / "hold", str(step).encode())


def waiting(folder: Path, ranks: int) -> bool:
    """Return True if `ranks` ranks are held."""
    return len(list(folder.glob(f"rank-*-before-{_held_at(folder)}"))) == ranks


def let_go(folder: Path) -> None:
    (folder / "hold").unlink()


def wait_for_leave(folder: Path, step: int) -> None:
    """Wait on a rank, before its step; fail after `TIMEOUT_S` without release, so that no rank outlives its test."""
    until = time.monotonic() + TIMEOUT_S
    while (first := _held_at(folder)) is not None and step >= first and not _asked_to_stop():
        assert time.monotonic() < until, f"nobody has let step {step} go"
        (folder / f"rank-{os.environ['RANK']}-before-{first}").touch()
        time.sleep(0.02)


def _held_at(folder: Path) -> int | None:
    try:
        return int((folder / "hold").read_bytes())
    except FileNotFoundError:
        return None


def _asked_to_stop() -> bool:
    """Return True if the training loop's own handler has recorded a request to stop."""
    interrupt = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(interrupt, "signal", 0))


def open_batches(config: RunConfig, rank: int) -> Batches:
    source, folder = real(config, rank), Path(os.environ["HELD"])

    def stream(first_step: int) -> Iterator[StepBatch]:
        batches = source(first_step)
        for step in range(first_step, config.total_steps + 1):
            wait_for_leave(folder, step)
            yield next(batches)

    return stream
