"""The optimizer's state of the run that another begins from: FP32 masters and moments, on any layout of ranks.

Read once, before the first step; what the run commits later holds it. Counters of steps begin anew, that of the
optimizer (its bias correction) goes on.
"""

from __future__ import annotations

from pathlib import Path

from plinth.errors import CheckpointError
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint, snapshot, universal
from plinth.training.checkpoint.shared_verification import SharedVerification
from plinth.training.directory import RunDirectory
from plinth.training.engine.engine import TrainingEngine
from plinth.training.parameters.engine import Optimizer
from plinth.training.telemetry.timeline import Pulse


def restore(engine: TrainingEngine) -> None:
    """Put the parent's state into an engine whose run keeps it; nothing for any other. A collective.

    Raises:
        CheckpointError: the parent's checkpoint is not here, was changed, or lacks a parameter's state.
        SignatureError: no root of trust is pinned on this machine.
    """
    begun = engine.config.initial
    if begun is None or begun.optimizer == "fresh":
        return
    initial = Refs(Workspace(engine.config.workspace)).load(begun.manifest)
    run = RunDirectory(Path(engine.config.workspace) / "runs" / str(initial.stats.get("run_id", "")))
    step = int(initial.stats.get("step", 0))
    _verify(engine, run, step)
    _require_same_kind(engine.config.optimizer, configuration.load(run.config).optimizer)
    beat = Pulse(engine.config.directory.events)
    needed = snapshot.ranks_needed(engine, step, beat, run)
    universal.restore(engine, checkpoint.path(run, step) / "engine", needed, beat)
    for name in universal.COUNTERS:
        setattr(engine.deepspeed, name, 0)


def _require_same_kind(ours: Optimizer, theirs: Optimizer) -> None:
    """Another optimizer, or one without a mean of the weights, has other tensors in its state."""
    kinds = [(one.kind, dict(one.options), one.ema_decay is not None) for one in (ours, theirs)]
    if kinds[0] != kinds[1]:
        found, expected = (f"{kind} {options or ''}{' with a mean of weights' * mean}" for kind, options, mean in kinds)
        raise CheckpointError(
            "the optimizer's state of the run's parent is another optimizer's",
            found=expected,
            expected=found,
            remedy="set training.optimizer as the parent had it, or training.initial.optimizer: fresh",
        )


def _verify(engine: TrainingEngine, run: RunDirectory, step: int) -> None:
    """Every rank compares its share of the checkpoint with its record; a refusal is raised everywhere."""
    try:
        SharedVerification(engine.config, engine.rank).verify(step, run)
    except CheckpointError as error:
        raise CheckpointError(
            "the optimizer's state of the run's parent cannot be kept",
            found=error.what,
            expected=f"{checkpoint.name(step)} in {run.checkpoints}",
            remedy="bring the parent's checkpoint back, or set training.initial.optimizer: fresh",
        ) from error
