"""One run: model, optimizer, parallelism, checkpoints, launch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.records import Frozen, internal
from plinth.tokens.order.parameters import Amendment, BatchChange, LengthChange
from plinth.tokens.reading.parameters import Reading
from plinth.training.checkpoint.parameters import Checkpoints
from plinth.training.engine.parameters import Optimizer
from plinth.training.guard.parameters import GuardParameters
from plinth.training.parallel.parameters import Parallel
from plinth.training.stopping.parameters import Stopping
from plinth.training.telemetry.parameters import Telemetry
from plinth.training.validation.parameters import Validation

__all__ = [
    "Checkpoints",
    "GuardParameters",
    "Launch",
    "Model",
    "Optimizer",
    "Parallel",
    "Reading",
    "Stopping",
    "Supervision",
    "Telemetry",
    "Training",
    "Validation",
]


class Training(Frozen):
    """One run."""

    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    micro_batch_sequences: int = Field(4, ge=1, description="Sequences per rank and forward pass.")
    global_batch_sequences: int = Field(16, ge=1, description="Sequences per optimizer step, over all ranks.")
    batch_schedule: tuple[BatchChange, ...] = Field(
        (), description="Batch-size warm-up: other global batches from given points of the run on."
    )
    length_schedule: tuple[LengthChange, ...] = Field(
        (), description="Sequence-length warm-up: rows of fewer tokens; the tokens and their order stay the same."
    )
    amendments: tuple[Amendment, ...] = Field(
        (), description="Changes of batch or length of a run that has begun, for steps it has not taken yet."
    )
    parallel: Parallel = Parallel()
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "auto", description="`auto`: BF16 where the device has it."
    )
    seed: int = Field(1, description="Of initial weights.")
    stopping: Stopping = Stopping()
    validation: Validation | None = Field(None, description="Held-out slices while the run trains; left out: none.")
    telemetry: Telemetry = internal(Telemetry(), description="Statistics by layer.")
    guard: GuardParameters = GuardParameters()
    checkpoints: Checkpoints = Checkpoints()
    supervision: Supervision = Supervision()
    launch: Launch = Launch()
    reading: Reading = Reading()

    @model_validator(mode="after")
    def _keeps_enough(self) -> Training:
        watched = self.stopping.plateau.slices if self.stopping.plateau else ()
        looked_at = () if self.validation is None else self.validation.slices
        if watched and (self.validation is None or (looked_at and not set(watched) <= set(looked_at))):
            raise ValueError(
                f"stopping.plateau.slices waits for {', '.join(watched)}, which training.validation does not measure"
            )
        if self.stopping.asked and self.checkpoints.keep_last < 2:
            raise ValueError(
                "checkpoints.keep_last 1 leaves a run that `stopping` ends early no checkpoint to prove its resume "
                "from; expected at least 2"
            )
        return self
