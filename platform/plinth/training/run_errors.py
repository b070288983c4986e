"""Errors that end a run, with the numbers found and the remedy."""

from __future__ import annotations

import math

from plinth.errors import TrainingError
from plinth.training.config import RunConfig
from plinth.training.guard.records import Intervention
from plinth.training.guard.screening import TEXT_RULES
from plinth.training.trainer import Measured


def require_finite(config: RunConfig, measured: Measured) -> None:
    """Refuse a step with numbers that are not finite where the guard is off.

    Raises:
        TrainingError: loss or gradient norm is not finite, and the guard is off.
    """
    if config.guard.enabled or (math.isfinite(measured.loss) and math.isfinite(measured.grad_norm)):
        return
    raise TrainingError(
        f"step {measured.step} is not finite",
        found=f"loss {measured.loss}, gradient norm {measured.grad_norm}",
        expected="finite numbers",
        remedy="turn training.guard on, lower optimizer.lr, lengthen the warm-up, or look at the batch: "
        "`plinth run blame RUN STEP`",
    )


def stopped(made: Intervention) -> TrainingError:
    """The error of a run that the guard stops, with the window to look at."""
    rows = " of the batch's rows" if made.rule in TEXT_RULES else ""
    return TrainingError(
        f"the guard stopped the run at step {made.step}: {made.rule}" + (f", {made.reason}" if made.reason else ""),
        found=f"{made.value:g}" + (f" in layer {made.layer}" if made.layer else "") + rows,
        expected=f"at most {made.threshold:g}",
        remedy=f"`plinth run blame RUN {made.first}` names documents and sources; then change the data, optimizer.lr "
        "or training.guard. The last committed checkpoint is intact",
    )
