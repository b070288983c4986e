"""Choice of the engine for corpus stages: local processes or a Ray cluster. The engine changes only the time, never the
results.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from typing import Any, TypeVar

from plinth import processes
from plinth.compute.engine import Engine, LocalEngine, died, drive, outcome, over_limit
from plinth.errors import MissingError, RecipeError, WorkerError

# The same map over a Ray cluster: ordered results, bounded retries, a time limit per task.
#
# Tasks and results are small records; their data is in the workspace's store, so every node must see
# the workspace under the same path (a shared file system), or the workspace is shared through S3. A worker or a node
# that dies loses only its own tasks, which are retried elsewhere.

T = TypeVar("T")
R = TypeVar("R")

#: Number of tasks queued in Ray in addition to one per core, so that no core waits for the driver.
AHEAD = 2
#: Interval, in seconds, at which the driver checks tasks for timeouts.
TICK_S = 1.0
#: A cluster whose head does not answer within this many seconds counts as unreachable.
ANSWER_S = 10.0


class RayEngine:
    """Engine on a Ray cluster, connected to on first use.

    Args:
        address: `host:port` of a running cluster, or `auto`; if empty, a cluster is started on this machine.
        workers: number of cores of a cluster that is started here; ignored for a running cluster.
    """

    def __init__(self, address: str = "", workers: int = 2) -> None:
        self.address, self.workers = address, max(1, workers)
        self._connected = False

    def __enter__(self) -> RayEngine:
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
            WorkerError: after `retries` further attempts, the function raised another exception, the worker or its node
                died, or the task exceeded its time limit; or the cluster cannot be reached.
            MissingError: Ray is not installed.
        """
        run = _Map(self._connect(), fn, timeout_s)
        return drive(run, tasks, retries=retries, done=done)

    def close(self) -> None:
        """Disconnect from the cluster. A cluster that this engine started is stopped."""
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
                with chdir(processes.elsewhere()):  # Ray puts the working directory on the path of its workers
                    ray.init(**options, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise _unreachable(self.address, error) from error
            self._connected = True
        return ray


class _Map:
    """Tasks of one `map` call on a Ray cluster."""

    def __init__(self, ray: Any, fn: Callable[..., Any], timeout_s: float | None) -> None:
        self._ray, self._limit_s = ray, timeout_s or float("inf")
        self._running = dict[Any, tuple[int, float]]()
        # Retries are counted here, as in the local engine, because Ray's own retries do not distinguish a bad task from
        # a bad node.
        self._remote = ray.remote(_run).options(num_cpus=1, max_retries=0)
        self._function = ray.put(fn)
        self._room = self._cores() + AHEAD

    def start(self, index: int, task: Any) -> bool:
        if len(self._running) >= self._room:
            return False
        reference = self._remote.remote(self._function, task)
        self._running[reference] = (index, time.monotonic() + self._limit_s)
        return True

    def collect(self) -> list[tuple[int, Any]]:
        """Return results, errors, and timeout errors of tasks that ran over their limit."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=TICK_S)
        if ready:
            ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        found = []
        for reference in ready:
            index, _ = self._running.pop(reference)
            found.append((index, _outcome(self._ray, reference)))
        for reference, (index, limit) in list(self._running.items()):
            if time.monotonic() > limit:
                self._ray.cancel(reference, force=True)
                del self._running[reference]
                found.append((index, over_limit()))
        self._room = self._cores() + AHEAD  # nodes come and go
        return found

    def abandon(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)

    def _cores(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))


def _require_answer(address: str) -> None:
    """Fail fast if no process listens at the address, because Ray itself would wait minutes."""
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
        expected="a running cluster with the same Ray and Python versions",
        remedy="check the cluster with `ray status --address HOST:PORT`",
    )


def _outcome(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return died("a Ray worker or its node", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


def _run(fn: Callable[[Any], Any], task: Any) -> Any:
    """Run a task in a Ray worker; return its result, or its exception as a value, unchanged."""
    return outcome(fn, task)


ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Compute:
    """Choice of an engine by name.

    Args:
        engine: `local` or `ray`.
        workers: number of local processes, or of cores of a Ray cluster that is started here.
        address: running Ray cluster, `host:port` or `auto`; if empty, a cluster is started on this machine.
        share: share `i/n` of the tasks, if several processes work on the same workspace; if empty, all tasks.
    """

    engine: str = "local"
    workers: int = 2
    address: str = ""
    share: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Compute:
        """Read `PLINTH_ENGINE`, `PLINTH_WORKERS` and `PLINTH_RAY_ADDRESS`, for processes that Dagster starts."""
        return cls(
            environment.get("PLINTH_ENGINE", "local"),
            int(environment.get("PLINTH_WORKERS", "2")),
            environment.get("PLINTH_RAY_ADDRESS", ""),
        )

    def environment(self) -> dict[str, str]:
        """Return these settings as environment variables for a child process."""
        return {"PLINTH_ENGINE": self.engine, "PLINTH_WORKERS": str(self.workers), "PLINTH_RAY_ADDRESS": self.address}

    def open(self) -> Engine:
        """Return the engine; close it when done.

        Raises:
            RecipeError: there is no engine with this name.
        """
        if self.engine == "local":
            return LocalEngine(self.workers)
        if self.engine == "ray":
            return RayEngine(self.address, self.workers)
        raise RecipeError(f"no engine {self.engine!r}", expected=" or ".join(ENGINES))


#: Default engine of a run.
DEFAULT = Compute()
