"""A worker, as its owner sees it: batches of items and their answers through pipes that never block both ends.

    Program    what a worker runs: a function by name, so that only the worker loads it
    Worker     one process: send, receive, the item it is on, its end
    wait       for the workers that have answered or died

Items and answers are bytes; what they hold is between the owner and the handler. Does not belong here: what happens
to an item whose worker died (retries, item_stream).
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import select
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, cast

from plinth import processes
from plinth.compute.worker_process import BATCH, COUNTS, LENGTH, READY
from plinth.errors import WorkerError

GRACE_S = 5.0
READ_BYTES = 1 << 16
#: The signals of a worker's timers.
TIMERS = (signal.SIGPROF, signal.SIGALRM)


@dataclass(frozen=True)
class Program:
    """What a worker runs.

    Args:
        target: `module:function`, called in the worker with an `ItemWatch` and the arguments; it returns the handler.
        environment: variables of the worker alone.
        idle_s: without a batch for so long a worker ends.
        pipe_bytes: size of its pipes: a batch that fits is sent in one turn, while the worker does the one before it. 0
            is what the system gives.
        quiet: throw away what it writes to standard error.
        needs: groups of variables that it inherits (`plinth.processes`).
    """

    target: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    idle_s: float = math.inf
    pipe_bytes: int = 0
    quiet: bool = False
    needs: tuple[str, ...] = ()


class Worker:
    """One running process."""

    def __init__(self, program: Program) -> None:
        self.program, self.sent_bytes = program, 0
        self._ready = False
        self._outbox: deque[memoryview] = deque()
        self._inbox, self._buffer = bytearray(), memoryview(bytearray(program.pipe_bytes or READ_BYTES))
        counts, (theirs, ours) = os.memfd_create("plinth-worker"), os.pipe()
        self._owner = os.fdopen(ours, "wb", buffering=0)  # closed with this object, and then the worker ends
        try:
            os.truncate(counts, COUNTS.size)
            self._counts = mmap.mmap(counts, COUNTS.size)
            self._process = self._started(counts, theirs)
        finally:
            os.close(counts)
            os.close(theirs)
        self.pid = self._process.pid
        self._in, self._out = (cast(IO[bytes], pipe).fileno() for pipe in (self._process.stdin, self._process.stdout))
        for pipe in (self._in, self._out):
            os.set_blocking(pipe, False)
            if program.pipe_bytes:
                with suppress(OSError):  # a system may not allow as much: then a batch takes more writes
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, program.pipe_bytes)

    def send(self, items: Sequence[bytes]) -> None:
        """Hand over as much of a batch as the pipe takes now; the rest goes when answers are waited for."""
        lengths = b"".join(LENGTH.pack(len(item)) for item in items)
        data = b"".join((BATCH.pack(len(items), len(lengths) + sum(map(len, items))), lengths, *items))
        self.sent_bytes += len(data)
        self._outbox.append(memoryview(data))
        self._push()

    def receive(self) -> list[bytes]:
        """The answers that have come since the last call; `wait` says when to call.

        Raises:
            EOFError: the worker has gone; what it had answered came before.
            WorkerError: it never was ready.
        """
        try:
            size = os.readv(self._out, [self._buffer])
        except BlockingIOError:
            return []
        if not size:
            self._require_ready()
            raise EOFError
        self._inbox += self._buffer[:size]
        if not self._ready and len(self._inbox) >= len(READY):
            self._ready = self._inbox.startswith(READY)
            self._require_ready()
            del self._inbox[: len(READY)]
        return self._answers() if self._ready else []

    def begun_and_ended(self) -> tuple[int, int]:
        """How many items the worker has begun and how many it has done with, since it started."""
        begun, ended = COUNTS.unpack_from(self._counts)
        return begun, ended

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def died(self) -> int:
        """The exit status of a worker that has closed its end; negative for a signal."""
        try:
            return self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self.end()

    def end(self) -> None:
        """Kill it, and leave nothing behind. A second call does nothing."""
        if self._counts.closed:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            cast(IO[bytes], stream).close()
        self._owner.close()
        self._counts.close()

    def _started(self, counts: int, owner: int) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = processes.start(
            self._command("--owned", str(counts), str(owner), str(self.program.idle_s)),
            *self.program.needs,
            own=dict(self.program.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self.program.quiet else None,
            pass_fds=[counts, owner],
            bufsize=0,
        )
        return process

    def _command(self, *owned: str) -> list[str]:
        words = [*owned, self.program.target, *self.program.arguments]
        return processes.python("plinth.compute.worker_process", *words)

    def _answers(self) -> list[bytes]:
        found, at = list[bytes](), 0
        with memoryview(self._inbox) as view:
            while len(view) - at >= LENGTH.size:
                (length,) = LENGTH.unpack_from(view, at)
                end = at + LENGTH.size + length
                if len(view) < end:
                    break
                found.append(bytes(view[at + LENGTH.size : end]))
                at = end
        del self._inbox[:at]
        return found

    def _push(self) -> None:
        while self._outbox:
            try:
                written = os.write(self._in, self._outbox[0])
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._outbox.clear()  # its end shows where answers are read
                return
            if written == len(self._outbox[0]):
                self._outbox.popleft()
            else:
                self._outbox[0] = self._outbox[0][written:]

    def _require_ready(self) -> None:
        if not self._ready:
            raise WorkerError(
                f"a worker process ({self.program.target}) does not start",
                found=f"exit status {self.died()}",
                expected="a process that answers",
                remedy=f"`{' '.join(self._command())} < /dev/null` shows why",
            )


def wait(workers: Iterable[Worker], timeout_s: float | None = None) -> list[Worker]:
    """The workers that have something to receive, as soon as there is one; meanwhile what was not yet sent goes out.
    May return none."""
    poll, answering, hungry = select.poll(), dict[int, Worker](), dict[int, Worker]()
    for worker in workers:
        poll.register(worker._out, select.POLLIN)
        answering[worker._out] = worker
        if worker._outbox:
            poll.register(worker._in, select.POLLOUT)
            hungry[worker._in] = worker
    found = []
    for pipe, _ in poll.poll(None if timeout_s is None else timeout_s * 1000):
        if pipe in hungry:
            hungry[pipe]._push()
        else:
            found.append(answering[pipe])
    return found
