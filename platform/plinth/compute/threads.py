"""Threads of this process, where starting workers takes longer; the threads of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

# Tasks on threads of this process: for questions that a person waits for, where starting workers takes longer.
#
# Worth it for tasks that spend their time in Arrow and kernels, which let other threads run. Time limits and retries do
# not apply: what kills a task kills the process.

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads:
    """An engine of threads, which live as long as a `map`.

    Args:
        workers: number of threads, at least 1.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)

    def map(
        self,
        fn: Callable[[T], R],
        tasks: Sequence[T],
        *,
        timeout_s: float | None = None,
        retries: int = 1,
        done: Callable[[int, R], None] | None = None,
    ) -> Iterator[R]:
        """Yield `fn(task)` in task order; what a task raises is raised as it is, and tasks not begun are dropped."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="task") as pool:
            running = [pool.submit(fn, task) for task in tasks]
            try:
                for index, one in enumerate(running):
                    result = one.result()
                    if done:
                        done(index, result)
                    yield result
            finally:
                for one in running:
                    one.cancel()

    def close(self) -> None:
        """Nothing is held between calls."""


@contextmanager
def torch_threads(count: int = 1) -> Iterator[None]:
    """So many threads of PyTorch work on an operation within.

    One thread adds up in one order, whatever the machine; and on work that is too small to divide, on a busy machine,
    the waiting of threads for one another took fifty times the work.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
