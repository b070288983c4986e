"""Process that writes a rank's part of a checkpoint, and the client in the rank that starts it.

    rank:    staging ──► shared memory      client ──► one JSON line per save
                              │                              │
    writer:               rank_part  ◄──────────── this process
                              └──► files, SHA-256, flush; rank 0's writer commits once all parts are complete

Started as `python -m plinth.training.checkpoint.writer RUN RANK DESCRIPTOR`.

The process reads the rank's memory block through the descriptor and needs no torch. It ignores SIGTERM and SIGINT, so
state that is staged on every rank is committed even if the ranks are killed meanwhile. It first works only while cores
are idle. Once a rank waits for it or has exited, or after a time limit (idle), it works at the lowest priority.
Standard input receives one JSON line per save, and an empty line when the rank waits. Standard output answers each
save with one JSON line.

A running writer has a lock, `writers/rank-00000.lock`. The leading writer tests the lock to find out if a missing part
can still arrive. The supervisor starts no ranks before the writers of the last attempt have ended.

Does not belong here: the format of a part (rank_part), the time of a save (saving).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from plinth import processes
from plinth.errors import CheckpointError, PlinthError
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.training.checkpoint import rank_part, shares
from plinth.training.checkpoint.rank_part import Lead, SharedSave, Timing, WritePlan
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import RankFailure

#: Seconds between progress checks of a rank that waits for its writer.
HEARTBEAT_S = 0.5


class WriterClient:
    """A rank's client for its writer process."""

    def __init__(self, root: Path, rank: int, descriptor: int) -> None:
        module = "plinth.training.checkpoint.writer"
        command = processes.python(module, str(root), str(rank), str(descriptor))
        self._process: subprocess.Popen[bytes] = processes.start(
            command,
            *processes.STORES,
            *processes.KEYS,
            own={"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(descriptor,),
            bufsize=0,
        )
        self._buffer, self._work, self._ready = b"", 0, False
        self._wanted = wanted_path(RunDirectory(root), rank)

    def wait_until_ready(self) -> None:
        """Return once the process has its lock, or has ended. An earlier writer does not wait for other machines now,
        because there is a newer state to save."""
        if not self._ready:
            with contextlib.suppress(OSError, PlinthError):  # the disk is full: the earlier writer waits for a while
                self._wanted.parent.mkdir(exist_ok=True)
                write_bytes(self._wanted, str(self._process.pid).encode())
        while not self._ready and self.is_alive():
            self._ready = self._line(HEARTBEAT_S) is not None

    def order(self, at: int, size: int, total: int, timing: Timing) -> None:
        """Request a save from the writer process. `answer` returns its outcome."""
        self._write(json.dumps({"plan_at": at, "plan_bytes": size, "size": total, "timing": timing}))

    def hurry(self) -> None:
        """Send the process an empty line, which tells it that this rank waits for the answer."""
        self._write("")

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the writer's answer, or None if there is none after `timeout_s`. If the process has ended without an
        answer, return a failure."""
        line = self._line(timeout_s)
        if line is not None:
            return dict(json.loads(line))
        if self.is_alive():
            return None
        left = self._line(0.0)
        if left is not None:
            return dict(json.loads(left))
        error = CheckpointError(
            "the process that writes the checkpoint ended before the commit",
            found=f"exit status {self._process.returncode}",
            expected="a commit",
            remedy="training continues; the next checkpoint is written synchronously",
        )
        return {"failure": RankFailure.of(error).model_dump()}

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def made_progress(self) -> bool:
        """Return True if the writer has made progress since the last call. On systems other than Linux, return True if
        the writer is alive."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            written = Path(f"/proc/{self._process.pid}/io").read_text().split("wchar: ")[1].split()[0]
        except (OSError, IndexError):
            return self.is_alive()
        work = int(fields[11]) + int(fields[12]) + int(written)
        before, self._work = self._work, work
        return work > before

    def close(self) -> None:
        self.leave()
        self._process.wait()

    def leave(self) -> None:
        """Let the process end by itself after the save in progress."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` reports the end of the process
            self._process.stdin.write(line.encode() + b"\n")

    def _line(self, timeout_s: float) -> bytes | None:
        assert self._process.stdout is not None
        if b"\n" not in self._buffer and select.select([self._process.stdout], [], [], timeout_s)[0]:
            self._buffer += os.read(self._process.stdout.fileno(), 1 << 16)
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        return line


#: Seconds between the leading writer's checks for the parts of other ranks on this machine.
POLL_S = 0.02

#: Process that has started this one: a writer's rank.
_PARENT = os.getppid()

#: Seconds for which a writer whose rank was killed, or has left it, waits for other machines.
ORPHAN_S = 60.0


def main() -> int:
    """Serve one rank until its end of the pipe is closed, and return the exit status."""
    run, rank, descriptor = RunDirectory(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(19)
    lock = hold(run, rank)
    wanted_path(run, rank).unlink(missing_ok=True)
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - no line is read ahead
    idle = Idle(lambda: bool(select.select([orders], [], [], 0.0)[0]))  # there is at most one order at a time
    _answer({"ready": True})
    memory: mmap.mmap | None = None
    for line in orders:
        if not line.strip():
            continue
        order = json.loads(line)
        if memory is None or len(memory) != order["size"]:
            memory = mmap.mmap(descriptor, order["size"], prot=mmap.PROT_READ)
        idle.begin()
        _serve(memoryview(memory), order, idle)
    os.close(lock)
    return 0


def _serve(memory: memoryview, order: dict[str, Any], idle: Idle) -> None:
    begin = order["plan_at"]
    with memory:
        plan = WritePlan.model_validate_json(bytes(memory[begin : begin + order["plan_bytes"]]))
        try:
            rank_part.write(plan, memory, idle)
            if plan.lead is not None:
                wait_for_parts(plan, plan.lead)
                rank_part.commit(plan, plan.lead, Timing(*order["timing"]))
            elif plan.shared is not None and plan.shared.adopts(plan):
                adopt(plan, plan.shared)
            _answer({"step": plan.step})
        except PlinthError as error:
            failure = RankFailure.of(error).model_dump()
            _answer({"step": plan.step, "failure": failure})
            _report_failure(plan, failure)


def _report_failure(plan: WritePlan, failure: dict[str, Any]) -> None:
    """Report a failure in a file. The leading writer reads it, because it waits for this rank's part.

    If the file cannot be written because the disk is full, the process exits, which releases the lock.
    """
    path = failed_path(plan, plan.rank)
    tell_machines(plan, failure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(failure))
    except OSError:
        sys.exit(1)


def tell_machines(plan: WritePlan, failure: dict[str, Any]) -> None:
    """Report a failure to the other machines of a shared run, which wait for this rank's part or for the commit."""
    if plan.shared is not None:
        with contextlib.suppress(PlinthError):  # the bucket may be what failed
            plan.shared.of(plan).put_failure(plan.rank, json.dumps(failure).encode())


def wait_for_parts(plan: WritePlan, lead: Lead) -> None:
    """Wait until the parts of all ranks are complete, without a time limit.

    Raises:
        PlinthError: the error that another writer reported.
        CheckpointError: the writer of a missing part has ended.
    """
    until = float("inf")
    pause_s = shares.POLL_S if plan.shared is not None and plan.shared.ranks < lead.ranks else POLL_S
    while waiting := rank_part.missing(plan, lead):
        for rank in waiting:
            failed = failed_path(plan, rank)
            if failed.exists() and (text := failed.read_text()):
                raise RankFailure.model_validate_json(text).error()
            if plan.shared is not None and not plan.shared.is_here(rank):
                _require_rank(plan, rank, until)
            elif rank != plan.rank and not is_alive(plan.directory, rank) and rank in rank_part.missing(plan, lead):
                raise CheckpointError(
                    f"the checkpoint of step {plan.step} was not committed: the writer of rank {rank} ended before its "
                    "part was complete",
                    remedy="training continues; the next checkpoint is written synchronously",
                )
        until = _limited(plan, until)
        time.sleep(pause_s)


def _require_rank(plan: WritePlan, rank: int, until: float) -> None:
    """Raise an error if the part of a rank on another machine did not arrive in time after this rank has ended."""
    if time.monotonic() > until:
        raise CheckpointError(
            f"the checkpoint of step {plan.step} was not committed: the part of rank {rank} on another machine did not "
            "arrive",
            remedy="the ranks start again from the last committed checkpoint",
        )


def adopt(plan: WritePlan, shared: SharedSave) -> None:
    """Commit a save on a machine other than the leading rank's, once the save is committed.

    Raises:
        CheckpointError: the save was not committed.
    """
    save = shared.of(plan)
    if not save.wait_for_commit(partial(_limited, plan)):
        raise CheckpointError(
            f"the checkpoint of step {plan.step} was not committed by the leading rank",
            remedy="training continues; the next checkpoint is written synchronously",
        )
    save.adopt()


def _limited(plan: WritePlan, until: float) -> float:
    """Return the time until which this process waits for other machines. It is limited once the rank was killed, or has
    left this process after a loss: then no other machine may be at work for the save either. It is over once the next
    writer of the rank is wanted, or a node was lost: the rank may wait for the answer, and must leave its groups."""
    pipe = select.poll()
    pipe.register(0, 0)
    left = os.getppid() != _PARENT or any(flags & select.POLLHUP for _, flags in pipe.poll(0))
    wanted = wanted_path(plan.directory, plan.rank)
    successor = wanted.read_text() if wanted.exists() else None
    if successor == "" or (left and successor not in (None, str(os.getpid()))):
        return min(until, time.monotonic())
    return min(until, time.monotonic() + ORPHAN_S) if left else until


def failed_path(plan: WritePlan, rank: int) -> Path:
    """Return the path of the file by which a writer reports that its part will not arrive."""
    return rank_part.part_path(plan.directory, plan.step, rank).with_suffix(".failed")


def lock_path(run: RunDirectory, rank: int) -> Path:
    """Return the path of the lock file that the writer of a rank locks while it runs."""
    return run.writers / f"rank-{rank:05d}.lock"


def wanted_path(run: RunDirectory, rank: int) -> Path:
    """Return the path of a file with the process id of a rank's next writer, once the rank wants to save. It is empty
    if a node was lost."""
    return run.writers / f"rank-{rank:05d}.wanted"


def hold(run: RunDirectory, rank: int) -> int:
    """Take the lock of a rank's writer and return its descriptor. The process id and the host are written into the lock
    file."""
    return atomic.take(lock_path(run, rank), owner=f"{os.getpid()} {socket.gethostname()}")


def is_alive(run: RunDirectory, rank: int) -> bool:
    """Return True if the writer of a rank is alive."""
    return atomic.held(lock_path(run, rank))


def alive(run: RunDirectory) -> list[int]:
    """Return the ranks with a live writer."""
    found = [int(path.stem.removeprefix("rank-")) for path in sorted(run.writers.glob("rank-*.lock"))]
    return [rank for rank in found if is_alive(run, rank)]


def give_up(run: RunDirectory) -> None:
    """Tell the writers of this machine's former ranks that no other machine is at work for their save."""
    for rank in alive(run):
        write_bytes(wanted_path(run, rank), b"")


def wait_until_gone(run: RunDirectory, timeout_s: float) -> list[int]:
    """Wait until all writers have ended. Return the ranks whose writers are still alive after `timeout_s` seconds."""
    until = time.monotonic() + timeout_s
    while (left := alive(run)) and time.monotonic() < until:
        time.sleep(POLL_S)
    return left


def end(run: RunDirectory, rank: int) -> None:
    """Kill a rank's writer that does not end by itself, if it runs on this host.

    The process id comes from the lock file, which anyone can edit, so a process is killed only if it is a writer of
    this run.
    """
    if is_alive(run, rank):
        number, _, host = atomic.owner(lock_path(run, rank)).partition(" ")
        if host != socket.gethostname():
            return  # the supervisor of its node ends it
        with contextlib.suppress(psutil.Error, ValueError):
            process = psutil.Process(int(number))
            if {__name__, str(run.root)} <= set(process.cmdline()):
                process.kill()
        wait_until_gone(run, 10.0)


def _answer(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the rank was killed; the checkpoint is committed all the same
        print(json.dumps(message), flush=True)


# Work on idle cores until a rank waits for it.
#
# Linux runs a thread of the class SCHED_IDLE only if nothing else would run, and preempts it at once when another
# thread becomes runnable (sched(7)). A process at the lowest priority would keep a core for some milliseconds, which
# stalls ranks that wait for each other hundreds of times per second. Leaving that class requires a privilege. The work
# is therefore handed piece by piece to a thread of that class, and the caller does it itself once it is urgent.

#: Maximum seconds that busy cores can delay the work. After that it runs at the caller's own priority.
TIMEOUT_S = 10.0


class Idle:
    """Runner of small pieces of work, one after the other. Keep each piece short, because a rank may wait for it."""

    def __init__(self, urgent: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        self._urgent, self._timeout_s = urgent, timeout_s
        self._pool = ThreadPoolExecutor(1, "idle", _give_way)
        self.begin()

    def begin(self) -> None:
        """Start a new batch of work that may wait for idle cores, because no rank waits for it yet."""
        self._until, self._hurries = time.monotonic() + self._timeout_s, False

    def __call__(self, work: Callable[[], object]) -> None:
        """Run a piece of work and wait for it. If it fails, raise its exception in the caller."""
        self._hurries = self._hurries or time.monotonic() > self._until or self._urgent()
        if self._hurries:
            work()
        else:
            self._pool.submit(work).result()


def _give_way() -> None:
    """Set this thread's scheduling class to SCHED_IDLE. On systems without this class, leave the priority unchanged."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    sys.exit(main())
