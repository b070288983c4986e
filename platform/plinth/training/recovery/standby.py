"""Processes on each node that have loaded torch and wait to take the place of lost ranks.

    supervisor ── starts ──▶ `python -m plinth.training CONFIG --standby`: imports, waits
               ── environment of the lost rank, one JSON line ──▶ joins the others

Loading torch and DeepSpeed takes most of the time of a recovery. The processes use no device before
they become ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from plinth import processes
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.supervise.rank_watch import Process

#: Argument of a process that waits.
OPTION = "--standby"


class StandbyStarter:
    """Starts the ranks of a node, and keeps processes waiting for the next loss.

    Args:
        count: number of waiting processes: one, or one per rank if all ranks of a node may start again.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: list[subprocess.Popen[bytes]] = []

    def __call__(self, command: list[str], environment: dict[str, str], locks: tuple[int, ...]) -> Process:
        """Start a rank that recovers from memory: a waiting process, if one is alive."""
        link = RecoveryLink.of(environment)
        process: Process | None = None
        while self._waiting and process is None and link is not None:
            waiting = self._waiting.pop()
            if self._told(waiting, command[4:], environment):
                process = waiting
        if process is None:
            process = self._start(command, environment, locks, subprocess.DEVNULL)
        if link is not None:
            self.fill(command, environment, locks)
        return process

    def fill(self, command: list[str], environment: Mapping[str, str], locks: tuple[int, ...]) -> None:
        """Start processes until enough are waiting."""
        self._waiting = [one for one in self._waiting if one.poll() is None]
        while len(self._waiting) < self._count:
            self._waiting.append(self._start([*command, OPTION], environment, locks, subprocess.PIPE))

    def close(self) -> None:
        """End the waiting processes."""
        for waiting in self._waiting:
            waiting.kill()
            waiting.wait()
            assert waiting.stdin is not None
            waiting.stdin.close()
        self._waiting = []

    @staticmethod
    def _told(waiting: subprocess.Popen[bytes], arguments: list[str], environment: dict[str, str]) -> bool:
        """Tell the waiting process which rank it is. Return False if it has ended."""
        assert waiting.stdin is not None
        try:
            waiting.stdin.write(json.dumps({"environment": environment, "arguments": arguments}).encode() + b"\n")
            waiting.stdin.close()
        except OSError:
            return False
        return waiting.poll() is None

    @staticmethod
    def _start(
        command: list[str], environment: Mapping[str, str], locks: tuple[int, ...], stdin: int
    ) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = processes.start(command, own=environment, stdin=stdin, pass_fds=locks)
        return process


def wait() -> list[str]:
    """Load what a rank needs, and wait for the environment and the arguments of a rank, which are returned."""
    import torch

    if torch.cuda.is_available():
        sys.exit(0)  # on GPUs all ranks restart
    os.environ["DS_ACCELERATOR"] = "cpu"  # before the import
    from plinth.training.engine.ranks import import_deepspeed
    from plinth.training.recovery import survival  # noqa: F401

    import_deepspeed(cuda=False)
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)  # the supervisor has ended
    given = json.loads(line)
    os.environ.clear()
    os.environ.update(given["environment"])
    return list(given["arguments"])
