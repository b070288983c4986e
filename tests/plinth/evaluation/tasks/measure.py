"""Measures a checkpoint on a set of tasks, as a stage does: `python measure.py WORKSPACE MODEL FILES [TASK …]`.

Prints how many tasks there were left to do; the manifest goes to `measured.json` in the workspace.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from plinth.compute.context import Context
from plinth.compute.progress import Meter, Silent
from plinth.evaluation.tasks import files, job
from plinth.evaluation.tasks.parameters import TaskSet
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace


class Printed(Silent):
    """Prints the total of the set's meter."""

    def meter(self, label: str, total: int) -> AbstractContextManager[Meter]:
        if label == "tasks/small":
            print("left", total, flush=True)
        return super().meter(label, total)


def put(ctx: Context, folder: Path) -> Manifest:
    """The manifest of a model folder."""
    paths = sorted(folder.iterdir())
    parts = tuple(Part(name=path.name, blob=ctx.store.put_bytes(path.read_bytes())) for path in paths)
    return Manifest(asset="checkpoint", step="run", version="1", params={}, inputs={}, parts=parts)


def measure(ctx: Context, model: Path, folder: Path, *tasks: str) -> Manifest:
    """The manifest of `tasks/small`."""
    return job.run(
        ctx, "small", TaskSet(include=str(folder), tasks=tasks), put(ctx, model), files.run(ctx, "small", str(folder))
    )


if __name__ == "__main__":
    workspace, model, folder = map(Path, sys.argv[1:4])
    made = measure(Context(Workspace(workspace).ensure(), progress=Printed()), model, folder, *sys.argv[4:])
    (workspace / "measured.json").write_text(made.model_dump_json())
