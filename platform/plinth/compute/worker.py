"""The owner's interface to a worker process: batches of items and their answers pass through pipes without deadlocks.

    Program    the function that a worker runs, given by name, so that only the worker loads it
    Worker     one process: send, receive, identify the current item, end the process
    wait       wait for workers that have answered or died

Items and answers are bytes; only the owner and the handler know their format. `Worker` does not retry the items of a
dead worker; engines and `ItemStream` do.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
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
    """Function that a worker runs.

    Args:
        target: `module:function`, called in the worker with an `ItemWatch` and the arguments; returns the handler.
        environment: variables only for the worker.
        idle_s: seconds without a batch after which a worker ends.
        pipe_bytes: buffer size of the worker's pipes. A batch that fits is sent in one write, while the worker
            processes the previous batch. 0 keeps the system's default.
        quiet: True discards the worker's standard error.
        needs: groups of environment variables that the worker inherits (`plinth.processes`).
    """

    target: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    idle_s: float = math.inf
    pipe_bytes: int = 0
    quiet: bool = False
    needs: tuple[str, ...] = ()


class Worker:
    """Running worker process."""

    def __init__(self, program: Program) -> None:
        self.program, self.sent_bytes = program, 0
        self._ready = False
        self._outbox: deque[memoryview] = deque()
        self._inbox, self._buffer = bytearray(), memoryview(bytearray(program.pipe_bytes or READ_BYTES))
        counts, (theirs, ours) = os.memfd_create("plinth-worker"), os.pipe()
        self._owner = os.fdopen(ours, "wb", buffering=0)  # closed with this object; the worker ends when it closes
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
                with suppress(OSError):  # the system may not allow this size; then a batch takes more writes
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, program.pipe_bytes)

    def send(self, items: Sequence[bytes]) -> None:
        """Send the part of a batch that the pipe accepts now; the rest follows while waiting for answers."""
        lengths = b"".join(LENGTH.pack(len(item)) for item in items)
        data = b"".join((BATCH.pack(len(items), len(lengths) + sum(map(len, items))), lengths, *items))
        self.sent_bytes += len(data)
        self._outbox.append(memoryview(data))
        self._push()

    def receive(self) -> list[bytes]:
        """Return the answers that arrived since the last call; call this method after `wait`.

        Raises:
            EOFError: the worker died, and earlier calls returned all of its answers.
            WorkerError: the worker never became ready.
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

    def started_and_finished(self) -> tuple[int, int]:
        """Return the numbers of items that the worker has started and finished."""
        started, finished = COUNTS.unpack_from(self._counts)
        return started, finished

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def died(self) -> int:
        """Return the exit status of a worker that closed its end of the pipe; negative for a signal."""
        try:
            return self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self.end()

    def end(self) -> None:
        """Kill the worker and release all resources. A second call does nothing."""
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
                self._outbox.clear()  # the reader of the answers notices that the worker has ended
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
    """Wait until a worker has answers or has died, or until the timeout; return these workers.

    While waiting, the remaining data is sent to the workers. The result may be empty.
    """
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


# Stream of many small items through one worker: answers come in order, one batch is sent ahead, and the failure of one
# item does not lose others.
#
# An item that kills the worker, or runs over its time limit, is answered by a `Death`; the items after it go to a new
# worker. Batches keep both processes busy, because one wait for the other process costs as much as a small item.
# Starting a worker takes time, so an idle worker is kept for the next stream of the same program.

#: Number of batches sent ahead while the caller uses the answers to an earlier batch.
AHEAD = 1
#: If workers end between items more often than this, the cause is not an item.
MAX_ENDS = 3
#: Bytes sent after which a worker is replaced, because its libraries may leak memory.
RETIRE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Death:
    """Answer to an item that killed its worker.

    Args:
        status: exit status of the worker; negative for a signal.
    """

    status: int

    @property
    def over_limit(self) -> bool:
        """True if the item ran over a time limit."""
        return -self.status in TIMERS


class ItemStream:
    """Stream of items to a worker, and of answers back. Use it as a context manager.

    Args:
        program: program that the worker runs; its handler sets the time and memory limits of an item.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._worker: Worker | None = None
        #: Items without an answer, in order; a `Death` replaces its item. All remaining items were sent to the worker.
        self._open: deque[bytes | Death] = deque()
        self._done: deque[bytes | Death] = deque()
        self._first = 0  # number of the first unanswered item, counted over the items sent to this worker
        self._suspect: bytes | None = None
        self._ends = 0

    def __enter__(self) -> ItemStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end() if self._open else SPARES.keep(worker)
        self._open.clear()
        self._done.clear()

    def map(self, batches: Iterable[Sequence[bytes]]) -> Iterator[list[bytes | Death]]:
        """Yield the answers to the items of each batch in order. The next batch is read while the worker runs.

        At most two rounds of batches are in memory.

        Raises:
            WorkerError: the worker cannot start, or ends for a reason other than an item.
        """
        sizes: deque[int] = deque()
        for items in batches:
            self._send(items)
            sizes.append(len(items))
            while len(sizes) > AHEAD or (sizes and not sizes[0]):
                yield self._answers(sizes.popleft())
        while sizes:
            yield self._answers(sizes.popleft())

    def _send(self, items: Sequence[bytes]) -> None:
        if not items:
            return
        self._open.extend(items)
        if self._worker is None:
            self._start()
        else:
            self._worker.send(items)

    def _start(self) -> Worker:
        """Start a worker and send it all unanswered items."""
        self._worker = worker = SPARES.take(self.program)
        self._first, _ = worker.started_and_finished()
        worker.send([item for item in self._open if isinstance(item, bytes)])
        return worker

    def _answers(self, count: int) -> list[bytes | Death]:
        self._drain()
        while len(self._done) < count:
            worker = self._worker or self._start()
            try:
                answers = worker.receive() if wait([worker]) else []
            except EOFError:
                self._recover(worker)
                continue
            for answer in answers:
                self._open.popleft()
                self._done.append(answer)
                self._first, self._ends = self._first + 1, 0
                self._drain()
        return [self._done.popleft() for _ in range(count)]

    def _drain(self) -> None:
        """Move `Death` entries at the head of the unanswered items to the answers."""
        while self._open and isinstance(self._open[0], Death):
            self._done.append(self._open.popleft())

    def _recover(self, worker: Worker) -> None:
        """Recover from the death of a worker. Its current item fails if its timer expired or if the same item was being
        processed when an earlier worker died. All other items are sent again, including items whose answers were lost
        with the worker."""
        self._worker = None
        begun, ended = worker.started_and_finished()
        death = Death(worker.died())
        items = [index for index, item in enumerate(self._open) if isinstance(item, bytes)]
        at = begun - 1 - self._first
        if begun != ended and 0 <= at < len(items):
            victim = self._open[items[at]]
            if death.over_limit or victim == self._suspect:
                self._open[items[at]], self._suspect = death, None
            else:
                # The cause may be the machine (such as lack of memory), so the item is tried once more.
                self._suspect = victim if isinstance(victim, bytes) else None
        else:
            self._ends += 1
            if self._ends > MAX_ENDS:
                raise WorkerError(
                    f"a worker process ({self.program.target}) keeps ending between items",
                    found=f"{self._ends} exits without an answer, the last with exit status {death.status}",
                    expected="a process that runs until all items are done",
                    remedy="check whether the out-of-memory killer or a limit on processes ends the worker",
                )
        self._drain()


class SpareWorkers:
    """Idle workers, kept for the next stream. After a fork, inherited workers belong to the parent and are
    not ended."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Program], Worker] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, program: Program) -> Worker:
        """Take this process's spare worker for this program, or start a new worker."""
        spare = self._kept.pop((os.getpid(), program), None)
        if spare is not None and _reusable(spare):
            return spare
        if spare is not None:
            spare.end()
        return Worker(program)

    def keep(self, worker: Worker) -> None:
        """Keep a worker that has answered all items; only the latest worker is kept."""
        self.end()
        if _reusable(worker) and self._kept.setdefault((os.getpid(), worker.program), worker) is worker:
            return
        worker.end()

    def end(self) -> None:
        """End the spare workers of this process."""
        for key in list(self._kept):
            spare = self._kept.pop(key, None)
            if spare is not None and key[0] == os.getpid():
                spare.end()


def _reusable(worker: Worker) -> bool:
    return worker.alive and worker.sent_bytes < RETIRE_BYTES


SPARES = SpareWorkers()
