"""Many small items through one worker: answers in order, a batch ahead, and no item lost to another.

An item that kills the worker, or runs over its time limit, is answered by a `Death`; the items after it go to a new
worker. Batches keep both processes busy: every time one waits for the other costs what a small item costs.
A worker takes a moment to start, so an idle one is kept for the next stream of the same program.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from plinth.compute.worker import TIMERS, Program, Worker, wait
from plinth.errors import WorkerError

#: Batches with the worker while the answers to an earlier one are used.
AHEAD = 1
#: A worker that ends more often between items was not killed by an item.
MAX_ENDS = 3
#: A worker that has read so much is replaced, because its libraries may keep memory of the items.
RETIRE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Death:
    """In the place of an answer: the item ended its worker.

    Args:
        status: exit status of the worker; negative for a signal.
    """

    status: int

    @property
    def over_limit(self) -> bool:
        """Whether a time limit ended it."""
        return -self.status in TIMERS


class ItemStream:
    """Items to the worker and back. Use as a context manager.

    Args:
        program: what the worker runs; its handler sets the limits of an item.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._worker: Worker | None = None
        #: Without an answer, in order; a death stands where its item was. The worker has all of the items.
        self._open: deque[bytes | Death] = deque()
        self._done: deque[bytes | Death] = deque()
        self._first = 0  # the number of the first open item among those that this worker was sent
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
        """The answers to the items of each batch, in order; the next batch is read while the worker works.

        Memory is that of the batches of two turns.

        Raises:
            WorkerError: when the worker cannot even start, or ends although no item ends it.
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
        """A worker with every open item."""
        self._worker = worker = SPARES.take(self.program)
        self._first, _ = worker.begun_and_ended()
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
        """Move deaths at the head of the open items to the answers."""
        while self._open and isinstance(self._open[0], Death):
            self._done.append(self._open.popleft())

    def _recover(self, worker: Worker) -> None:
        """After a death: the item it was on ends here if its timer rang or if it was suspected before; all others are
        sent again, answered ones among them whose answers died with the worker."""
        self._worker = None
        begun, ended = worker.begun_and_ended()
        death = Death(worker.died())
        items = [index for index, item in enumerate(self._open) if isinstance(item, bytes)]
        at = begun - 1 - self._first
        if begun != ended and 0 <= at < len(items):
            victim = self._open[items[at]]
            if death.over_limit or victim == self._suspect:
                self._open[items[at]], self._suspect = death, None
            else:
                # The machine may have killed the worker for reasons of its own: the item is tried once more.
                self._suspect = victim if isinstance(victim, bytes) else None
        else:
            self._ends += 1
            if self._ends > MAX_ENDS:
                raise WorkerError(
                    f"a worker process ({self.program.target}) keeps ending between items",
                    found=f"exit status {death.status}, {self._ends} times without an answer",
                    expected="a process that stays while there are items",
                    remedy="look for what ends it: the out-of-memory killer, a limit on processes",
                )
        self._drain()


class SpareWorkers:
    """Idle workers, kept for the next stream. Those that a fork has inherited belong to its parent: it ends none."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Program], Worker] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, program: Program) -> Worker:
        """The spare worker of this process for this program, or a new one."""
        spare = self._kept.pop((os.getpid(), program), None)
        if spare is not None and _reusable(spare):
            return spare
        if spare is not None:
            spare.end()
        return Worker(program)

    def keep(self, worker: Worker) -> None:
        """Keep a worker with nothing left to answer; only the latest is kept."""
        self.end()
        if _reusable(worker) and self._kept.setdefault((os.getpid(), worker.program), worker) is worker:
            return
        worker.end()

    def end(self) -> None:
        """End the workers of this process."""
        for key in list(self._kept):
            spare = self._kept.pop(key, None)
            if spare is not None and key[0] == os.getpid():
                spare.end()


def _reusable(worker: Worker) -> bool:
    return worker.alive and worker.sent_bytes < RETIRE_BYTES


SPARES = SpareWorkers()
