"""Parameters of a run: all sections, and checks that involve several sections.

The small sections are here too: checkpoints, validation, telemetry and sinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from plinth.training.parameters.trainer import ExternalTrainer, unsupported

# Checkpoints.


class Average(Frozen):
    """Evaluate and release an average of committed checkpoints instead of the last checkpoint."""

    last: int = Field(1, ge=1, description="Number of checkpoints to average, from the newest.")
    steps: tuple[int, ...] = Field(
        (),
        description="Steps whose checkpoints are averaged. If empty, the newest checkpoints are averaged; `last` sets "
        "their number.",
    )
    ema: bool = Field(
        False, description="Average the EMA weights (`training.optimizer.ema_decay`) instead of the weights."
    )

    @model_validator(mode="after")
    def _agree(self) -> Average:
        if self.steps and (self.last != 1 or len(set(self.steps)) != len(self.steps)):
            raise ValueError("set `last`, or distinct `steps`")
        return self


class Checkpoints(Frozen):
    """Checkpoint interval and retention."""

    every_steps: int = Field(100, ge=1, description="Checkpoint interval in steps.")
    mode: Literal["async", "sync"] = internal(
        "async",
        description="`async`: another process writes the checkpoint while training continues. `sync`: training waits "
        "for the disk.",
    )
    keep_last: int = Field(2, ge=1, description="Number of newest checkpoints to keep.")
    keep_every: int = Field(
        0, ge=0, description="Also keep checkpoints at multiples of this step. If 0, no such checkpoints are kept."
    )
    keep_best: int = Field(
        0,
        ge=0,
        description="Number of best checkpoints to keep in addition to the newest, judged by held-out slices or "
        "smoothed loss.",
    )
    audit_steps: int = internal(
        8, ge=1, description="Number of steps at the end of the run that are replayed to prove that it can be resumed."
    )
    upload: str | None = Field(
        None,
        pattern=r"^s3://[^/]+(/.*)?$",
        description="S3 bucket for a copy of every committed checkpoint, so that other machines can resume the run.",
    )
    average: Average | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Average of checkpoints to evaluate and release. If unset, the last checkpoint is used.",
    )

    @model_validator(mode="after")
    def _kept(self) -> Checkpoints:
        if self.average and self.average.last > self.keep_last:
            raise ValueError(f"average.last {self.average.last} exceeds keep_last {self.keep_last}")
        return self


# Recovery from lost ranks without a restart of the others.


class Recovery(Frozen):
    """Recovery from lost ranks in seconds, with each rank's state in the memory of two nodes."""

    copies_every: int = Field(
        0,
        ge=0,
        description="Interval in steps at which each rank copies its state into the memory of its own node and of the "
        "next node. If 0, a lost rank restarts all ranks from the last checkpoint. A node needs host memory for up to "
        "7 times the state of its ranks.",
    )
    closed_s: float = internal(3.0, gt=0, description="Seconds without a connection until a rank is lost.")
    silent_s: float = internal(15.0, gt=0, description="Seconds without a heartbeat until a rank is lost.")
    limit_s: float = internal(120.0, gt=0, description="Seconds for a recovery, after which all ranks restart.")

    @property
    def enabled(self) -> bool:
        """True if the run recovers from copies in memory."""
        return self.copies_every > 0


# Search for silent data corruption.


class ReplayChecks(Frozen):
    """Search for silent data corruption: sampled steps are taken again on other devices, and their results compared."""

    share: float = Field(
        0.01,
        gt=0,
        le=0.5,
        description="Maximum cost of the replays, as a fraction of the time of all steps. It sets the number of "
        "sampled steps; a replay is counted as 1.5 steps. A rank needs host memory for one copy of its state.",
    )


# Evaluation of held-out slices and probes during training.


class Validation(Frozen):
    """Interval and amount of the evaluation of held-out text and probes during training. It does not change the
    weights."""

    every_steps: int = Field(0, ge=0, description="Evaluation interval in steps. If 0, every checkpoint is evaluated.")
    bytes_per_slice: int = Field(
        2**18,
        ge=1,
        description="Maximum bytes of held-out text per slice; documents with the smallest IDs are used. With the "
        "value of evaluation.max_bytes_per_slice, the documents and scores are the same as in the final evaluation.",
    )
    probes_share: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Maximum cost of scoring probes, as a fraction of the run's training tokens. If 0, no probes are "
        "scored during training. Items and interval are chosen once to stay within this limit; every evaluation scores "
        "the same items.",
    )
    slices: tuple[str, ...] = internal(
        (), description="Buckets to evaluate. If empty, all buckets with held-out text are evaluated."
    )


# Measurements other than loss and speed. They have no effect on weights, so they are not part of a run's identity.


class Telemetry(Frozen):
    """Measurements other than loss and speed."""

    layers_every: int = internal(
        10,
        ge=0,
        description="Interval in steps at which the gradient norm and activations of each layer are recorded; 0 means "
        "never.",
    )
    stragglers_every: int = Field(
        50, ge=0, description="Interval in steps at which the step times of the ranks are compared; 0 means never."
    )
    straggler_score: float = internal(
        0.75, gt=0, le=1, description="A rank below this fraction of the fastest rank's speed is a straggler."
    )
    profile_steps: tuple[int, int] | None = Field(
        None,
        description="First and last step of a `torch.profiler` trace of rank 0. For a run in progress, use "
        "`plinth run profile`.",
    )
    devices_s: float = internal(
        30.0, ge=0, description="Sampling interval of GPUs in seconds. If 0, only GPU errors are recorded."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Telemetry:
        if self.profile_steps and not 1 <= self.profile_steps[0] <= self.profile_steps[1]:
            raise ValueError(
                f"profile_steps {list(self.profile_steps)}: expected the first step (1 or more) and the last step"
            )
        return self


# Sinks of a run. Not part of identity.


class Sinks(Frozen):
    """Sinks that receive a run's metrics, in addition to its timeline, page and MLflow."""

    tensorboard: bool = Field(
        False, description="Write event files into the run's `sinks/tensorboard` (extra `tensorboard`)."
    )
    wandb: str = Field(
        "", description="Project of Weights & Biases, or `entity/project` (extra `wandb`). If empty, W&B is off."
    )
    wandb_mode: Literal["online", "offline"] = Field(
        "online", description="`online`, or `offline` to write into the run's `sinks/wandb`, for `wandb sync`."
    )
    prometheus: bool = Field(
        False, description="Write `sinks/plinth.prom` in the run's directory, for node_exporter's textfile collector."
    )


@extended("training")
class Training(Frozen):
    """Training of one run."""

    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    micro_batch_sequences: int = Field(4, ge=1, description="Number of sequences per rank and forward pass.")
    global_batch_sequences: int = Field(16, ge=1, description="Number of sequences per optimizer step, over all ranks.")
    changes: tuple[TrainingChange, ...] = spelling(
        (),
        description="Changes of batch size, row length or rotary positions from a step on. The tokens and "
        "their order stay the same.",
    )
    batch_schedule: tuple[BatchChange, ...] = internal((), description="Changes of the global batch.")
    length_schedule: tuple[LengthChange, ...] = internal((), description="Changes of the row length.")
    rotary_schedule: tuple[RotaryChange, ...] = internal(
        (), exclude_if=lambda given: not given, description="Changes of the rotary positions."
    )
    amendments: tuple[Amendment, ...] = internal((), description="Changes to a started run, each with a reason.")
    parallel: Parallel = Parallel()
    deepspeed: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Additional DeepSpeed settings, by DeepSpeed's names. Settings owned by Plinth are rejected.",
    )
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "auto", description="Training precision. `auto` is BF16 if the device supports it, otherwise FP32."
    )
    fp32_matmul: Literal["ieee", "tf32"] = Field(
        "ieee",
        description="Precision of FP32 matrix products: `ieee`, or `tf32` (inputs rounded to 10 bits of mantissa), "
        "which is several times faster on GPUs from Ampere on.",
        exclude_if=lambda kind: kind == "ieee",
    )
    float8: Float8 = Field(
        "none",
        exclude_if=lambda kind: kind == "none",
        description="torchao recipe for FP8 products in the blocks' linear layers; other layers use BF16. `tensorwise` "
        "needs compute capability 8.9. `rowwise` and `rowwise_with_gw_hp` need 9.0; the latter computes weight "
        "gradients in BF16.",
    )
    seed: int = Field(1, description="Seed of the initial weights.")
    deterministic: bool = Field(
        True,
        description="Use deterministic kernels. False makes attention gradients faster on GPUs, but a resume "
        "can then be proved only within a measured tolerance, which the gate policy must accept.",
        exclude_if=lambda given: given,
    )
    initial: InitialWeights | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Initial weights: a release, a checkpoint or a folder. If unset, they are random, from the seed.",
    )
    extensions: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Parameters of training hooks of installed packages, by name.",
    )
    trainer: ExternalTrainer | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Your own trainer, which replaces Plinth's loop. If unset, Plinth trains.",
    )
    stopping: Stopping = Stopping()
    validation: Validation | None = Field(None, description="Held-out evaluation during training. If unset, it is off.")
    telemetry: Telemetry = Telemetry()
    sinks: Sinks = Sinks()
    guard: GuardParameters = GuardParameters()
    checkpoints: Checkpoints = Checkpoints()
    recovery: Recovery = Field(Recovery(), exclude_if=lambda given: given == Recovery())
    replay_checks: ReplayChecks | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Replay of sampled steps on other devices, to find silent data corruption. If unset, it is off.",
    )
    supervision: Supervision = Supervision()
    launch: Launch = Launch()
    reading: Reading = Reading()
    contract: Literal["optional", "required"] = Field(
        "optional",
        exclude_if=lambda given: given == "optional",
        description="If `required`, no rank starts without a launch contract that the run's owner signed and that "
        "matches the run: `plinth run contract sign`.",
    )

    @model_validator(mode="after")
    def _scheduled(self) -> Training:
        """Split `changes` into the schedules for batch size, row length and rotary positions."""
        for name in {schedule for change in self.changes for schedule in change.schedules}:
            entries = (change.entry(name) for change in self.changes if name in change.schedules)
            # during validation, before the record is in use
            object.__setattr__(self, name, (*getattr(self, name), *entries))
        require_in_order(self.rotary_schedule)
        return self

    def place(self, key: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Map a key of a schedule to the key `changes` of the recipe, which contains the entries of all three
        schedules."""
        indices = [index for index, change in enumerate(self.changes) if key[0] in change.schedules]
        return ("changes", indices[int(key[1])], *key[2:]) if indices else key

    @model_validator(mode="after")
    def _keeps_a_mean(self) -> Training:
        average = self.checkpoints.average
        if average is not None and average.ema and self.optimizer.ema_decay is None:
            raise ValueError("checkpoints.average.ema: requires optimizer.ema_decay")
        return self

    @model_validator(mode="after")
    def _whole_in_float8(self) -> Training:
        if self.float8 == "none":
            return self
        for name in not_with(self.parallel, float8=True)[:1]:
            found = f"parallel.{name} {getattr(self.parallel, name)}"
            raise ValueError(
                f"float8 {self.float8} cannot be combined with {found}, because FP8 needs whole layers; use ZeRO stage "
                "0 to 2, or a pipeline"
            )
        if self.precision not in ("bf16", "auto"):
            raise ValueError(f"float8 {self.float8} with precision {self.precision}: FP8 requires precision bf16")
        return self

    @model_validator(mode="after")
    def _hooks_fit(self) -> Training:
        """Let the recipe's training hooks check the other parameters.

        The recipe's checks report hooks that cannot be used.
        """
        for hook, params in hooks.asked(self, usable=True):
            for problem in hook.problems(self, params):
                raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _left_to_the_trainer(self) -> Training:
        """Reject settings that only Plinth's loop follows, so that a run does not claim what its trainer ignores."""
        if self.trainer is not None:
            own = tuple(hook.name for hook, _ in hooks.asked(self, usable=True))
            if refused := list(unsupported(self, own)):
                found = f"trainer cannot be combined with {', '.join(refused)}"
                raise ValueError(f"{found}, because only Plinth's loop follows these settings")
        return self

    @model_validator(mode="after")
    def _replayable(self) -> Training:
        if self.replay_checks is not None and (refused := list(_not_replayable(self))):
            raise ValueError(
                f"replay_checks cannot be combined with {', '.join(refused)}; a step is replayed only if two or more "
                "ranks differ in their data alone"
            )
        return self

    @model_validator(mode="after")
    def _keeps_enough(self) -> Training:
        watched = self.stopping.plateau.slices if self.stopping.plateau else ()
        looked_at = () if self.validation is None else self.validation.slices
        if watched and (self.validation is None or (looked_at and not set(watched) <= set(looked_at))):
            raise ValueError(
                f"stopping.plateau.slices needs {', '.join(watched)}, which training.validation does not evaluate"
            )
        if self.stopping.regression is not None and (self.validation is None or not self.validation.probes_share):
            raise ValueError("stopping.regression needs probes, which training.validation does not score")
        if self.stopping.asked and self.checkpoints.keep_last < 2:
            raise ValueError(
                "checkpoints.keep_last 1 keeps too few checkpoints to prove that the run can be resumed if `stopping` "
                "ends it early; expected at least 2"
            )
        return self


def _not_replayable(training: Training) -> Iterator[str]:
    """Yield the settings with which another rank cannot take a rank's part of a step."""
    parallel = training.parallel
    for name in ("pipeline", "expert"):
        if getattr(parallel, name) > 1:
            yield f"parallel.{name} {getattr(parallel, name)}"
    if parallel.offload != "none":
        yield f"parallel.offload {parallel.offload}"
    if training.precision == "fp16":
        yield "precision fp16"
    if not training.deterministic:
        yield "deterministic false"
    if parallel.data_ranks(training.launch.ranks) < 2:
        yield f"launch.ranks {training.launch.ranks}"
    yield from (hook.name for hook, _ in hooks.asked(training, usable=True))
