"""Local worker processes: ordered results, bounded retries, a time limit per task.

A worker that dies or overruns is killed and replaced, and its task is tried again a bounded number of
times. Workers are forked from a clean server process, never from the caller, which may hold threads.
"""

from __future__ import annotations

import atexit
import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from plinth.errors import PlinthError, WorkerError

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


class Inline:
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


class Local:
    """A pool of worker processes, started on first use and kept until `close`.

    Args:
        workers: number of processes, at least 1.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self._pool: list[_Worker] = []
        # Runs before multiprocessing waits for its children, which would wait for their parent.
        atexit.register(self.close)

    def __enter__(self) -> Local:
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
        waiting = deque(enumerate(tasks))
        attempts = [0] * len(tasks)
        results: dict[int, R] = {}
        next_out = 0
        try:
            while next_out < len(tasks):
                self._fill(waiting, fn, timeout_s)
                for index, outcome in self._collect():
                    if isinstance(outcome, BaseException):
                        attempts[index] += 1
                        # What was raised on purpose would be raised again; a dead worker may be bad luck.
                        on_purpose = isinstance(outcome, PlinthError) and not isinstance(outcome, WorkerError)
                        if on_purpose or attempts[index] > retries:
                            raise outcome
                        waiting.appendleft((index, tasks[index]))
                        continue
                    results[index] = outcome
                    if done:
                        done(index, outcome)
                while next_out in results:
                    yield results.pop(next_out)
                    next_out += 1
        finally:
            self._abandon()

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

    def _fill(self, waiting: deque[tuple[int, Any]], fn: Callable[..., Any], timeout_s: float | None) -> None:
        while waiting:
            idle = next((worker for worker in self._pool if worker.job is None), None)
            if idle is None and len(self._pool) >= self.workers:
                return
            if idle is None:
                idle = _Worker()
                self._pool.append(idle)
            index, task = waiting[0]
            try:
                idle.pipe.send((fn, task))
            except OSError:  # it died while it had nothing to do: no attempt at the task was made
                self._replace(idle)
                continue
            waiting.popleft()
            idle.job = (index, time.monotonic() + timeout_s if timeout_s else float("inf"))

    def _collect(self) -> list[tuple[int, Any]]:
        busy = [worker for worker in self._pool if worker.job]
        nearest = min(worker.job[1] for worker in busy if worker.job) - time.monotonic()
        ready = wait([worker.pipe for worker in busy], timeout=max(0.0, min(nearest, 1.0)))
        finished = []
        for worker in busy:
            assert worker.job is not None
            index, deadline = worker.job
            if worker.pipe in ready:
                finished.append((index, self._receive(worker)))
            elif time.monotonic() > deadline:
                self._replace(worker)
                finished.append((index, WorkerError("a task ran over its time limit and was killed")))
        return finished

    def _receive(self, worker: _Worker) -> Any:
        try:
            outcome = worker.pipe.recv()
        except (EOFError, ConnectionError):
            self._replace(worker)
            return WorkerError(
                "a worker process died",
                found=f"exit code {worker.process.exitcode}",
                remedy="run the same command again: finished parts are kept; look for the out-of-memory killer",
            )
        worker.job = None
        return outcome

    def _replace(self, worker: _Worker) -> None:
        worker.kill()
        self._pool.remove(worker)

    def _abandon(self) -> None:
        """After an error or an early exit, no worker may go on writing for a caller that has left."""
        for worker in [worker for worker in self._pool if worker.job]:
            self._replace(worker)


def _serve(pipe: Connection) -> None:
    """The life of a worker: receive (function, task), send the result or the exception."""
    while True:
        try:
            fn, task = pipe.recv()
        except (EOFError, ConnectionError, KeyboardInterrupt):
            return
        try:
            outcome = fn(task)
        except PlinthError as error:
            outcome = error
        except KeyboardInterrupt:
            return
        except BaseException as error:
            outcome = WorkerError(
                f"{fn.__module__}.{getattr(fn, '__name__', fn)} raised {type(error).__name__}",
                found="".join(traceback.format_exception(error)).strip(),
                remedy="this is a defect in Plinth or in a library it calls; the text above names the line",
            )
        try:
            pipe.send(outcome)
        except (BrokenPipeError, ConnectionError):
            return
