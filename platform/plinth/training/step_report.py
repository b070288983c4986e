"""Report of a finished step: its event on the timeline, and the errors that end a run because of its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plinth.errors import TrainingError
from plinth.training.config import RunConfig
from plinth.training.engine.skipped_update import Measured
from plinth.training.guard.rules import TEXT_RULES, Intervention
from plinth.training.telemetry.communication import RankScore
from plinth.training.telemetry.devices import memory_of
from plinth.training.trainer import Trainer


def step_event(trainer: Trainer, measured: Measured, compared: Sequence[RankScore], *, redone: bool) -> dict[str, Any]:
    """Return the fields of a step's event. Call this on every rank, because hooks may communicate.

    Args:
        compared: the ranks, the slowest first, if their speeds were compared in this step.
        redone: True if the timeline has this step already.
    """
    config, engine, step = trainer.config, trainer.engine, measured.step
    fields: dict[str, Any] = {
        "step": step,
        "loss": measured.loss,
        "grad_norm": measured.grad_norm,
        "lr": measured.lr,
        "loss_ema": trainer.monitor.loss_ema,
        "batch": measured.batch,
        "tokens": config.tokens_through(step),
        "tokens_per_s": round(config.step_tokens(step) / measured.time.seconds, 1),
        "data_wait_s": round(measured.data_wait_s, 4),
        "step_s": round(measured.time.seconds, 6),
        "parts": _rounded(measured.time.parts),
        **memory_of(trainer.rank.device),
    }
    if measured.time.besides:
        fields["besides"] = _rounded(measured.time.besides)
    if compared:
        fields["slowest"] = {"rank": compared[0].rank, "score": round(compared[0].score, 4)}
    if (layers := engine.stats.at(step)) is not None:
        fields["layers"] = layers.event()
    if engine.balance is not None and (experts := engine.balance.at(step)) is not None:
        fields["experts"] = experts.event()
    fields |= trainer.hooks.after_step(measured)
    return fields | ({"vetoed": True} if measured.vetoed else {}) | ({"redone": True} if redone else {})


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Round the seconds to microseconds."""
    return {part: round(value, 6) for part, value in seconds.items()}


def require_finite(config: RunConfig, measured: Measured) -> None:
    """Raise an error if a step has non-finite numbers and the guard is off.

    Raises:
        TrainingError: loss or gradient norm is not finite, and the guard is off.
    """
    if config.guard.enabled or (math.isfinite(measured.loss) and math.isfinite(measured.grad_norm)):
        return
    raise TrainingError(
        f"step {measured.step} is not finite",
        found=f"loss {measured.loss}, gradient norm {measured.grad_norm}",
        expected="finite numbers",
        remedy="enable training.guard, lower optimizer.lr, lengthen the warm-up, or inspect the batch: "
        "`plinth run blame RUN STEP`",
    )


def stopped(made: Intervention) -> TrainingError:
    """Return the error of a run that the guard stops. It names the window to inspect."""
    rows = " of the batch's rows" if made.rule in TEXT_RULES else ""
    return TrainingError(
        f"the guard stopped the run at step {made.step}: {made.rule}" + (f", {made.reason}" if made.reason else ""),
        found=f"{made.value:g}" + (f" in layer {made.layer}" if made.layer else "") + rows,
        expected=f"at most {made.threshold:g}",
        remedy=f"`plinth run blame RUN {made.first}` shows the documents and sources of the bad batch; then change the "
        "data, optimizer.lr or training.guard. The last committed checkpoint is intact",
    )
