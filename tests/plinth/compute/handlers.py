"""Handlers of workers in these tests: in a module that imports little, because a worker starts for many an item."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from plinth.compute.worker_process import Handler, ItemWatch


def shouting(watch: ItemWatch, end: str = "!") -> Handler:
    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        for item in items:
            watch.begin()
            print("to standard output, where the answers do not go")
            if item == b"hang":
                time.sleep(600)
            watch.end()
            yield bytes(item).upper() + end.encode()

    return handle


def failing(watch: ItemWatch) -> Handler:
    raise OSError("no handler here")


def hang_in_c() -> None:
    ctypes.PyDLL(None).pause()  # with the interpreter's lock: no thread and no handler in Python runs


def spin() -> None:
    while True:
        pass


def overflow() -> None:
    ctypes.string_at(0)


def fill_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    try:
        bytearray(2**31)
    except MemoryError:
        os.abort()


HARMS: dict[bytes, Callable[[], object]] = {
    b"sleep": hang_in_c,
    b"spin": spin,
    b"segfault": overflow,
    b"memory": fill_memory,
    b"exit": lambda: os._exit(7),
}
STATUS = {b"sleep": -signal.SIGALRM, b"segfault": -signal.SIGSEGV, b"memory": -signal.SIGABRT, b"exit": 7}


def harmed(watch: ItemWatch) -> Handler:
    """Items that do harm, and paths of items that do it once."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    watch.limit(cpu_s=0.2, wall_s=2.0)

    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        for item in map(bytes, items):
            watch.begin()
            if item in HARMS:
                HARMS[item]()
            if item.startswith(b"/") and not os.path.exists(item):
                Path(os.fsdecode(item)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            watch.end()
            yield item.upper()

    return handle


def leaving(watch: ItemWatch) -> Handler:
    """Ends between items."""

    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        yield from ()
        os._exit(5)

    return handle


def slow(watch: ItemWatch) -> Handler:
    watch.limit(wall_s=1.5)

    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        for item in map(bytes, items):
            watch.begin()
            time.sleep(0.15)
            watch.end()
            yield item

    return handle
