"""One run: the sections of all parts, and what only two of them together can refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.records import Frozen, internal, spelling
from plinth.sections import extended
from plinth.tokens.order.steps import Amendment, BatchChange, LengthChange
from plinth.tokens.shards.parameters import Reading
from plinth.training import hooks
from plinth.training.parameters.checkpoints import Checkpoints
from plinth.training.parameters.engine import Float8, Optimizer
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.parallel import Parallel, not_with
from plinth.training.parameters.rotary_schedule import RotaryChange, TrainingChange, require_in_order
from plinth.training.parameters.stopping import Stopping
from plinth.training.parameters.telemetry import Telemetry
from plinth.training.parameters.validation import Validation
from plinth.training.sinks.parameters import Sinks


@extended("training")
class Training(Frozen):
    """One run."""

    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    micro_batch_sequences: int = Field(4, ge=1, description="Sequences per rank and forward pass.")
    global_batch_sequences: int = Field(16, ge=1, description="Sequences per optimizer step, over all ranks.")
    changes: tuple[TrainingChange, ...] = spelling(
        (),
        description="Other batches, rows of other lengths, or other rotary positions, from steps on: the tokens and "
        "their order stay the same.",
    )
    batch_schedule: tuple[BatchChange, ...] = internal((), description="Changes of the batch.")
    length_schedule: tuple[LengthChange, ...] = internal((), description="Changes of the length of rows.")
    rotary_schedule: tuple[RotaryChange, ...] = internal(
        (), exclude_if=lambda given: not given, description="Changes of the rotary positions."
    )
    amendments: tuple[Amendment, ...] = internal((), description="Changes with a reason, of a run that has begun.")
    parallel: Parallel = Parallel()
    deepspeed: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Further settings of DeepSpeed by its own names; those that the engine owns are refused by name.",
    )
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "auto", description="`auto`: BF16 where the device has it."
    )
    fp32_matmul: Literal["ieee", "tf32"] = Field(
        "ieee",
        description="Products of FP32 matrices: of exact inputs, or of inputs rounded to TF32's 10 bits, several times "
        "faster (GPUs from Ampere on).",
        exclude_if=lambda kind: kind == "ieee",
    )
    float8: Float8 = Field(
        "none",
        exclude_if=lambda kind: kind == "none",
        description="Products of the blocks' linear layers in FP8 by torchao's recipe of this name, the rest in BF16: "
        "`tensorwise` (compute capability 8.9), `rowwise` and `rowwise_with_gw_hp` (9.0), whose gradients of weights "
        "stay in BF16.",
    )
    seed: int = Field(1, description="Of initial weights.")
    deterministic: bool = Field(
        True,
        description="Kernels that give the same bits each time. False: the faster attention gradients of GPUs, and a "
        "resume that is proved within a measured tolerance only, which the gate policy must accept.",
        exclude_if=lambda given: given,
    )
    initial: InitialWeights | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Weights to begin from: a release, a checkpoint or a folder; left out: random ones of the seed.",
    )
    extensions: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Training hooks of installed packages, by name, each with its parameters.",
    )
    stopping: Stopping = Stopping()
    validation: Validation | None = Field(None, description="Held-out slices while the run trains; left out: none.")
    telemetry: Telemetry = Telemetry()
    sinks: Sinks = Sinks()
    guard: GuardParameters = GuardParameters()
    checkpoints: Checkpoints = Checkpoints()
    supervision: Supervision = Supervision()
    launch: Launch = Launch()
    reading: Reading = Reading()

    @model_validator(mode="after")
    def _scheduled(self) -> Training:
        """`changes` as the schedules that stages know."""
        for name in {schedule for change in self.changes for schedule in change.schedules}:
            entries = (change.entry(name) for change in self.changes if name in change.schedules)
            # within validation, before the record is in use
            object.__setattr__(self, name, (*getattr(self, name), *entries))
        require_in_order(self.rotary_schedule)
        return self

    def place(self, key: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """The key in a recipe of what a schedule has at a key of its own: `changes` holds the entries of all three."""
        indices = [index for index, change in enumerate(self.changes) if key[0] in change.schedules]
        return ("changes", indices[int(key[1])], *key[2:]) if indices else key

    @model_validator(mode="after")
    def _keeps_a_mean(self) -> Training:
        average = self.checkpoints.average
        if average is not None and average.ema and self.optimizer.ema_decay is None:
            raise ValueError("checkpoints.average.ema: no mean of weights is kept without optimizer.ema_decay")
        return self

    @model_validator(mode="after")
    def _whole_in_float8(self) -> Training:
        if self.float8 == "none":
            return self
        for name in not_with(self.parallel, float8=True)[:1]:
            found = f"parallel.{name} {getattr(self.parallel, name)}"
            raise ValueError(f"float8 {self.float8} with {found}: layers are whole; use ZeRO up to 2, or pipelines")
        if self.precision not in ("bf16", "auto"):
            raise ValueError(f"float8 {self.float8} with precision {self.precision}: all else is computed in bf16")
        return self

    @model_validator(mode="after")
    def _hooks_fit(self) -> Training:
        """Ask the training hooks of the recipe about the rest of it. The recipe's checks name one that is unusable."""
        for hook, params in hooks.asked(self, usable=True):
            for problem in hook.problems(self, params):
                raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _keeps_enough(self) -> Training:
        watched = self.stopping.plateau.slices if self.stopping.plateau else ()
        looked_at = () if self.validation is None else self.validation.slices
        if watched and (self.validation is None or (looked_at and not set(watched) <= set(looked_at))):
            raise ValueError(
                f"stopping.plateau.slices waits for {', '.join(watched)}, which training.validation does not measure"
            )
        if self.stopping.regression is not None and (self.validation is None or not self.validation.probes_share):
            raise ValueError("stopping.regression waits for probes, which training.validation does not score")
        if self.stopping.asked and self.checkpoints.keep_last < 2:
            raise ValueError(
                "checkpoints.keep_last 1 leaves a run that `stopping` ends early no checkpoint to prove its resume "
                "from; expected at least 2"
            )
        return self
