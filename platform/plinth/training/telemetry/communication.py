"""Exposed communication time of a rank, and detection of slow ranks for which other ranks wait. Imports torch."""

from __future__ import annotations

import functools
import socket
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from plinth.training.config import RunConfig
from plinth.training.parallel.topology import place_of
from plinth.training.telemetry.step_clock import StepClock, StepTime

# Exposed communication: the part of a step in which computation waits for collectives.
#
# A rank communicates while it is in one of three calls, from any library:
#
#     a collective of torch.distributed   NCCL puts one that is not asynchronous on the stream that computes
#     `Work.wait`                         of an asynchronous one; gloo waits here in any case
#     a stream's `wait_stream` and `synchronize`   DeepSpeed reduces on a stream of its own, and has the stream that
#                                         computes wait for that one
#
# On GPUs the marks are on the compute stream (step_clock), so a collective parallel to computation costs nothing here,
# and one that the next kernel waits for costs that wait. On CPUs the rank's thread itself waits.
#
# Limits: a wait for a slower rank is communication of the faster one (this identifies stragglers); a kernel slowed down
# by a parallel collective is computation; and within a compiled graph, as between tensor ranks with
# `training.parallel.compile`, collectives belong to the enclosing forward or backward pass.

#: Functions of torch.distributed that wait, or make the stream wait, unless they are asynchronous.
COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "batch_isend_irecv",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)

_clocks: list[StepClock] = []


def measure(clock: StepClock) -> None:
    """Measure communication time with this clock from now on."""
    _clocks[:] = [clock]
    install()


@functools.cache
def install() -> None:
    """Wrap the communication functions so that their time is measured.

    Call this before DeepSpeed's `init_distributed`, which keeps references to some of these functions.
    """
    for name in COLLECTIVES:
        setattr(dist, name, _measured(getattr(dist, name)))
    dist.Work.wait = _measured(dist.Work.wait)  # type: ignore[method-assign]
    if torch.cuda.is_available():
        for name in ("wait_stream", "synchronize"):
            setattr(torch.cuda.Stream, name, _measured(getattr(torch.cuda.Stream, name)))


def _computes() -> bool:
    """Return True if this is the main thread, or a thread of autograd, which Python did not start.

    Other threads exchange batches or states in the background.
    """
    thread = threading.current_thread()
    return thread is threading.main_thread() or isinstance(thread, threading._DummyThread)


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _clocks or not _computes():  # graphs have their own kind
            return function(*args, **kwargs)
        with _clocks[0].within("communication"):
            return function(*args, **kwargs)

    return measured


# Stragglers: ranks slower than comparable ranks, detected from each rank's own time.
#
#     every rank: medians of its own seconds over the last steps ──▶ four numbers of each rank, gathered on the device
#                                                                        │ with the numbers of the step
#     leading rank: score = seconds of the fastest rank / own  ◀─────────┘
#
# In a synchronous run all ranks take the same time, since fast ranks wait for slow ones: a rank's own time is its step
# without communication and checkpoint (step_clock). The score is nvidia-resiliency-ext's relative performance score: 1
# is the fastest rank, 0.5 twice as slow. Pipeline stages have different work, so a rank is compared within its stage.
# The parts of its own time (input, host, computation) show why it is slow; events also have the leading rank's.
#
# Gathering costs four FP64 per rank every few steps, on the stream of the step; the result is read with a step's
# numbers, without another host wait.

#: Parts of a rank's own time, and the step marks (step_clock) of each.
OWN_PARTS = {"input": ("data",), "host": ("host",), "compute": ("forward", "backward", "optimizer")}


class RankScore(NamedTuple):
    """Score of a rank's slowness, with its own seconds per step, in total and by each of `OWN_PARTS`."""

    rank: int
    own_s: float
    score: float
    parts: tuple[float, ...] = ()


def scores(
    own_s: Sequence[float], like: Sequence[int], parts: Sequence[Sequence[float]] | None = None
) -> list[RankScore]:
    """Return the score of each rank with a measurement, the slowest first.

    Args:
        own_s: each rank's own seconds, without waits for other ranks; 0 if nothing was measured.
        like: a number for each rank; ranks with the same work have the same number.
        parts: each rank's own seconds by part.
    """
    fastest: dict[int, float] = {}
    for seconds, kind in zip(own_s, like, strict=True):
        if seconds > 0:
            fastest[kind] = min(seconds, fastest.get(kind, seconds))
    measured = [
        RankScore(rank, seconds, fastest[kind] / seconds, () if parts is None else tuple(parts[rank]))
        for rank, (seconds, kind) in enumerate(zip(own_s, like, strict=True))
        if seconds > 0
    ]
    return sorted(measured, key=lambda one: (one.score, one.rank))


class StragglerDetector:
    """Detector of slow ranks. All ranks must create it and call `send` together."""

    def __init__(self, config: RunConfig, rank: Any) -> None:
        self._telemetry, self._rank, self._world = config.telemetry, rank, config.ranks
        self.every = config.telemetry.stragglers_every if config.ranks > 1 else 0
        self._own: deque[tuple[float, ...]] = deque(maxlen=max(1, self.every))
        self._read = 0
        self._sent: deque[tuple[int, Any, Any]] = deque()
        self._slow: tuple[int, ...] = ()
        self._hosts: list[Any] = []
        if self.every:
            self._hosts = [None] * config.ranks
            dist.gather_object(socket.gethostname(), self._hosts if rank.leads else None)
            self._like = [place_of(config.parallel, config.ranks, each).pipeline for each in range(config.ranks)]
            self._per_node = config.launch.ranks_per_node

    def record(self, time: StepTime) -> None:
        """Add a finished step. The first step of an attempt is left out, because kernels are selected and compiled in
        it."""
        self._read += 1
        if self._read == 1:
            return
        own = (sum(time.parts.get(name, 0.0) for name in names) for names in OWN_PARTS.values())
        self._own.append((time.own_s, *own))

    def send(self, step: int) -> None:
        """After a step is launched, gather the measurements of all ranks if the interval is over. The host does not
        wait for GPUs."""
        if not self.every or step % self.every:
            return
        numbers = 1 + len(OWN_PARTS)
        medians = [statistics.median(column) for column in zip(*self._own, strict=True)] or [0.0] * numbers
        own = torch.tensor(medians, dtype=torch.float64)
        gathered = torch.empty(self._world * numbers, dtype=torch.float64, device=self._rank.device)
        dist.all_gather_into_tensor(gathered, own.to(self._rank.device, non_blocking=True))
        arrived = None
        if gathered.is_cuda:
            host = torch.empty(gathered.shape, dtype=gathered.dtype, pin_memory=True)
            host.copy_(gathered, non_blocking=True)
            gathered, arrived = host, torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._sent.append((step, gathered, arrived))

    def forget(self) -> None:
        """Discard the measurements after a rollback, because they belong to other steps."""
        self._sent.clear()
        self._own.clear()

    def at(self, step: int) -> list[RankScore]:
        """Return the scores gathered after this step, the slowest first, or an empty list if there are none."""
        while self._sent and self._sent[0][0] < step:
            self._sent.popleft()
        if not self._sent or self._sent[0][0] != step:
            return []
        _, gathered, arrived = self._sent.popleft()
        if arrived is not None:
            arrived.synchronize()
        rows = gathered.view(self._world, -1).tolist()
        return scores([row[0] for row in rows], self._like, [row[1:] for row in rows])

    def changed(self, found: Sequence[RankScore]) -> dict[str, Any] | None:
        """Return the fields of an event if the set of slow ranks has changed since the last call, otherwise None.

        Only the leading rank calls this.
        """
        slow = [one for one in found if one.score < self._telemetry.straggler_score]
        ranks = tuple(sorted(one.rank for one in slow))
        if not found or ranks == self._slow:
            return None
        self._slow = ranks
        return {
            "ranks": [
                {
                    "rank": one.rank,
                    "node": one.rank // self._per_node,
                    "host": self._hosts[one.rank],
                    "score": round(one.score, 4),
                    "own_s": round(one.own_s, 6),
                    "parts": {part: round(s, 6) for part, s in zip(OWN_PARTS, one.parts, strict=False)},
                }
                for one in slow
            ],
            "fastest_s": round(min(one.own_s for one in found), 6),
            "median_s": round(statistics.median(one.own_s for one in found), 6),
            "over_steps": self.every,
        }
