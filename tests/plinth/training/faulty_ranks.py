"""Faults inside the ranks of a run, for tests: `faulty_ranks:open_batches` reads the plan from FAULTS.

FAULTS is a JSON object {"marks": folder, "faults": [[kind, step, rank], …]}; `held_ranks.hold` holds the
ranks in the same folder. Each fault strikes once, ever, in the rank itself; those of a checkpoint need
`checkpoints.mode: sync`:

    kill      SIGKILL when the batch of the step is asked for
    files     SIGKILL while the files of the checkpoint of the step are written, one of them torn
    manifest  SIGKILL when all files are written and the manifest is not
    record    SIGKILL after the rename, before the commit record
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import held_ranks
import synthetic

from plinth.storage import tensor_file
from plinth.training.checkpoint import checkpoint, digest_tree
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch


def open_batches(config: RunConfig, rank: int) -> Batches:
    plan = json.loads(os.environ["FAULTS"])
    once = _Once(Path(plan["marks"]))
    faults = [(kind, step) for kind, step, where in plan["faults"] if where == rank]
    for kind, step in faults:
        if kind in ("files", "manifest", "record"):
            _arm(kind, step, once)

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            held_ranks.wait_for_leave(once.folder, step)
            if ("kill", step) in faults and once.first("kill", step):
                _die()
            yield synthetic.batch_at(config, step, rank)

    return stream


class _Once:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def first(self, kind: str, step: int) -> bool:
        """True the first time this fault is due, in whatever process."""
        try:
            (self.folder / f"{kind}-{step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _arm(kind: str, step: int, once: _Once) -> None:
    if kind == "files":
        whole: Callable[..., Any] = tensor_file.write

        def torn(path: Path, *rest: Any) -> Any:
            if (
                path.parent.parent.name == checkpoint.name(step)
                and path.parent.name == "model"
                and once.first(kind, step)
            ):
                path.parent.mkdir()
                path.write_bytes(b"\0" * 100)
                _die()
            return whole(path, *rest)

        tensor_file.write = torn
        return
    due = f"{checkpoint.name(step)}/{digest_tree.MANIFEST}" if kind == "manifest" else f"{checkpoint.name(step)}.json"
    _kill_before_writing(due, kind, step, once)


def _kill_before_writing(due: str, kind: str, step: int, once: _Once) -> None:
    write: Callable[..., None] = checkpoint.write_bytes

    def killing(path: Path, data: bytes, **options: Any) -> None:
        if str(path).endswith(due) and once.first(kind, step):
            _die()
        write(path, data, **options)

    checkpoint.write_bytes = killing


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
