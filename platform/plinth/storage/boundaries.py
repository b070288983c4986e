"""Kill a process at its k-th file system change.

    install(k)               counts every creation, write, flush, rename and deletion; at number k, SIGKILL
    install(0, name=NAME)    SIGKILL before a file is renamed to NAME
    install(0)               counts only

A write of tensors has two boundaries: before it, and in its middle, with half of the bytes written.

Does not belong here: selection of the process, and the start of counting.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from plinth.storage import tensor_file

_CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


class Counter:
    """Counter of the boundaries of this process."""

    def __init__(self, strike_at: int, strike: Callable[[], None], name: str) -> None:
        self.strike_at, self.strike, self.name, self.passed = strike_at, strike, name, 0

    def cross(self, *places: Any) -> None:
        """Count one boundary. If it is the chosen one, by number or by the new name of a file, call the strike
        function."""
        self.passed += 1
        if self.passed == self.strike_at or self._renames(places):
            self.strike()

    def _renames(self, places: tuple[Any, ...]) -> bool:
        """Return True if the arguments rename a file to the name; `mkdir` and `fsync` have no second path."""
        return bool(self.name) and any(str(place).endswith(f"/{self.name}") for place in places[1:])


def install(strike_at: int, strike: Callable[[], None] | None = None, name: str = "") -> Counter:
    """Count boundaries until the process ends, and call `strike` (by default SIGKILL) before boundary `strike_at`.

    Args:
        name: also strike before a file is renamed to this name.
    """
    counter = Counter(strike_at, strike or die, name)
    for call in _CALLS:
        setattr(os, call, _counted(counter, getattr(os, call)))
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
    """Kill this process without cleanup, as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _counted(counter: Counter, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        counter.cross(*arguments)
        return call(*arguments, **options)

    return counted
