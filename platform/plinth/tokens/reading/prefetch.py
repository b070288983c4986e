"""Make batches in a background thread, before they are taken."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetched(made: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, made up to `depth` ahead by a thread that ends with its consumer; on demand where that is 0."""
    if not depth:
        yield from made
        return
    ready: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: tuple[T] | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in made:
                put((item,))
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # an error in the thread must reach its consumer
            put(error)

    thread = threading.Thread(target=work, name="loader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stopped.set()
        thread.join()
