"""The client of the process that writes a rank's checkpoints: start it, send orders, receive answers, end it.

Does not belong here: the work of the process (process), when to save (saving).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

from plinth import processes
from plinth.errors import CheckpointError
from plinth.training.checkpoint.writer.rank_part import Timing
from plinth.training.rank_failure import RankFailure

#: How often a rank that waits for a writer checks that it works.
HEARTBEAT_S = 0.5


class WriterClient:
    """The process that writes, as its rank sees it."""

    def __init__(self, root: Path, rank: int, descriptor: int) -> None:
        module = "plinth.training.checkpoint.writer.writer_process"
        command = processes.python(module, str(root), str(rank), str(descriptor))
        self._process: subprocess.Popen[bytes] = processes.start(
            command,
            *processes.KEYS,
            own={"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(descriptor,),
            bufsize=0,
        )
        self._buffer, self._work, self._ready = b"", 0, False

    def wait_until_ready(self) -> None:
        """Return once the process holds its lock, or has ended."""
        while not self._ready and self.is_alive():
            self._ready = self._line(HEARTBEAT_S) is not None

    def order(self, at: int, size: int, total: int, timing: Timing) -> None:
        """Order a save; `answer` returns its outcome."""
        self._write(json.dumps({"plan_at": at, "plan_bytes": size, "size": total, "timing": timing}))

    def hurry(self) -> None:
        """Send the process an empty line: this rank waits for the answer."""
        self._write("")

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Its answer, or None when it has none yet; the end of the process is an answer too."""
        line = self._line(timeout_s)
        if line is not None:
            return dict(json.loads(line))
        if self.is_alive():
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
        return {"failure": RankFailure.of(error).model_dump()}

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def made_progress(self) -> bool:
        """Whether it has written or computed since the last call (Linux; elsewhere: whether it lives)."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            written = Path(f"/proc/{self._process.pid}/io").read_text().split("wchar: ")[1].split()[0]
        except (OSError, IndexError):
            return self.is_alive()
        work = int(fields[11]) + int(fields[12]) + int(written)
        before, self._work = self._work, work
        return work > before

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

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
