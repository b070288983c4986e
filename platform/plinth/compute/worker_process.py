"""The process of a worker: `python -m plinth.compute.worker_process MODULE:FUNCTION [ARGUMENT ...]`.

The function is called once, with an `ItemWatch` and the arguments, and returns the handler. The handler turns the items
of a batch into answers, in order, and reports the start and end of each item to the watch. During an item, kernel
timers run whose signals end the process, because no code inside the process can stop an endless loop in C or Rust code.
Two counts in shared memory (items started, items ended) identify the current item of a dead worker.

    greeting   READY, sent once, when the handler is loaded
    batch      number of items, number of bytes that follow; the length of each item; the items
    answer     length; the answer. Answers are sent together, because each separate write wakes the owner

The kernel ends the process when its owner dies, whatever code is running. Started by hand, the process serves its
standard input.
"""

from __future__ import annotations

import fcntl
import importlib
import math
import mmap
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator

READY = b"ready"
BATCH = struct.Struct("<IQ")
LENGTH = struct.Struct("<Q")
COUNTS = struct.Struct("=QQ")
#: Maximum size of buffered answers.
FLUSH_BYTES = 1 << 18
#: Setting a timer costs as much as a small item, so timers are reset only after this share of the limit may be used up.
#: An item therefore gets at least its limit, and at most this share more.
SLACK = 0.05

Handler = Callable[[Iterator[memoryview]], Iterator[bytes]]


class ItemWatch:
    """Time limits of the current item, and the counts that identify it.

    Args:
        counts: file descriptor of the shared memory; None for a process started by hand.
    """

    def __init__(self, counts: int = -1) -> None:
        self._counts = memoryview(mmap.mmap(counts, COUNTS.size)).cast("Q")
        self.limit()

    def limit(self, *, cpu_s: float = math.inf, wall_s: float = math.inf) -> None:
        """Set the limits of CPU time and wall-clock time per item, starting with the next item. CPU limits do not
        depend on the load of the machine; only wall-clock limits apply to a sleeping item."""
        limits = (signal.ITIMER_PROF, cpu_s), (signal.ITIMER_REAL, wall_s)
        self._limits = [(timer, seconds) for timer, seconds in limits if seconds < math.inf]
        self._slack, self._set_at = min(cpu_s, wall_s) * SLACK, -math.inf

    def begin(self) -> None:
        """Mark the start of the next item, and start its timers."""
        self.renew()
        self._counts[0] += 1

    def renew(self) -> None:
        """Restart the time limits of the current item after progress."""
        # Wall-clock time passes at least as fast as CPU time, and reading it costs almost nothing.
        if time.perf_counter() - self._set_at > self._slack:
            for timer, seconds in self._limits:
                signal.setitimer(timer, seconds * (1 + SLACK))
            self._set_at = time.perf_counter()

    def end(self) -> None:
        """Mark the end of the current item. The timers keep running for the next item."""
        self._counts[1] += 1

    def stop(self) -> None:
        """Stop the timers between items, because time spent now does not count toward an item."""
        for timer, _ in self._limits:
            signal.setitimer(timer, 0)
        self._set_at = -math.inf


def serve(target: str, arguments: list[str], counts: int = -1, owner: int = -1, idle_s: float = math.inf) -> None:
    """Answer batches until the owner closes its end of the pipe.

    Args:
        target: `module:function`, which returns the handler.
        counts: file descriptor of the shared memory.
        owner: the end of a pipe whose other end closes when the owner dies.
        idle_s: end after this many seconds without a batch, to free memory; the owner starts a new worker if needed.
    """
    _die_with(owner)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner handles interrupts
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    batches, answers = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of a library must not get into the answers
    module, _, function = target.partition(":")
    handle: Handler = getattr(importlib.import_module(module), function)(ItemWatch(counts), *arguments)
    _write(answers, READY)
    while (items := _batch(batches, idle_s)) is not None:
        held, size = list[bytes](), 0
        for answer in handle(items):
            held += (LENGTH.pack(len(answer)), answer)
            size += len(answer)
            if size >= FLUSH_BYTES:
                _write(answers, b"".join(held))
                held, size = [], 0
        _write(answers, b"".join(held))


def _die_with(owner: int) -> None:
    """Let the kernel end this process when the other end of the pipe closes. Unlike with `PR_SET_PDEATHSIG`, the
    process survives the end of the thread that started it."""
    if owner < 0:
        return
    os.set_inheritable(owner, False)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(owner, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(owner, fcntl.F_SETFL, fcntl.fcntl(owner, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([owner], [], [], 0)[0]:
        os._exit(1)  # the owner died before


def _batch(stream: int, idle_s: float) -> Iterator[memoryview] | None:
    """Return the items of the next batch, or None if the owner has exited or sent nothing for `idle_s` seconds."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    if not poll.poll(idle_s * 1000 if idle_s < math.inf else None):
        return None
    head = _exactly(stream, BATCH.size)
    if head is None:
        return None
    count, size = BATCH.unpack(head)
    data = _exactly(stream, size)
    return None if data is None else _items(count, data)


def _items(count: int, data: memoryview) -> Iterator[memoryview]:
    at = count * LENGTH.size
    for (length,) in LENGTH.iter_unpack(data[:at]):
        yield data[at : at + length]
        at += length


def _exactly(stream: int, size: int) -> memoryview | None:
    data, at = memoryview(bytearray(size)), 0
    while at < size:
        read = os.readv(stream, [data[at:]])
        if not read:
            return None
        at += read
    return data


def _write(stream: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(stream, left) :]


def main(words: list[str]) -> None:
    """Serve according to the command line: `[--owned COUNTS OWNER IDLE_S] MODULE:FUNCTION [ARGUMENT ...]`."""
    if words[0] == "--owned":
        counts, owner, idle_s, target, *arguments = words[1:]
        serve(target, arguments, int(counts), int(owner), float(idle_s))
    else:
        serve(words[0], words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
