"""Strike a process at the k-th change that it makes to a file system.

    install(k)   from now on count every creation, write, flush, rename and deletion; at number k, SIGKILL
    install(0)   only count

A write of tensors is two boundaries: before it, and in the middle of it, half of the bytes on their way.

Does not belong here: which process is struck, and when it begins to count.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from plinth.storage import tensor_file

_CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


class Counter:
    """Counts boundaries of this process."""

    def __init__(self, strike_at: int, strike: Callable[[], None]) -> None:
        self.strike_at, self.strike, self.passed = strike_at, strike, 0

    def cross(self) -> None:
        """One more boundary: strike, where it is the one."""
        self.passed += 1
        if self.passed == self.strike_at:
            self.strike()


def install(strike_at: int, strike: Callable[[], None] | None = None) -> Counter:
    """Count, and strike (by default SIGKILL) before boundary `strike_at`; for the rest of this process's life."""
    counter = Counter(strike_at, strike or die)
    for name in _CALLS:
        setattr(os, name, _counted(counter, getattr(os, name)))
    real = os.open

    def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            counter.cross()
        return real(path, flags, *rest, **options)

    os.open = opened  # temporary files; `Path.open` is covered by the writes into it
    whole = tensor_file.write_whole

    def torn(stream: Any, chunk: memoryview) -> None:
        counter.cross()
        half = chunk.nbytes // 2
        whole(stream, chunk[:half])
        counter.cross()
        whole(stream, chunk[half:])

    tensor_file.write_whole = torn
    return counter


def die() -> None:
    """As the kernel ends a process: nothing is tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)


def _counted(counter: Counter, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        counter.cross()
        return call(*arguments, **options)

    return counted
