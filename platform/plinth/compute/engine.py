"""Local engines: worker processes with ordered results, bounded retries and a time limit per task; threads.

If a worker dies or exceeds its time limit, it is replaced, and its task is retried a bounded number of times. Workers
are fresh interpreters, never forks of the caller, because the caller may have threads. Workers end with the caller,
even if the caller is killed.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import struct
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from plinth import processes
from plinth.compute.worker import Program, Worker, wait
from plinth.compute.worker_process import Handler, ItemWatch
from plinth.entry_points import OWN, entries
from plinth.errors import PlinthError, WorkerError
from plinth_text.compiled.build import library, sources

# Order of attempts, handling of failures, and order of results; the same for every engine.
#
#     Attempts   the state of one `map`: waiting and running tasks, attempts per task, results not yet yielded
#     drive      the main loop, for a `Pool` that starts tasks and collects their results
#     outcome    a task's result, or its exception as a value; called in the worker
#     over_limit, died   the errors for failures that no function raises
#
# This code knows nothing about processes, clusters or clocks.


class Pool(Protocol):
    """Executor for the tasks of one map. Each started task is collected once, or abandoned."""

    def start(self, index: int, task: Any) -> bool:
        """Start a task; return False if other tasks must end first."""
        ...

    def collect(self) -> Sequence[tuple[int, Any]]:
        """Wait for a bounded time; return the results of tasks that ended since the last call, each with its index. A
        result is a value or an exception."""
        ...

    def abandon(self) -> None:
        """Stop all tasks after an error or an early exit, because no task may write after its caller is gone."""
        ...


R = TypeVar("R")


class Attempts(Generic[R]):
    """Tasks 0 … n-1 of one map. Each task is tried at most `1 + retries` times.

    Args:
        tasks: number of tasks.
        retries: additional attempts after a failure that may be temporary.
    """

    def __init__(self, tasks: int, retries: int) -> None:
        self._waiting = deque(range(tasks))
        self._failures = [0] * tasks
        self._retries = retries
        self._results: dict[int, R] = {}
        self._given_out = 0

    @property
    def finished(self) -> bool:
        """True if every result was yielded."""
        return self._given_out == len(self._failures)

    @property
    def next(self) -> int | None:
        """Return the task to start next. Failed tasks come before tasks that were never started."""
        return self._waiting[0] if self._waiting else None

    def started(self) -> None:
        """Record that the task returned by `next` is running."""
        self._waiting.popleft()

    def succeeded(self, index: int, result: R) -> None:
        """Keep a result until all earlier tasks are complete."""
        self._results[index] = result

    def failed(self, index: int, error: BaseException) -> None:
        """Schedule another attempt of the task, or give up.

        Raises:
            BaseException: the given error, if a retry would raise it again (it was raised on purpose) or if no attempts
                are left.
        """
        self._failures[index] += 1
        on_purpose = isinstance(error, PlinthError) and not isinstance(error, WorkerError)
        if on_purpose or self._failures[index] > self._retries:
            raise error
        self._waiting.appendleft(index)

    def in_order(self) -> Iterator[R]:
        """Yield the results that are next in task order."""
        while self._given_out in self._results:
            result = self._results.pop(self._given_out)
            self._given_out += 1
            yield result


def drive(
    pool: Pool,
    tasks: Sequence[Any],
    *,
    retries: int,
    done: Callable[[int, R], None] | None,
) -> Iterator[R]:
    """Yield results in task order; call `done(index, result)` as each task finishes. Running tasks are abandoned if the
    iteration ends early.

    Raises:
        BaseException: the error of a task that is not tried again.
    """
    attempts = Attempts[R](len(tasks), retries)
    try:
        while not attempts.finished:
            while (index := attempts.next) is not None and pool.start(index, tasks[index]):
                attempts.started()
            for index, came in pool.collect():
                if isinstance(came, BaseException):
                    attempts.failed(index, came)
                    continue
                attempts.succeeded(index, came)
                if done:
                    done(index, came)
            yield from attempts.in_order()
    finally:
        pool.abandon()


def outcome(fn: Callable[[Any], Any], task: Any) -> Any:
    """Run a task in a worker; return its result, or its exception as a value. A `PlinthError` stays unchanged."""
    try:
        return fn(task)
    except PlinthError as error:
        return error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust code is not an Exception
        return WorkerError(
            f"{getattr(fn, '__module__', '')}.{getattr(fn, '__name__', fn)} raised {type(error).__name__}",
            found="".join(traceback.format_exception(error)).strip(),
            remedy="this is a bug in Plinth or in a library; the traceback above shows the line",
        )


def over_limit() -> WorkerError:
    """Return the error for a task that was killed at its time limit."""
    return WorkerError("a task exceeded its time limit and was killed")


def died(who: str, found: str) -> WorkerError:
    """Return the error for a task whose worker died."""
    return WorkerError(
        f"{who} died",
        found=found,
        remedy="run the same command again: finished parts are kept. Check whether the out-of-memory killer ended the "
        "process",
    )


T = TypeVar("T")

#: Format of the wall-clock limit in seconds, which precedes the pickled function and task.
LIMIT = struct.Struct("<d")
#: Maximum wait of `collect`, in seconds.
TICK_S = 1.0


def with_kernels() -> tuple[str, ...]:
    """Return the packages whose kernels tasks call: the core packages and the installed optional packages."""
    ring = {entry.top for entry in entries() if entry.distribution == OWN}
    return ("plinth_text", "plinth", *(package for package in sorted(ring) if sources(package)))


class Engine(Protocol):
    """Interface of engines, which map a module-level function over tasks and yield the results in task order."""

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
    """Engine that runs tasks in this process; for tests and debuggers. Time limits do not apply."""

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


class LocalEngine:
    """Pool of worker processes, started on first use and kept until `close`.

    Args:
        workers: number of processes, at least 1.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self._pool: list[Worker] = []
        self._idle: list[Worker] = []

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
            PlinthError: the error that the function raised on purpose, unchanged.
            WorkerError: after `retries` further attempts, the function raised another exception, the worker died, or
                the task exceeded its time limit.
        """
        return drive(_Map(self, fn, timeout_s), tasks, retries=retries, done=done)

    def close(self) -> None:
        """End all workers."""
        for worker in self._pool:
            worker.end()
        self._pool.clear()
        self._idle.clear()

    def take(self) -> Worker | None:
        """Take an idle worker, or start a new one; return None if all workers are in use. The caller must pass the
        worker to `release` or `end`."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self.end(worker)  # the worker died while idle, so this does not count as an attempt
        if len(self._pool) == self.workers:
            return None
        if not self._pool:
            # Compile kernels here, with a progress display, so that the first task does not spend its time limit on it.
            for package in with_kernels():
                library(package)
        self._pool.append(Worker(PROGRAM))
        return self._pool[-1]

    def release(self, worker: Worker) -> None:
        """Return an idle worker to the pool."""
        self._idle.append(worker)

    def end(self, worker: Worker) -> None:
        """Kill a worker; the next task without an idle worker starts a new one."""
        worker.end()
        self._pool.remove(worker)


class _Map:
    """Tasks of one `map` call on the workers of a `LocalEngine`."""

    def __init__(self, local: LocalEngine, fn: Callable[..., Any], timeout_s: float | None) -> None:
        self._local, self._fn, self._limit = local, fn, LIMIT.pack(timeout_s or math.inf)
        self._running = dict[Worker, int]()

    def start(self, index: int, task: Any) -> bool:
        worker = self._local.take()
        if worker is None:
            return False
        self._running[worker] = index
        worker.send([self._limit + pickle.dumps((self._fn, task))])
        return True

    def collect(self) -> list[tuple[int, Any]]:
        """Return the results that workers sent, and the errors of workers that died."""
        finished = list[tuple[int, Any]]()
        for worker in wait(self._running, TICK_S):
            try:
                answers = worker.receive()
            except EOFError:
                finished.append((self._running.pop(worker), _death(worker.died())))
                self._local.end(worker)
                continue
            if answers:
                finished.append((self._running.pop(worker), pickle.loads(answers[0])))
                self._local.release(worker)
        return finished

    def abandon(self) -> None:
        for worker in self._running:
            self._local.end(worker)
        self._running.clear()


def _death(status: int) -> Exception:
    if status == -signal.SIGALRM:
        return over_limit()
    return died("a worker process", f"exit code {status}")


def run_tasks(watch: ItemWatch) -> Handler:
    """Return a handler for workers that answers with a task's result, or its exception as a value, with time limits."""

    def run(items: Iterator[memoryview]) -> Iterator[bytes]:
        for item in items:
            (limit_s,) = LIMIT.unpack_from(item)
            watch.limit(wall_s=limit_s)
            watch.begin()
            call = outcome(pickle.loads, item[LIMIT.size :])
            answer = outcome(pickle.dumps, call if isinstance(call, Exception) else outcome(*call))
            watch.end()
            watch.stop()
            yield pickle.dumps(answer) if isinstance(answer, Exception) else answer

    return run


#: Corpus tasks read and write the store, whose records are sealed.
PROGRAM = Program(f"{__name__}:{run_tasks.__name__}", needs=(*processes.STORES, *processes.KEYS))


# Tasks on threads of this process, for interactive queries that take less time than starting workers.
#
# Use it for tasks that spend their time in Arrow and kernels, which let other threads run. Time limits and retries do
# not apply, because a crash in a task kills the process.


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads:
    """Engine that runs tasks on threads; the threads exist only during a `map`.

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
        """Yield `fn(task)` in task order; exceptions are raised unchanged, and tasks not started are dropped."""
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
        """Do nothing: there are no resources between calls."""


@contextmanager
def torch_threads(count: int = 1) -> Iterator[None]:
    """Set the number of PyTorch threads within a `with` block.

    With one thread, sums have the same order on any machine. On a busy machine, the synchronization of threads took
    fifty times as long as a small operation itself.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
