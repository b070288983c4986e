"""The process that holds a model, as the engine sees it: lines over its pipes, files in its folder. Free of torch.

A process that has answered all it was asked waits for the next engine of the same checkpoint, so that the stages of an
evaluation import torch and load the model once between them. One waits at most; it ends before another model is
loaded, with the run (`SPARE.end`), and with this process, whose end closes its input.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from plinth import processes
from plinth.storage.atomic import named_failures

TAIL_LINES = 25


class ModelKey(NamedTuple):
    """What makes one process as good as another: where its files are, content of the model, threads."""

    tmp: Path
    blobs: tuple[str, ...]
    workers: int


class ModelChild:
    """A process and its folder.

    Args:
        tmp: where the folder is made.
        model: puts the model into the folder; returns where it lies.
        workers: threads.
        digests: SHA-256 of the model's files by name, where they are known.
    """

    def __init__(
        self, tmp: Path, model: Callable[[Path], Path], workers: int, digests: Mapping[str, str] | None = None
    ) -> None:
        with named_failures(tmp):
            tmp.mkdir(parents=True, exist_ok=True)
        self.folder = Path(mkdtemp(prefix="evaluation-", dir=tmp))
        self._log = self.folder / "log"
        try:
            self.process = _started(model(self.folder), workers, self._log)
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        with suppress(OSError):  # it is gone, and what asks it next will say so
            self._write(digests)
        self.ready: dict[str, Any] | None = None  # what it says of the model, once it has
        self._owes = True  # a line: the first, or the answer to a call
        self.calls = count()

    @property
    def idle(self) -> bool:
        """Whether it lives and owes no answer."""
        return not self._owes and self.process.poll() is None

    def send(self, content: dict[str, Any]) -> None:
        """Ask.

        Raises:
            EOFError: the process is gone.
        """
        self._owes = True
        try:
            self._write(content)
        except OSError:
            raise EOFError from None

    def _write(self, content: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(content) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Its next line.

        Raises:
            EOFError: the process is gone.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError
        content: dict[str, Any] = json.loads(line)
        if "ready" in content:
            self.ready = content["ready"]
        if self.ready is not None and content.keys() & {"ready", "answered", "error"}:
            self._owes = False
        return content

    def ended(self) -> str:
        """How a process that is gone ended, with the end of its log."""
        code = self.process.wait()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the child process ended with {ended}\n{tail}".rstrip()

    def end(self) -> None:
        """It holds nothing that would be lost."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class SpareChild:
    """The idle process, if there is one. One that a fork has inherited belongs to its parent."""

    def __init__(self) -> None:
        self._kept: tuple[int, ModelKey, ModelChild] | None = None
        atexit.register(self.end)

    def take(self, key: ModelKey | None) -> ModelChild | None:
        """The idle process, if it is the one wanted. Of another model it ends: two would need twice the memory."""
        kept, self._kept = self._kept, None
        if kept is None or kept[0] != os.getpid():
            return None
        if kept[1] == key and kept[2].idle:
            return kept[2]
        kept[2].end()
        return None

    def keep(self, key: ModelKey | None, child: ModelChild) -> None:
        """Keep a process for the next engine with this key, instead of the one before."""
        if key is None or not child.idle:
            child.end()
            return
        self.end()
        self._kept = (os.getpid(), key, child)

    def end(self) -> None:
        """End the idle process."""
        self.take(None)


SPARE = SpareChild()


def _started(model: Path, workers: int, log: Path) -> subprocess.Popen[str]:
    command = processes.python("plinth.evaluation.engine", str(model), str(workers))
    with log.open("wb") as output:
        process: subprocess.Popen[str] = processes.start(
            command,
            own=processes.heap(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    return process
