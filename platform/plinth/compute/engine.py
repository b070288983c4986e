"""Local worker processes: ordered results, bounded retries, a time limit per task.

A worker that dies or overruns is killed and replaced, and its task is tried again a bounded number of
times. Workers are forked from a clean server process, never from the caller, which may hold threads.
"""

from __future__ import annotations

import atexit
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from plinth.compute.retries import died, drive, outcome, over_limit

T = TypeVar("T")
R = TypeVar("R")

_context = multiprocessing.get_context("forkserver")


class Engine(Protocol):
    """Maps a module-level function over tasks and yields results in task order."""

    def map(
        self,
        fn: Callable[[T], R],
        tasks: Sequence[T],
        *,
        timeout_s: float | None = None,
        retries: int = 1,
        done: Callable[[int, R], None] | None = None,
    ) -> Iterator[R]: ...

    def close(self) -> None: ...


class InlineEngine:
    """Runs tasks in this process; for tests and debuggers. Time limits do not apply."""

    def map(
        self,
        fn: Callable[[T], R],
        tasks: Sequence[T],
        *,
        timeout_s: float | None = None,
        retries: int = 1,
        done: Callable[[int, R], None] | None = None,
    ) -> Iterator[R]:
        for index, task in enumerate(tasks):
            result = fn(task)
            if done:
                done(index, result)
            yield result

    def close(self) -> None:
        return


class _Worker:
    def __init__(self) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(theirs,), daemon=False)
        self.process.start()
        theirs.close()
        self.job: tuple[int, float] | None = None  # index of the task, deadline

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class LocalEngine:
    """A pool of worker processes, started on first use and kept until `close`.

    Args:
        workers: number of processes, at least 1.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self._pool: list[_Worker] = []
        # Runs before multiprocessing waits for its children, which would wait for their parent.
        atexit.register(self.close)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def map(
        self,
        fn: Callable[[T], R],
        tasks: Sequence[T],
        *,
        timeout_s: float | None = None,
        retries: int = 1,
        done: Callable[[int, R], None] | None = None,
    ) -> Iterator[R]:
        """Yield `fn(task)` in task order; `done(index, result)` is called as each task finishes.

        Raises:
            PlinthError: what the function raised on purpose, as it was.
            WorkerError: another exception, a worker that died, or a task over its time limit,
                after `retries` further attempts.
        """
        return drive(_Map(self, fn, timeout_s), tasks, retries=retries, done=done)

    def close(self) -> None:
        """End all workers."""
        atexit.unregister(self.close)
        for worker in self._pool:
            worker.pipe.close()
        for worker in self._pool:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
        self._pool.clear()

    def idle(self) -> _Worker | None:
        """A worker with nothing to do: a new one while there may be more."""
        idle = next((worker for worker in self._pool if worker.job is None), None)
        if idle is None and len(self._pool) < self.workers:
            idle = _Worker()
            self._pool.append(idle)
        return idle

    def busy(self) -> list[_Worker]:
        """The workers that have a task."""
        return [worker for worker in self._pool if worker.job]

    def remove(self, worker: _Worker) -> None:
        """Kill a worker; the next task that finds none idle starts another."""
        worker.kill()
        self._pool.remove(worker)


class _Map:
    """The tasks of one map on the workers of `LocalEngine`."""

    def __init__(self, local: LocalEngine, fn: Callable[..., Any], timeout_s: float | None) -> None:
        self._local, self._fn, self._limit_s = local, fn, timeout_s or float("inf")

    def start(self, index: int, task: Any) -> bool:
        while (worker := self._local.idle()) is not None:
            try:
                worker.pipe.send((self._fn, task))
            except OSError:  # it died while it had nothing to do: no attempt at the task was made
                self._local.remove(worker)
                continue
            worker.job = (index, time.monotonic() + self._limit_s)
            return True
        return False

    def collect(self) -> list[tuple[int, Any]]:
        """What workers have sent; one over its limit is killed."""
        busy = self._local.busy()
        nearest = min(worker.job[1] for worker in busy if worker.job) - time.monotonic()
        ready = wait([worker.pipe for worker in busy], timeout=max(0.0, min(nearest, 1.0)))
        finished = list[tuple[int, Any]]()
        for worker in busy:
            assert worker.job is not None
            index, deadline = worker.job
            if worker.pipe in ready:
                finished.append((index, self._received(worker)))
            elif time.monotonic() > deadline:
                self._local.remove(worker)
                finished.append((index, over_limit()))
        return finished

    def abandon(self) -> None:
        for worker in self._local.busy():
            self._local.remove(worker)

    def _received(self, worker: _Worker) -> Any:
        try:
            came = worker.pipe.recv()
        except (EOFError, ConnectionError):
            self._local.remove(worker)
            return died("a worker process", f"exit code {worker.process.exitcode}")
        worker.job = None
        return came


def _serve(pipe: Connection) -> None:
    """The life of a worker: receive (function, task), send the result or the exception."""
    while True:
        try:
            fn, task = pipe.recv()
            came = outcome(fn, task)
        except (EOFError, ConnectionError, KeyboardInterrupt):
            return
        try:
            pipe.send(came)
        except (BrokenPipeError, ConnectionError):
            return
