"""The same map over a Ray cluster: ordered results, bounded retries, a time limit per task.

Tasks and results are small records; what they read and write lies in the workspace's store, so every node
must see the workspace under the same path (a shared file system) and have Plinth installed. A worker or a
node that dies costs the tasks it held and no other: they are tried again elsewhere.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from plinth.errors import MissingError, PlinthError, WorkerError

T = TypeVar("T")
R = TypeVar("R")

#: Tasks handed to Ray beyond its cores, so that no core waits for the driver; the rest stay here.
AHEAD = 2
#: How often the driver looks for tasks over their limit, seconds.
TICK_S = 1.0
#: A cluster's head that does not answer within this many seconds is not there.
ANSWER_S = 10.0


class Ray:
    """Maps over a Ray cluster, connected to on first use.

    Args:
        address: `host:port` of a running cluster, or `auto`; empty starts one on this machine.
        workers: cores of a cluster that is started here; a running one brings its own.
    """

    def __init__(self, address: str = "", workers: int = 2) -> None:
        self.address, self.workers = address, max(1, workers)
        self._connected = False

    def __enter__(self) -> Ray:
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
            WorkerError: another exception, a worker or node that died, or a task over its time limit,
                after `retries` further attempts; the cluster cannot be reached.
            MissingError: Ray is not installed.
        """
        ray = self._connect()
        attempts = [0] * len(tasks)
        waiting, running = deque(range(len(tasks))), dict[Any, tuple[int, float]]()
        results: dict[int, R] = {}
        next_out = 0
        # Retries are counted here, as in the local engine: Ray's own would not tell a bad task from a bad node.
        remote = ray.remote(_run).options(num_cpus=1, max_retries=0)
        function = ray.put(fn)
        try:
            while next_out < len(tasks):
                room = self._room(ray) - len(running)
                for _ in range(min(room, len(waiting))):
                    index = waiting.popleft()
                    limit = time.monotonic() + timeout_s if timeout_s else float("inf")
                    running[remote.remote(function, tasks[index])] = (index, limit)
                for index, outcome in _collect(ray, running):
                    if isinstance(outcome, BaseException):
                        attempts[index] += 1
                        on_purpose = isinstance(outcome, PlinthError) and not isinstance(outcome, WorkerError)
                        if on_purpose or attempts[index] > retries:
                            raise outcome
                        waiting.appendleft(index)
                        continue
                    results[index] = outcome
                    if done:
                        done(index, outcome)
                while next_out in results:
                    yield results.pop(next_out)
                    next_out += 1
        finally:
            # After an error or an early exit, nothing may go on writing for a caller that has left.
            for reference in running:
                ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._connected:
            import ray

            ray.shutdown()
            self._connected = False

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError as error:
            raise MissingError(
                "Ray is not installed", remedy="pip install 'plinth[ray]', or use --engine local"
            ) from error
        if not ray.is_initialized():
            _require_answer(self.address)
            options = {"address": self.address} if self.address else {"num_cpus": self.workers}
            try:
                ray.init(**options, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise _unreachable(self.address, error) from error
            self._connected = True
        return ray

    def _room(self, ray: Any) -> int:
        return int(ray.cluster_resources().get("CPU", 1)) + AHEAD


def _require_answer(address: str) -> None:
    """Ray itself would wait minutes for a host where nothing listens."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"cannot reach a Ray cluster at {address or 'this machine'}",
        found=f"{type(error).__name__}: {error}",
        expected="a running cluster of the same Ray and Python versions",
        remedy="`ray status --address HOST:PORT` says what is there",
    )


def _collect(ray: Any, running: dict[Any, tuple[int, float]]) -> list[tuple[int, Any]]:
    """What finished, failed or ran over its limit since the last look."""
    ready, _ = ray.wait(list(running), num_returns=1, timeout=TICK_S)
    if ready:
        ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
    found = []
    for reference in ready:
        index, _ = running.pop(reference)
        found.append((index, _outcome(ray, reference)))
    for reference, (index, limit) in list(running.items()):
        if time.monotonic() > limit:
            ray.cancel(reference, force=True)
            del running[reference]
            found.append((index, WorkerError("a task ran over its time limit and was killed")))
    return found


def _outcome(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return WorkerError(
            "a Ray worker or its node died",
            found=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}",
            remedy="run the same command again: finished parts are kept; look for the out-of-memory killer",
        )


def _run(fn: Callable[[Any], Any], task: Any) -> Any:
    """In a Ray worker: the result, or the exception as a value, as it was."""
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    try:
        return fn(task)
    except PlinthError as error:
        return error
    except Exception as error:
        return WorkerError(
            f"{getattr(fn, '__module__', '')}.{getattr(fn, '__name__', fn)} raised {type(error).__name__}",
            found="".join(traceback.format_exception(error)).strip(),
            remedy="this is a defect in Plinth or in a library it calls; the text above names the line",
        )
