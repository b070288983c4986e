"""Which task is tried next, what a failure costs, and what may be given out: the same for every engine.

    Attempts   the state of one `map`: waiting, running, tried so often, finished but not yet given out
    drive      the loop over it, for a `Pool` that starts tasks somewhere and collects what came of them
    outcome    a task's result or its exception as a value, on the worker's side
    over_limit, died   the failures that no function raises

No process, no cluster and no clock is known here.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from plinth.errors import PlinthError, WorkerError

T = TypeVar("T")
R = TypeVar("R")


class Pool(Protocol):
    """Where the tasks of one map run. One that was started is collected once, or abandoned."""

    def start(self, index: int, task: Any) -> bool:
        """Start a task, or say that others must end first."""
        ...

    def collect(self) -> Sequence[tuple[int, Any]]:
        """What came of tasks since the last call: index, and a result or an exception; waits, but not for ever."""
        ...

    def abandon(self) -> None:
        """After an error or an early exit, nothing may go on writing for a caller that has left."""
        ...


class Attempts(Generic[R]):
    """The tasks 0 … n-1 of one map. Each is tried at most `1 + retries` times.

    Args:
        tasks: how many.
        retries: further attempts after a failure that may be bad luck.
    """

    def __init__(self, tasks: int, retries: int) -> None:
        self._waiting = deque(range(tasks))
        self._failures = [0] * tasks
        self._retries = retries
        self._results: dict[int, R] = {}
        self._given_out = 0

    @property
    def finished(self) -> bool:
        """Whether every result has been given out."""
        return self._given_out == len(self._failures)

    @property
    def next(self) -> int | None:
        """The task to start next: one that failed before those that were never begun."""
        return self._waiting[0] if self._waiting else None

    def started(self) -> None:
        """`next` runs."""
        self._waiting.popleft()

    def succeeded(self, index: int, result: R) -> None:
        """Keep a result until those before it are there."""
        self._results[index] = result

    def failed(self, index: int, error: BaseException) -> None:
        """Have the task tried again, or give up.

        Raises:
            BaseException: the error, when it was raised on purpose and would be raised again, or was one too many.
        """
        self._failures[index] += 1
        on_purpose = isinstance(error, PlinthError) and not isinstance(error, WorkerError)
        if on_purpose or self._failures[index] > self._retries:
            raise error
        self._waiting.appendleft(index)

    def in_order(self) -> Iterator[R]:
        """Results whose turn has come."""
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
    """Results in task order; `done(index, result)` is called as each task finishes. What runs when this ends early is
    abandoned.

    Raises:
        BaseException: what `Attempts.failed` raises.
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
    """In a worker: the result, or the exception as a value. What was raised on purpose stays as it was."""
    try:
        return fn(task)
    except PlinthError as error:
        return error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust code is no Exception
        return WorkerError(
            f"{getattr(fn, '__module__', '')}.{getattr(fn, '__name__', fn)} raised {type(error).__name__}",
            found="".join(traceback.format_exception(error)).strip(),
            remedy="this is a defect in Plinth or in a library it calls; the text above names the line",
        )


def over_limit() -> WorkerError:
    """The failure of a task that was killed for the time it took."""
    return WorkerError("a task ran over its time limit and was killed")


def died(who: str, found: str) -> WorkerError:
    """The failure of a task whose worker has gone."""
    return WorkerError(
        f"{who} died",
        found=found,
        remedy="run the same command again: finished parts are kept; look for the out-of-memory killer",
    )
