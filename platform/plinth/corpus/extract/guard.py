"""`Extractor`: the parent's end of the child process."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, cast

from plinth.corpus.extract.page import READY, Failure, Page, Text, read_answer, write_request
from plinth.errors import WorkerError
from plinth.recipe.sources import Extraction

TIMERS = (signal.SIGPROF, signal.SIGALRM)
GRACE_S = 5.0
#: One batch of ordinary pages crosses in few turns.
PIPE_BYTES = 1 << 20
#: For glibc: memory of one page serves the next instead of going back to the kernel each time.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**28), "MALLOC_TRIM_THRESHOLD_": str(2**28)}


class Extractor:
    """Main content of pages, whatever the pages do to the parser. Use as a context manager.

    Args:
        params: engine and seconds of CPU time per page.
    """

    def __init__(self, params: Extraction) -> None:
        self.params = params
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def extract(self, pages: Sequence[Page]) -> Iterator[Text | Failure]:
        """What came out of each page, in order. A page that kills the child is a failure; the rest go on.

        Raises:
            WorkerError: when the child cannot even start.
        """
        waiting, suspect = list(pages), False
        while waiting:
            # After a death the page that was being read is tried once more, alone: the machine may have
            # killed the child for reasons of its own.
            batch = waiting[:1] if suspect else waiting
            answered = 0
            for answer in self._serve(batch):
                answered += 1
                yield answer
            waiting = waiting[answered:]
            if answered == len(batch):
                suspect = False
                continue
            code = self._died()
            if -code in TIMERS or suspect:
                yield _failure(code, self.params)
                waiting, suspect = waiting[1:], False
            else:
                suspect = True

    def _serve(self, batch: Sequence[Page]) -> Iterator[Text | Failure]:
        """The answers to a batch, ending early when the child dies."""
        child = self._started()
        try:
            write_request(cast(IO[bytes], child.stdin), batch)
            for _ in batch:
                yield read_answer(cast(IO[bytes], child.stdout))
        except (EOFError, BrokenPipeError):
            return

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            command = [sys.executable, "-P", "-m", "plinth.corpus.extract.child"]
            self._child = subprocess.Popen(
                [*command, self.params.engine, str(self.params.seconds_per_page)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **KEEP_MEMORY, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            for pipe in (self._child.stdin, self._child.stdout):
                with suppress(OSError):  # a system may not allow as much: then it takes more turns
                    fcntl.fcntl(cast(IO[bytes], pipe).fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            if cast(IO[bytes], self._child.stdout).read(len(READY)) != READY:
                raise WorkerError(
                    f"the extraction process ({self.params.engine}) does not start",
                    found=f"exit status {self._died()}",
                    expected="a process that answers",
                    remedy=f"`{' '.join(command)} {self.params.engine} 5 < /dev/null` shows why",
                )
        return self._child

    def _died(self) -> int:
        """The exit status of a child that has closed its end; negative for a signal."""
        child = cast("subprocess.Popen[bytes]", self._child)
        try:
            return child.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                cast(IO[bytes], stream).close()


def _failure(code: int, params: Extraction) -> Failure:
    if -code in TIMERS:
        return Failure("extract_timeout", f"{params.engine} took more than {params.seconds_per_page:g} s of CPU time")
    name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return Failure("extract_failed", f"{params.engine} died of the page: {name}")
