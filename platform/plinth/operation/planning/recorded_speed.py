"""Tokens a second of a planned run, as like runs of the workspace reached them.

A run's steps as wholes (computation, communication, input and host, but no saves) give FLOP/s by the planner's own
count; that rate and the planned run's count give its speed. Of the same model, division and batch it is the measured.

Does not belong here: which runs are like (`recorded`), the time of another division (`ranking`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from plinth.launch import devices
from plinth.launch.parameters import Launch
from plinth.operation.planning import ranking, recorded
from plinth.operation.planning.machine import CPU
from plinth.operation.planning.recorded import RecordedRun
from plinth.training.attempts.host import hardware
from plinth.training.parameters.parallel import Parallel
from plinth.training.roofline import machine_speed


class RecordedSpeed(NamedTuple):
    """Tokens a second of all ranks, and the runs that it is from, in words."""

    tokens_per_second: float
    source: str


def speed(
    runs: Iterable[RecordedRun], work: ranking.TrainingWork, block: Parallel, micro: int, launch: Launch,
    device: str | None = None,
) -> RecordedSpeed | None:  # fmt: skip
    """The median of like runs on the same kind of device, those of this very machine alone where there are any.

    Args:
        micro: sequences of a rank's micro batch.
        launch: where ranks start; on this machine its device is meant, elsewhere that of the newest run.
        device: by its name, where it was stated.

    Returns:
        None where no such run is recorded.
    """
    timed = [run for run in runs if run.whole_flops_per_s is not None]
    name, machine = (device, "") if device else _place(timed, launch)
    found, words = recorded.chosen(timed, name, machine, work)
    if not found:
        return None
    together = launch.ranks_per_node if name == CPU else 1  # what a run on processors was measured as
    step = ranking.rank_flops(work, block, micro, launch.ranks) * together
    tokens = work.global_batch_sequences * work.sequence_tokens
    rates = [tokens * run.whole_flops_per_s / step for run in found if run.whole_flops_per_s is not None]
    spread = f", {min(rates):,.0f} to {max(rates):,.0f} tokens/s" if len(rates) > 1 else ""
    return RecordedSpeed(statistics.median(rates), words + spread)


def _place(runs: list[RecordedRun], launch: Launch) -> tuple[str, str]:
    """Device and machine on which a run would train, as far as that is known."""
    if launch.kind != "local":
        return (runs[-1].device if runs else ""), ""
    gpus = hardware()[3]
    return (devices.called(gpus[0]) or "") if gpus else CPU, machine_speed.this_machine()
