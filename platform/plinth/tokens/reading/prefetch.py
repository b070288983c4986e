"""Batches by a background thread, ahead of use, and how long their consumer waited."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plinth.tokens.reading.loader import Batch


def timed(made: Iterator[Batch]) -> Iterator[Batch]:
    while True:
        started = time.perf_counter()
        batch = next(made, None)
        if batch is None:
            return
        yield replace(batch, wait_s=time.perf_counter() - started)


def ahead(made: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """The same batches, made by a thread that ends when the consumer does."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=depth)
    left = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not left.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for batch in made:
                put(batch)
                if left.is_set():
                    return
            put(None)
        except BaseException as error:  # whatever stopped the thread must stop its consumer
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
        left.set()
        thread.join()
