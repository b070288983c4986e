"""The parent's handle on a child process: pages and answers through pipes that never block both ends, and one spare.

A child takes half a second to start, so an idle one is kept for the next part that wants the same engine and limit.
It belongs to this process alone: a fork of it starts another.
"""

from __future__ import annotations

import atexit
import fcntl
import mmap
import os
import select
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from typing import IO, cast

from plinth.corpus.extract.page import COUNTS, READY, Answer, answered
from plinth.corpus.sources.parameters import Extraction
from plinth.errors import WorkerError

GRACE_S = 5.0
#: One batch of ordinary pages fits: it is sent in one turn, while the child reads the batch before it.
PIPE_BYTES = 1 << 20
#: A child that has read so much is replaced, because its library may keep memory of the pages.
RETIRE_BYTES = 1 << 30
#: For glibc: memory of one page serves the next instead of going back to the kernel each time.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**28), "MALLOC_TRIM_THRESHOLD_": str(2**28)}


class Child:
    """One running child process."""

    def __init__(self, params: Extraction) -> None:
        self.key = _key(params)
        self._ready, self._sent_bytes = False, 0
        self._outbox: deque[memoryview] = deque()
        self._inbox = bytearray()
        self._command = [sys.executable, "-P", "-m", "plinth.corpus.extract.child", params.engine]
        counts = os.memfd_create("plinth-extract")
        try:
            os.truncate(counts, COUNTS.size)
            self._counts = mmap.mmap(counts, COUNTS.size)
            self._process = subprocess.Popen(
                [*self._command, str(params.seconds_per_page), str(counts)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[counts],
                bufsize=0,
                env={**os.environ, **KEEP_MEMORY, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        finally:
            os.close(counts)
        self.pid = self._process.pid
        self._in, self._out = (cast(IO[bytes], pipe).fileno() for pipe in (self._process.stdin, self._process.stdout))
        for pipe in (self._in, self._out):
            os.set_blocking(pipe, False)
            with suppress(OSError):  # a system may not allow as much: then a batch takes more writes
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def send(self, data: bytes) -> None:
        """Hand over as much as the pipe takes now; the rest goes when answers are waited for."""
        self._sent_bytes += len(data)
        self._outbox.append(memoryview(data))
        self._push()

    def receive(self) -> list[Answer]:
        """The answers that are there, waiting for something to come.

        Raises:
            EOFError: the child has gone; what it had answered came before.
            WorkerError: it never was ready.
        """
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if self._outbox:
            poll.register(self._in, select.POLLOUT)
        events = dict(poll.poll())
        if self._in in events:
            self._push()
        if self._out in events:
            data = os.read(self._out, PIPE_BYTES)
            if not data:
                self._require_ready()
                raise EOFError
            self._inbox += data
            if not self._ready and len(self._inbox) >= len(READY):
                self._ready = self._inbox.startswith(READY)
                self._require_ready()
                del self._inbox[: len(READY)]
            if self._ready:
                return answered(self._inbox)
        return []

    def begun_and_ended(self) -> tuple[int, int]:
        """How many pages the child has begun to read and how many it has done with."""
        begun, ended = COUNTS.unpack_from(self._counts)
        return begun, ended

    def died(self) -> int:
        """The exit status of a child that has closed its end; negative for a signal."""
        try:
            return self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self.end()

    def end(self) -> None:
        """Kill it, and leave nothing behind."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            cast(IO[bytes], stream).close()
        self._counts.close()

    @property
    def reusable(self) -> bool:
        """Whether it lives and has not read enough to be replaced."""
        return self._sent_bytes < RETIRE_BYTES and self._process.poll() is None

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
                f"the extraction process ({self._command[-1]}) does not start",
                found=f"exit status {self.died()}",
                expected="a process that answers",
                remedy=f"`{' '.join(self._command)} 5 < /dev/null` shows why",
            )


def _key(params: Extraction) -> tuple[int, str, float]:
    return os.getpid(), params.engine, params.seconds_per_page


class SpareChildren:
    """Idle children, kept for the next part. Those that a fork has inherited belong to its parent: it ends none."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, float], Child] = {}
        atexit.register(self.end)

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, params: Extraction) -> Child:
        """The spare child of this process for these parameters, or a new one."""
        spare = self._kept.pop(_key(params), None)
        if spare is not None and spare.reusable:
            return spare
        if spare is not None:
            spare.end()
        return Child(params)

    def keep(self, child: Child) -> None:
        """Keep a child with nothing left to answer for the next part; only the latest is kept."""
        self.end()
        if child.reusable and self._kept.setdefault(child.key, child) is child:
            return
        child.end()

    def end(self) -> None:
        """End the children of this process."""
        for key in list(self._kept):
            spare = self._kept.pop(key, None)
            if spare is not None and key[0] == os.getpid():
                spare.end()


SPARES = SpareChildren()
