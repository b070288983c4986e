"""A rank's answer when its supervisor finds that the ranks hang: stacks of all threads, and the collectives it is in.

    SIGUSR1 ──▶ faulthandler, in C: stacks to the job's log, whatever the rank is stuck in
        └─────▶ a thread that waits for the signal: hangs/rank-0003.stack, the flight recorder as hangs/rank-0003.json

A rank hangs in a collective or in the driver, where Python does not come to its handlers: but such calls give the
interpreter's lock back, so a thread can answer. One that holds the lock gives its stacks only.

PyTorch's flight recorder holds the last collectives of each process group, for NCCL and gloo alike.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import IO, Any

from plinth.training.directory import RunDirectory

#: Functions of torch.distributed that give the flight recorder as JSON; a build has those of its backends.
RECORDERS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}


def install(run: RunDirectory, rank: int) -> None:
    """Answer from now on. To be called by the main thread."""
    receive, send = os.pipe()
    os.set_blocking(send, False)
    signal.signal(signal.SIGUSR1, _nothing)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)  # written when a signal comes, not when Python handles it
    faulthandler.register(signal.SIGUSR1, chain=True)
    arguments = (receive, run.hangs, rank)
    threading.Thread(target=_answer, args=arguments, name="plinth-hang-dump", daemon=True).start()


def dump(folder: Path, rank: int) -> None:
    """Write both files of a rank; the one with the collectives comes last."""
    folder.mkdir(exist_ok=True)
    with _new(folder / f"rank-{rank:04d}.stack") as stream:
        faulthandler.dump_traceback(stream, all_threads=True)
    path = folder / f"rank-{rank:04d}.json"
    staged = path.with_suffix(".part")
    with _new(staged) as stream:
        stream.write(json.dumps({"rank": rank, "entries": recorded()}))
    staged.rename(path)


def _new(path: Path) -> IO[str]:
    """A new file, never what a link in its place leads to."""
    path.unlink(missing_ok=True)
    return path.open("x")


def recorded() -> list[dict[str, Any]]:
    """What the flight recorder knows of each collective, in the order of their launch by backend."""
    from torch._C import _distributed_c10d

    found: list[dict[str, Any]] = []
    for name in RECORDERS.values():
        recorder = getattr(_distributed_c10d, name, None)
        if recorder is not None:
            found += json.loads(recorder()).get("entries", [])
    return found


def _answer(receive: int, folder: Path, rank: int) -> None:
    while signals := os.read(receive, 64):
        if signal.SIGUSR1 in signals:
            with contextlib.suppress(OSError):  # the disk may be what hangs; the log has the stacks
                dump(folder, rank)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Python's own handler, without which the signal would not wake the thread."""
