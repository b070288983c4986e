"""Prefetch batches in a background thread, and measure how long their consumer waited."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plinth.tokens.reading.loader import RankBatch


def timed(made: Iterator[RankBatch]) -> Iterator[RankBatch]:
    """The same batches with `wait_s` set, made on demand."""
    while True:
        started = time.perf_counter()
        batch = next(made, None)
        if batch is None:
            return
        yield replace(batch, wait_s=time.perf_counter() - started)


def prefetched(made: Iterator[RankBatch], depth: int) -> Iterator[RankBatch]:
    """The same batches with `wait_s` set, made up to `depth` ahead by a thread that ends with its consumer."""
    ready: queue.Queue[RankBatch | BaseException | None] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: RankBatch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for batch in made:
                put(batch)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # an error in the thread must reach its consumer
            put(error)

    thread = threading.Thread(target=work, name="loader", daemon=True)
    thread.start()
    try:
        while True:
            started = time.perf_counter()
            item = ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield replace(item, wait_s=time.perf_counter() - started)
    finally:
        stopped.set()
        thread.join()
