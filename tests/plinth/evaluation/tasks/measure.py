"""Measures a checkpoint on a set of tasks, as a stage does: `python measure.py WORKSPACE MODEL FILES [TASK …]`.

Prints how many tasks there were left to do; the manifest goes to `measured.json` in the workspace. With `HOLD_AFTER=n`
in the environment it prints `held` once n tasks are recorded, and waits to be killed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plinth.compute.context import Context
from plinth.compute.progress import Meter, Silent
from plinth.evaluation.parameters import TaskSet
from plinth.evaluation.tasks import job
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace

HOLD_AFTER = "HOLD_AFTER"


class Holding:
    """A meter that stops at a number of finished tasks: a stage records a task before it advances the meter."""

    def __init__(self, hold_after: int | None) -> None:
        self._left = hold_after
        self.advance(0)

    def advance(self, n: int = 1, note: str = "") -> None:
        if self._left is None:
            return
        self._left -= n
        if self._left == 0:
            print("held", flush=True)
            time.sleep(3600)

    def tell(self, text: str) -> None:
        return


class Printed(Silent):
    """Print the total of the set's meter, and block if the environment requests it."""

    @contextmanager
    def meter(self, label: str, total: int, unit: str = "") -> Iterator[Meter]:
        if label != "tasks/small":
            with super().meter(label, total) as meter:
                yield meter
            return
        print("left", total, flush=True)
        asked = os.environ.get(HOLD_AFTER)
        yield Holding(int(asked) if asked is not None else None)


def put(ctx: Context, folder: Path) -> Manifest:
    """The manifest of a model folder."""
    paths = sorted(folder.iterdir())
    parts = tuple(Part(name=path.name, blob=ctx.store.put_bytes(path.read_bytes())) for path in paths)
    return Manifest(asset="checkpoint", step="run", version="1", params={}, inputs={}, parts=parts)


def measure(ctx: Context, model: Path, folder: Path, *tasks: str) -> Manifest:
    """The manifest of `tasks/small`."""
    chosen, local = TaskSet(include=str(folder), tasks=tasks), job.task_files(ctx, "small", str(folder))
    return job.run(ctx, "small", chosen, put(ctx, model), local)


if __name__ == "__main__":
    workspace, model, folder = map(Path, sys.argv[1:4])
    made = measure(Context(Workspace(workspace).ensure(), progress=Printed()), model, folder, *sys.argv[4:])
    (workspace / "measured.json").write_text(made.model_dump_json())
