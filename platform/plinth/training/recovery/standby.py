"""Process of each node that has loaded torch and DeepSpeed, and forks the node's ranks.

    supervisor ── starts ──▶ `python -m plinth.training CONFIG --standby`: imports, waits
               ── link, locks ──▶ forks a rank, which reads its environment and arguments from the link
               ◀── process id ─── rank

Loading takes most of the time of a start, and of a recovery. The forks share the memory of what is loaded. Before a
fork the process uses no device and computes nothing, so it has no threads but that of Arrow's allocator, which handles
forks.

A rank is forked twice, and its parent exits at once: the kernel then gives it to the supervisor, which is a subreaper
meanwhile. Exit status, signals and the end of the supervisor thus work as for a rank that the supervisor starts itself,
and the end of the process that waits affects no rank.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from plinth import processes
from plinth.training.supervise import rank_watch
from plinth.training.supervise.rank_watch import Process

#: Starts a rank: its command, its environment, and the descriptors of locks that it inherits.
RankStarter = Callable[[list[str], dict[str, str], tuple[int, ...]], Process]

#: Argument of the process that waits.
OPTION = "--standby"

#: Maximum seconds for loading, and for a fork. Then ranks are started in interpreters of their own.
LOADED_S, FORKED_S = 120.0, 10.0

#: Devices of GPUs, on which the process that waits is not used.
GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))

_PR_SET_CHILD_SUBREAPER = 36

#: Maximum number of descriptors that a rank inherits.
_DESCRIPTORS = 16


class ForkedProcess:
    """A child of this process that no `Popen` has started.

    Attributes:
        pid: process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, which is negative if a signal ended the process, or None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the process and return its exit status."""
        status = self._reap(0)
        assert status is not None
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process if it is alive."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _reap(self, options: int) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


class StandbyStarter:
    """Starts the ranks of a node, as forks of the process that waits.

    The methods must be called on the main thread, because the kernel ends ranks with the thread that is their parent.

    Args:
        otherwise: starts a rank if none can be forked.
    """

    def __init__(self, otherwise: RankStarter) -> None:
        self._otherwise = otherwise
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._loaded = False

    def __call__(self, command: list[str], environment: dict[str, str], locks: tuple[int, ...]) -> Process:
        """Start a rank."""
        self.fill(command, environment)
        try:
            process = self._forked(command, environment, locks)
        except (OSError, ValueError) as error:
            print(f"no rank can be forked: {error}", file=sys.stderr, flush=True)
            self.close()
            process = None
        return process or self._otherwise(command, environment, locks)

    def fill(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Start the process that waits, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        on_gpus = environment.get("CUDA_VISIBLE_DEVICES") != "" and any(one.exists() for one in GPUS)
        if on_gpus or sys.platform != "linux":
            return
        self._requests, theirs = socket.socketpair()
        with theirs:  # its environment is that of ranks, because libraries read some variables when they are loaded
            self._process = processes.start([*command[:5], OPTION], own=environment, stdin=theirs)
        self._loaded = False

    def close(self) -> None:
        """End the process that waits. The ranks continue."""
        if self._process is not None and self._requests is not None:
            self._process.kill()
            self._process.wait()
            self._requests.close()
        self._process = self._requests = None

    def _forked(self, command: list[str], environment: dict[str, str], locks: tuple[int, ...]) -> Process | None:
        """Return a rank that the process has forked, or None if there is no such process.

        Raises:
            OSError, ValueError: the process has ended, or does not answer.
        """
        if self._requests is None:
            return None
        if not self._loaded:
            self._requests.settimeout(LOADED_S)
            if not self._requests.recv(1):
                raise ConnectionError("the process that has loaded torch has ended")
            self._loaded = True
        link, theirs = socket.socketpair()
        with link, _adopting():
            link.settimeout(FORKED_S)
            with theirs:
                socket.send_fds(self._requests, [b"."], [theirs.fileno(), *locks])
            link.sendall(json.dumps({"environment": environment, "arguments": command[4:]}).encode() + b"\n")
            if not (said := link.recv(32)):
                raise ConnectionError("the process that has loaded torch has ended")
            link.sendall(b".")  # else the rank ends
        return ForkedProcess(int(said))


@contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of grandchildren whose parent exits in this context."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this system cannot make a process the parent of its grandchildren")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def wait() -> list[str]:
    """Load what a rank needs, and fork ranks. Return only in a rank, whose arguments are returned."""
    gc.disable()  # imported modules stay
    import torch

    if torch.cuda.is_available():
        sys.exit(0)  # a device that was used before a fork cannot be used after it
    os.environ["DS_ACCELERATOR"] = "cpu"  # before the import
    from plinth.training.engine.ranks import import_deepspeed
    from plinth.training.recovery import survival  # noqa: F401

    import_deepspeed(cuda=False)
    gc.freeze()  # a collection would write to the memory that the forks share
    return fork_ranks()


def fork_ranks() -> list[str]:
    """Fork the ranks that the supervisor asks for. Return only in a rank, whose arguments are returned."""
    rank_watch.die_with_supervisor()
    requests = socket.socket(fileno=os.dup(0))
    requests.sendall(b".")
    while descriptors := socket.recv_fds(requests, 1, _DESCRIPTORS)[1]:
        first = os.fork()
        if not first:
            if os.fork():
                os._exit(0)
            requests.close()
            return _joined(socket.socket(fileno=descriptors[0]))
        os.waitpid(first, 0)
        for one in descriptors:
            os.close(one)
    sys.exit(0)  # the supervisor has ended


def _joined(link: socket.socket) -> list[str]:
    """Take the environment of a rank, tell the supervisor the process id of this rank, and return its arguments."""
    with link, link.makefile("r") as lines:
        given = json.loads(lines.readline())
        until = time.monotonic() + FORKED_S
        while os.getppid() != int(given["environment"][rank_watch.SUPERVISOR]):
            if time.monotonic() > until:
                os._exit(1)
            time.sleep(0.001)
        with suppress(OSError):
            link.sendall(str(os.getpid()).encode())
            if lines.read(1):
                with open(os.devnull) as nothing:
                    os.dup2(nothing.fileno(), 0)
                os.environ.clear()
                os.environ.update(given["environment"])
                return list(given["arguments"])
    os._exit(1)  # the supervisor does not wait for this rank
