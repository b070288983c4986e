"""Saves the full state of a run while it trains.

    save()   all ranks copy their state to host memory (the stall), agree, and tell their writers   ─▶ training
    writer   writes, hashes, flushes its rank's files; the leading one commits when all are there
    poll()   hears how it went; a save that failed is an event, and the loop saves again, synchronously, within a
             step or two (`failed`): at most one interval is lost
    settle() waits for the commit; when it failed, writes the same staged state again, here and now

Two saves never overlap: the second waits for the first, and says so on the timeline (`wait_s`). With
`checkpoints.mode: sync`, or after a failure, the rank writes itself, and a failure is raised.

Does not belong here: what the state is (snapshot), the copy (staging), files and commit (part).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from plinth.errors import CheckpointError, PlinthError
from plinth.training import checkpoint, part, retention, snapshot
from plinth.training.engine import Engine
from plinth.training.failure import Failure
from plinth.training.part import Plan, Timing
from plinth.training.staging import Arena
from plinth.training.telemetry import Timeline

#: How often a rank that waits for a writer looks whether it works.
HEARTBEAT_S = 0.5


class Saver:
    """Checkpoints of one rank. All its methods but `poll` are collectives."""

    def __init__(self, engine: Engine, events: Timeline) -> None:
        self.engine, self.events = engine, events
        self.config, self.rank, self.run = engine.config, engine.rank, engine.config.directory
        self.mode = self.config.checkpoints.mode
        self._arena = Arena()
        self._writer = self._started() if self.mode == "async" else None
        self._plan: Plan | None = None  # what was staged last
        self._timing = Timing(0.0, 0.0, 0.0)
        self._waiting = False  # for the writer's answer
        self.failed = False  # the last save of this rank was not committed

    def save(self, step: int, monitor: dict[str, Any]) -> None:
        """Stage the full state after `step` and have it committed.

        Raises:
            DiskFullError, StorageError, CheckpointError: nothing was committed, and this save is synchronous.
        """
        begun = time.monotonic()
        self._hear(wait=True)
        wait_s = time.monotonic() - begun
        synchronous = self._any(self.mode == "sync" or self.failed)
        mode = "sync" if synchronous else "async"
        if not synchronous and self._writer is None:
            self._writer = self._started()
        if self.rank.leads:
            self._make_room(step)
        plan, layout = snapshot.plan(self.engine, step, monitor, mode)
        text = plan.model_dump_json().encode()
        block = self._arena.reserve(layout.bytes + len(text))
        layout.copy(block)
        del layout  # it holds on to tensors
        self.failed, self._plan = False, plan
        if synchronous:
            self._write_here(Timing(begun, 0.0, wait_s))
            return
        assert self._writer is not None
        at = self._arena.size - len(text)
        self._arena.write(at, text)
        self._writer.wait_until_ready()
        self._any(False)  # from here on every rank has its state in memory that outlives it
        self._timing = Timing(begun, time.monotonic() - begun - wait_s, wait_s)
        self._writer.order(at, len(text), self._arena.size, self._timing)
        self._waiting = True

    def poll(self) -> None:
        """Hear from the writer without waiting. Not a collective; call it as often as you like."""
        self._hear(wait=False)

    def settle(self) -> None:
        """Return once what was last saved is committed.

        Raises:
            DiskFullError, StorageError, CheckpointError: it could not be.
        """
        self._hear(wait=True)
        if self._any(self.failed):
            self.failed = False
            if self.rank.leads and self._plan is not None:
                self._make_room(self._plan.step)
            self._write_here(self._timing)

    def close(self) -> None:
        """Let the writer end and give the memory back."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._arena.close()

    def _make_room(self, step: int) -> None:
        """An empty staging directory; checkpoints that only wait for their upload go when the disk is short."""
        policy, always = self.config.checkpoints, {self.config.audit_step, self.config.total_steps}
        if policy.upload is not None:
            removed = retention.make_room(self.run, policy, always, checkpoint.size_of_last(self.run))
            if removed:
                self.events.append("retired", steps=removed, reason="the disk is short", durable=True)
        checkpoint.stage(self.run, step)

    def _write_here(self, timing: Timing) -> None:
        """Write in this process, all ranks together; raises on all what one has met."""
        assert self._plan is not None
        plan, failure = self._plan, None
        self._any(False)  # the staging directory is there
        try:
            part.write(plan, self._arena.block.numpy().data)
        except PlinthError as error:
            failure = error
        self._raise_together(failure)
        if plan.lead is not None:
            stall = time.monotonic() - timing.begun - timing.wait_s
            try:
                part.commit(plan, plan.lead, timing._replace(stall_s=stall))
            except PlinthError as error:
                failure = error
        self._raise_together(failure)

    def _raise_together(self, error: PlinthError | None) -> None:
        """What one rank has met, on every rank."""
        if not self._any(error is not None):
            return
        failures: list[Failure | None] = [None] * dist.get_world_size()
        dist.all_gather_object(failures, None if error is None else Failure.of(error))
        raise next(failure for failure in failures if failure is not None).error() from error

    def _started(self) -> _Writer:
        return _Writer(self.run.root, self.rank.index, self._arena.fd)

    def _hear(self, wait: bool) -> None:
        """Take in the writer's answer to the save under way, if there is one."""
        if self._writer is None or not self._waiting:
            return
        while True:
            answer = self._writer.answer(HEARTBEAT_S if wait else 0.0)
            if answer is not None:
                break
            if not wait:
                return
            if self._writer.has_worked():
                with contextlib.suppress(OSError):
                    os.utime(self.run.events)  # the supervisor ends ranks that give no sign of life
        self._waiting, failure = False, answer.get("failure")
        if failure is None:
            return
        self.failed = True
        if not self._writer.lives():
            self._writer.close()
            self._writer = None
        if self.rank.leads:
            step = self._plan.step if self._plan is not None else 0
            self.events.append("save_failed", step=step, **failure, durable=True)

    def _any(self, value: bool) -> bool:
        """Whether it is true on any rank; a barrier too."""
        box = torch.tensor(int(value), device=self.rank.device)
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
        return bool(box.item())


class _Writer:
    """The process that writes, as its rank sees it."""

    def __init__(self, root: Path, rank: int, descriptor: int) -> None:
        command = [sys.executable, "-m", "plinth.training.writer", str(root), str(rank), str(descriptor)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=(descriptor,), bufsize=0
        )
        self._buffer, self._work, self._ready = b"", 0, False

    def wait_until_ready(self) -> None:
        """Until it says that it holds its lock, or has ended."""
        while not self._ready and self.lives():
            self._ready = self._line(HEARTBEAT_S) is not None

    def order(self, at: int, size: int, total: int, timing: Timing) -> None:
        """Ask for a save; whether it takes the order is heard by `answer`."""
        assert self._process.stdin is not None
        line = json.dumps({"plan_at": at, "plan_bytes": size, "size": total, "timing": timing}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())

    def answer(self, patience_s: float) -> dict[str, Any] | None:
        """Its answer, or None when it has none yet; the end of the process is an answer too."""
        line = self._line(patience_s)
        if line is not None:
            return dict(json.loads(line))
        if self.lives():
            return None
        left = self._line(0.0)
        if left is not None:
            return dict(json.loads(left))
        error = CheckpointError(
            "the checkpoint's writer ended in the middle",
            found=f"exit status {self._process.returncode}",
            expected="a commit",
            remedy="training goes on; the next checkpoint is written while training waits",
        )
        return {"failure": Failure.of(error).model_dump()}

    def lives(self) -> bool:
        return self._process.poll() is None

    def has_worked(self) -> bool:
        """Whether it has written or computed since the last call (Linux; elsewhere: whether it lives)."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            written = Path(f"/proc/{self._process.pid}/io").read_text().split("wchar: ")[1].split()[0]
        except (OSError, IndexError):
            return self.lives()
        work = int(fields[11]) + int(fields[12]) + int(written)
        before, self._work = self._work, work
        return work > before

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _line(self, patience_s: float) -> bytes | None:
        assert self._process.stdout is not None
        if b"\n" not in self._buffer and select.select([self._process.stdout], [], [], patience_s)[0]:
            self._buffer += os.read(self._process.stdout.fileno(), 1 << 16)
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        return line
