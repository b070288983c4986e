"""Exposed communication: the time in which computation waits for collectives, as a part of the step.

A rank counts as communicating while it is in one of three calls, in whichever library they are made:

    a collective of torch.distributed   NCCL puts one that is not asynchronous on the stream that computes
    `Work.wait`                         of an asynchronous one; gloo waits here in any case
    a stream's `wait_stream` and `synchronize`   DeepSpeed reduces on a stream of its own, and has the stream that
                                        computes wait for that one

On GPUs the marks lie on the stream that computes (step_clock), so that a collective beside computation costs nothing
here, and one on which the next kernel waits costs just that wait. On CPUs the rank's thread waits itself.

Limits: a wait for a slower rank is communication of the faster one (that is what stragglers are found by); a kernel
that a collective beside it slows down is computation; and inside a compiled graph, as between tensor ranks with
`training.parallel.compile`, collectives belong to the forward or backward pass that holds them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from plinth.training.telemetry.step_clock import StepClock

#: The functions of torch.distributed that wait, or have the stream wait, unless they are asynchronous.
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
    """Count communication on this clock from now on, in place of any other."""
    _clocks[:] = [clock]
    install()


@functools.cache
def install() -> None:
    """Have the functions measured. Before `init_distributed` of DeepSpeed, which keeps some of them."""
    for name in COLLECTIVES:
        setattr(dist, name, _measured(getattr(dist, name)))
    dist.Work.wait = _measured(dist.Work.wait)  # type: ignore[method-assign]
    if torch.cuda.is_available():
        for name in ("wait_stream", "synchronize"):
            setattr(torch.cuda.Stream, name, _measured(getattr(torch.cuda.Stream, name)))


def _computes() -> bool:
    """Whether this thread is the one that trains, or one of autograd's, which Python has not started: others exchange
    batches or states beside it."""
    thread = threading.current_thread()
    return thread is threading.main_thread() or isinstance(thread, threading._DummyThread)


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _clocks or not _computes():  # compiled graphs have their own kind
            return function(*args, **kwargs)
        with _clocks[0].within("communication"):
            return function(*args, **kwargs)

    return measured
