"""One run: the sections of all parts, and what only two of them together can refuse.

The small sections are here too: checkpoints, validation, telemetry and sinks.
"""

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
from plinth.training.parameters.guard import GuardParameters, Stopping
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.optimizers import Float8, Optimizer, RotaryChange, TrainingChange, require_in_order
from plinth.training.parameters.parallel import Parallel, not_with

# Checkpoints.

class Average(Frozen):
    """A mean of committed checkpoints is evaluated and released, instead of the last one."""

    last: int = Field(1, ge=1, description="Of the newest so many.")
    steps: tuple[int, ...] = Field((), description="Of these; left out: of the newest `last`.")
    ema: bool = Field(
        False, description="Of the means of weights that they keep (`training.optimizer.ema_decay`) instead."
    )

    @model_validator(mode="after")
    def _agree(self) -> Average:
        if self.steps and (self.last != 1 or len(set(self.steps)) != len(self.steps)):
            raise ValueError("give `last`, or `steps`, each once")
        return self


class Checkpoints(Frozen):
    """Checkpoint interval and retention."""

    every_steps: int = Field(100, ge=1, description="Steps between two checkpoints.")
    mode: Literal["async", "sync"] = internal(
        "async", description="async: training goes on while another process writes; sync: it waits for the disk."
    )
    keep_last: int = Field(2, ge=1, description="Older ones are removed.")
    keep_every: int = Field(0, ge=0, description="Also kept: steps divisible by this; 0 keeps none.")
    keep_best: int = Field(0, ge=0, description="Also kept: so many of the best: by held-out slices, or smoothed loss.")
    audit_steps: int = internal(
        8, ge=1, description="Steps before the end at which a checkpoint is kept, to prove that a resume is exact."
    )
    upload: str | None = Field(
        None,
        pattern=r"^s3://[^/]+(/.*)?$",
        description="Copy of every committed checkpoint, from which another machine can resume.",
    )
    average: Average | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="What is evaluated and released is a mean of checkpoints; left out: the last checkpoint.",
    )

    @model_validator(mode="after")
    def _kept(self) -> Checkpoints:
        if self.average and self.average.last > self.keep_last:
            raise ValueError(f"average.last {self.average.last} needs more than keep_last {self.keep_last} leaves")
        return self


# Held-out slices and probes while a run trains.

class Validation(Frozen):
    """Evaluation of held-out text and probes during training: interval and amount. It does not change the weights."""

    every_steps: int = Field(0, ge=0, description="Steps between two evaluations; 0: with every checkpoint.")
    bytes_per_slice: int = Field(
        2**18,
        ge=1,
        description="Held-out text of each slice, by smallest id: with as much as evaluation.max_bytes_per_slice the "
        "same documents, so that the numbers are those of the final evaluation.",
    )
    probes_share: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Share of the run's training that probes may cost, counted in tokens; 0: none while it trains. "
        "Items and looks are chosen to keep to it, once, and every look asks the same items.",
    )
    slices: tuple[str, ...] = internal((), description="Buckets to evaluate; empty: all that have held-out text.")


# Statistics of a run besides loss and speed. Not part of its identity: measuring changes nothing.

class Telemetry(Frozen):
    """Measurements other than loss and speed."""

    layers_every: int = internal(
        10, ge=0, description="Steps between measurements of gradient norm and activations by layer; 0: never."
    )
    stragglers_every: int = Field(
        50, ge=0, description="Steps between comparisons of the ranks' own time, each over as many steps; 0: never."
    )
    straggler_score: float = internal(
        0.75, gt=0, le=1, description="A rank is a straggler below this share of the fastest rank's speed."
    )
    profile_steps: tuple[int, int] | None = Field(
        None,
        description="First and last step of which rank 0 writes a `torch.profiler` trace; a run that is under way is "
        "asked by `plinth run profile`.",
    )
    devices_s: float = internal(30.0, ge=0, description="Seconds between samples of a node's GPUs; 0: errors only.")

    @model_validator(mode="after")
    def _in_order(self) -> Telemetry:
        if self.profile_steps and not 1 <= self.profile_steps[0] <= self.profile_steps[1]:
            raise ValueError(f"profile_steps {list(self.profile_steps)}: expected the first, from 1 on, and the last")
        return self


# The sinks of a run, as a recipe sets them. Not part of identity.

class Sinks(Frozen):
    """Sinks of a run's numbers, in addition to its timeline, page and MLflow."""

    tensorboard: bool = Field(
        False, description="Write event files into the run's `sinks/tensorboard` (extra `tensorboard`)."
    )
    wandb: str = Field("", description="Project of Weights & Biases, or `entity/project` (extra `wandb`); empty: none.")
    wandb_mode: Literal["online", "offline"] = Field(
        "online", description="`offline` writes into the run's `sinks/wandb`, for `wandb sync`."
    )
    prometheus: bool = Field(
        False, description="Keep `sinks/plinth.prom` in the run's directory, for node_exporter's textfile collector."
    )

    @property
    def any(self) -> bool:
        """True if there is any sink."""
        return self.tensorboard or bool(self.wandb) or self.prometheus

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
        """Convert `changes` to the schedules that stages know."""
        for name in {schedule for change in self.changes for schedule in change.schedules}:
            entries = (change.entry(name) for change in self.changes if name in change.schedules)
            # within validation, before the record is in use
            object.__setattr__(self, name, (*getattr(self, name), *entries))
        require_in_order(self.rotary_schedule)
        return self

    def place(self, key: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Return the recipe key for a key of a schedule: `changes` holds the entries of all three."""
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
        """Let the training hooks of the recipe check the rest of it. The recipe's checks name unusable hooks."""
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
