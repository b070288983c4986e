"""Optimizer (AdamW, Muon, or one from an installed package), learning rate schedule, and rotary schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from plinth.errors import TrainingError
from plinth.extensions import Catalogue, NoParams, late
from plinth.model.parameters import Model, RopeScaling
from plinth.records import Frozen, internal
from plinth.tokens.order.steps import Change, RunChange
from plinth.training.parameters.parallel import Parallel, Refusal

if TYPE_CHECKING:
    import torch


# Optimizer and learning rate.

ScheduleName = Literal["cosine", "linear", "wsd", "wsd-sqrt", "constant", "inverse-sqrt"]

#: Groups of parameters from `parameter_groups`.
Groups = list[dict[str, Any]]

#: Kinds of FP8 matrix products, by torchao's recipe names: `plinth.training.engine.ranks` describes each.
Float8 = Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"]


class Optimizer(Frozen):
    """Optimizer and learning rate. Warm-up, stable phase and decay are measured in tokens."""

    kind: str = Field(
        "adamw",
        exclude_if=lambda kind: kind == "adamw",
        description="`adamw`, `muon` (Muon for the matrices of blocks, AdamW for embeddings and gains), or the name of "
        "an optimizer from an installed package.",
    )
    options: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Parameters of the optimizer. `muon` has `momentum` (0.95) and `scale` (`rms`, the update size of "
        "AdamW, or `spectral`).",
    )
    lr: float = Field(3e-3, gt=0, description="Peak learning rate.")
    min_lr: float = Field(
        0.0, ge=0, description="Final learning rate. For `inverse-sqrt`, the lower limit of the learning rate."
    )
    start_lr: float = Field(
        0.0, ge=0, description="Learning rate at the start of the warm-up. Set it above 0 to continue a trained model."
    )
    schedule: ScheduleName = Field(
        "wsd",
        description="Shape of the decay after the warm-up. `wsd` has a warm-up, a stable phase and a linear decay. "
        "`wsd-sqrt` has the same phases, but its decay follows 1 - sqrt.",
    )
    warmup_fraction: float = Field(0.02, ge=0, le=1, description="Fraction of the run's tokens used for the warm-up.")
    warmup_tokens: None = internal(
        None, description="Unused. The key is kept so that runs of Plinth 0.3 can be resumed."
    )
    decay_fraction: float = Field(0.2, ge=0, le=1, description="WSD: fraction of the run's tokens used for the decay.")
    horizons: tuple[float, ...] = Field(
        (),
        exclude_if=lambda given: not given,
        description="WSD-S: fractions of the run's tokens at which the learning rate has decayed to its minimum. The "
        "next step returns to the peak. A checkpoint at such a point is equivalent to the end of a shorter run.",
    )
    decay_tokens: None = internal(
        None, description="Unused. The key is kept so that runs of Plinth 0.3 can be resumed."
    )
    decay_shape: Literal["linear"] = internal("linear", description="Decay shape of the schedule `wsd`.")
    beta1: float = internal(0.9, ge=0, lt=1, description="AdamW: decay rate of the first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW: decay rate of the second moment.")
    eps: float = internal(1e-8, gt=0, description="AdamW: term added to the denominator.")
    weight_decay: float = Field(0.1, ge=0, description="Weight decay of matrices; norm gains are not decayed.")
    embedding_weight_decay: float | None = internal(
        None, ge=0, description="Weight decay of input and output embeddings; by default the same as for matrices."
    )
    independent_weight_decay: bool = internal(
        False,
        description="Scale weight decay by the ratio of the learning rate to its peak, instead of by the learning "
        "rate.",
    )
    embedding_lr_factor: float = internal(1.0, gt=0, description="Multiplier of the learning rate of embeddings.")
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        exclude_if=lambda given: given is None,
        description="Decay per step of an exponential moving average of the weights (EMA), for `plinth run checkpoint "
        "average`. If unset, no EMA is kept.",
    )
    ema_tokens: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda given: given is None,
        description="Number of training tokens per application of `ema_decay`. If unset, `ema_decay` is applied once "
        "per step.",
    )
    grad_clip: float = Field(1.0, gt=0, description="Maximum global gradient norm; larger gradients are clipped.")

    @model_validator(mode="after")
    def _can_fall(self) -> Optimizer:
        if self.start_lr > self.lr:
            raise ValueError(f"start_lr {self.start_lr:g} is above lr = {self.lr:g}")
        if self.horizons:
            self._apart()
        if self.ema_tokens is not None and self.ema_decay is None:
            raise ValueError("ema_tokens requires ema_decay")
        if self.schedule == "inverse-sqrt" and not self.warmup_fraction:
            raise ValueError("inverse-sqrt requires a warm-up: expected warmup_fraction above 0")
        return self

    def warmup(self, total_tokens: int) -> float:
        """Return the number of warm-up tokens."""
        return self.warmup_fraction * total_tokens

    def decay(self, total_tokens: int) -> float:
        """Return the number of tokens of the final decay of a WSD schedule."""
        return self.decay_fraction * total_tokens

    def _apart(self) -> None:
        if not self.schedule.startswith("wsd"):
            raise ValueError(f"horizons require the schedule wsd or wsd-sqrt; found {self.schedule}")
        begin = self.warmup_fraction
        for end in (*self.horizons, 1.0):
            if end > 1 or end * (1 - self.decay_fraction) < begin or end == begin:
                raise ValueError(
                    f"horizons must increase and stay below 1. The decay before each horizon, {self.decay_fraction:g} "
                    "of its tokens, must start after the previous horizon and after the warm-up; found horizon "
                    f"{end:g} after {begin:g}"
                )
            begin = end


class MuonOptions(Frozen):
    """Options of Muon. Its update is the momentum, orthogonalized by Newton-Schulz iteration (Jordan et al. 2024,
    kellerjordan.github.io/posts/muon)."""

    momentum: float = Field(0.95, ge=0, lt=1, description="Momentum coefficient.")
    scale: Literal["rms", "spectral"] = Field(
        "rms",
        description="Scale of the update. `rms` is 0.2 sqrt(max(rows, columns)), so the learning rate and decay of "
        "AdamW apply (Moonlight, arXiv:2502.16982). `spectral` is sqrt(max(1, rows / columns)), as first published.",
    )


# Optimizers by name: built-in optimizers, and those of installed packages (entry points in the group
# `plinth.optimizers`).
#
# The control plane imports this module to check a recipe, so `make` is a function that imports torch when called on a
# rank. The module that registers an optimizer must not import torch.
#
# Under ZeRO, DeepSpeed replaces the parameters with flat tensors, each with a rank's range of many parameters. An
# elementwise optimizer works unchanged. State tensors of the size of their parameter are in checkpoints by name, on
# any layout. An optimizer that honors `found_inf` (if that tensor is 1 the update changes nothing, and the host does
# not wait) declares it with `fused` in its groups; otherwise the guard cannot skip an update.


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer that a recipe can name.

    Attributes:
        name: name in the recipe, `training.optimizer.kind`.
        params: pydantic model of `training.optimizer.options`.
        make: creates an optimizer for parameter groups, from the recipe's block and the options. Each group has `lr`,
            `weight_decay`, `betas`, `eps`, and `lr_factor`, which multiplies the schedule's learning rate. A group
            whose state has no `step` sets `counts_steps` to false.
        hidden_factor: set if the optimizer treats the matrices of blocks separately. It returns the factor of their
            learning rate, from the options and muP's width multiplier. These matrices are in separate groups, with
            `hidden_matrices` true.
        elementwise: True if each element is updated independently, so that tensor ranks and offload can divide the
            work.
    """

    name: str
    params: type[Frozen]
    make: Callable[[Groups, Optimizer, Any], Any]  # a torch.optim.Optimizer
    hidden_factor: Callable[[Any, float], float] | None = None
    elementwise: bool = True


def _adamw(groups: Groups, optimizer: Optimizer, options: Any) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(groups, fused=True)


def _muon_factor(options: MuonOptions, width_multiplier: float) -> float:
    return 1 / math.sqrt(width_multiplier) if options.scale == "rms" else 1.0


ADAMW = OptimizerKind(name="adamw", params=NoParams, make=_adamw)
MUON = OptimizerKind(
    name="muon",
    params=MuonOptions,
    make=late("plinth.training.engine.optimization:make"),
    hidden_factor=_muon_factor,
    elementwise=False,
)

OPTIMIZERS = Catalogue(
    "plinth.optimizers",
    "optimizer",
    OptimizerKind,
    {"adamw": f"{__name__}:ADAMW", "muon": f"{__name__}:MUON"},
)


def origin_of(optimizer: Optimizer) -> str | None:
    """Return the package and version of an optimizer, or None if it is built in. They are part of a run's identity."""
    origin = None if optimizer.kind in OPTIMIZERS.built_in else OPTIMIZERS.origin(optimizer.kind)
    return None if origin is None else str(origin)


def options_of(optimizer: Optimizer) -> Any:
    """Return the options of the recipe's optimizer block, validated for the kind of optimizer.

    Raises:
        RecipeError: the optimizer does not exist, or its options are invalid.
    """
    return OPTIMIZERS.parameters(optimizer.kind, optimizer.options, "training.optimizer.options")


def make_optimizer(groups: Groups, optimizer: Optimizer, origin: str | None) -> torch.optim.Optimizer:
    """Create the optimizer of a run, on a rank.

    Raises:
        TrainingError: the run was prepared with another version of the package than this machine has.
        ExtensionError, RecipeError: the optimizer cannot be used.
    """
    kind = OPTIMIZERS.find(optimizer.kind)
    if origin_of(optimizer) != origin:
        raise TrainingError(
            f"the optimizer {optimizer.kind} on this machine differs from the optimizer of the run",
            found=origin_of(optimizer) or "built in",
            expected=origin or "built in",
            remedy="install the same version on the training machine, or start a new run",
        )
    made: torch.optim.Optimizer = kind.make(groups, optimizer, options_of(optimizer))
    return made


def problems_with_division(optimizer: Optimizer, parallel: Parallel, model: Model, precision: str) -> Iterator[Refusal]:
    """Yield the reasons why an optimizer cannot run with a `training.parallel` block, by the key of the block."""
    kind = OPTIMIZERS.find(optimizer.kind)
    apart = {
        f"the optimizer {optimizer.kind}": kind.hidden_factor is not None,
        f"muP at width {model.width_multiplier:g}": model.width_multiplier != 1,
        f"embedding_lr_factor {optimizer.embedding_lr_factor:g}": optimizer.embedding_lr_factor != 1,
        "embedding_weight_decay": optimizer.embedding_weight_decay not in (None, optimizer.weight_decay),
    }
    measured = precision != "fp16" and optimizer.kind in OPTIMIZERS.built_in  # the norm, by `device_measurements`
    if parallel.pipeline > 1 and not measured and any(apart.values()):
        yield (
            "pipeline",
            f"{next(name for name, is_so in apart.items() if is_so)} has a parameter group for embeddings, which some "
            "stages lack; in FP16, and with an optimizer from a package, DeepSpeed sums the gradient norm over stages "
            "group by group and would deadlock; expected 1 pipeline stage, or another precision",
        )
    if kind.elementwise:
        return
    if parallel.tensor > 1:
        yield (
            "tensor",
            f"the optimizer {optimizer.kind} needs whole matrices, but each of the {parallel.tensor} tensor ranks has "
            "only a part; expected `tensor: 1`, with ZeRO or a pipeline to divide the model",
        )
    if parallel.offload != "none":
        yield (
            "offload",
            f"the optimizer {optimizer.kind} multiplies matrices in every update, which is too slow on the host; "
            "expected `offload: none`",
        )


# Changes of rotary positions during a run, for longer contexts in a later part.
#
# A change affects the model's arithmetic, not its shape, so parameters and optimizer state stay. The rotary positions
# of a step follow from its number, also in a resume, a rollback and a replay. The `config.json` of a checkpoint has
# those of its last step. (Xiong et al. 2023, arXiv:2309.16039, raise theta; Peng et al. 2023, arXiv:2309.00071, YaRN.)


class RotaryChange(Frozen):
    """Change of rotary positions from a step on. Keys that are omitted keep their values."""

    from_step: int = Field(ge=1, description="First step of the change, counted from 1.")
    rope_theta: float | None = Field(None, gt=0, description="Base of the rotary frequencies.")
    rope_scaling: RopeScaling | None = Field(None, description="Scaling for longer contexts.")


class TrainingChange(RunChange):
    """A change of batch size, row length or rotary positions from a step on. With a `reason`, it amends a started run:
    it applies to future steps and replaces later scheduled changes."""

    rope_theta: float | None = Field(
        None, gt=0, description="Base of the rotary frequencies, unchanged if unset. Not allowed in amendments."
    )
    rope_scaling: RopeScaling | None = Field(
        None, description="Scaling of the rotary frequencies, unchanged if unset. Not allowed in amendments."
    )

    @model_validator(mode="after")
    def _changes_something(self) -> TrainingChange:
        rotary = self.rope_theta is not None or self.rope_scaling is not None
        if self.global_batch_sequences is None and self.sequence_tokens is None and not rotary:
            raise ValueError(
                "set at least one of `global_batch_sequences`, `sequence_tokens`, `rope_theta` and `rope_scaling`"
            )
        if rotary and self.reason:
            raise ValueError("rotary positions are part of a run's identity and cannot be amended")
        return self

    @property
    def schedules(self) -> tuple[str, ...]:
        rotary = self.rope_theta is not None or self.rope_scaling is not None
        return (*super().schedules, *(("rotary_schedule",) if rotary else ()))

    def entry(self, schedule: str) -> Change | RotaryChange:  # type: ignore[override]
        if schedule != "rotary_schedule":
            return super().entry(schedule)
        return RotaryChange(from_step=self.from_step, rope_theta=self.rope_theta, rope_scaling=self.rope_scaling)


def require_in_order(changes: Sequence[RotaryChange]) -> None:
    """Raise an error if the changes are not sorted by their steps.

    Raises:
        ValueError: two changes are not in order; the error names both.
    """
    for before, after in pairwise(changes):
        if after.from_step <= before.from_step:
            raise ValueError(
                f"changes of rotary positions must be in the order of their steps; found step {after.from_step} after "
                f"step {before.from_step}"
            )


def model_at(model: Model, changes: Sequence[RotaryChange], step: int) -> Model:
    """Return the model configuration at `step`. Steps count from 1; 0 is before the first step."""
    for change in changes:
        if change.from_step <= step:
            set_here = {name: getattr(change, name) for name in ("rope_theta", "rope_scaling")}
            model = model.model_copy(update={name: value for name, value in set_here.items() if value is not None})
    return model
