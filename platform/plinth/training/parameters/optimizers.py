"""Optimizers by name: built-in ones, and those of installed packages (entry points of the group `plinth.optimizers`).

The control plane imports this module to check a recipe. So `make` is a function that imports torch when it is called,
on a rank; the module of a member imports none.

DeepSpeed puts flat tensors in place of the parameters under ZeRO: one tensor holds a rank's range of many
parameters. An optimizer that treats every element alike sees no difference. State tensors of the size of their
parameter are in checkpoints by their names, on any layout. An optimizer that honours `found_inf` (where that tensor is
1 the update changes nothing, and the host does not wait) says so by `fused` in its groups; without it the guard cannot
keep an update back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plinth.errors import TrainingError
from plinth.extensions import Catalogue, NoParams, late
from plinth.model.parameters import Model
from plinth.records import Frozen
from plinth.training.parameters.engine import Groups, MuonOptions, Optimizer
from plinth.training.parameters.parallel import Parallel, Refusal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer that a recipe can name.

    Attributes:
        name: in the recipe, `training.optimizer.kind`.
        params: what `training.optimizer.options` may hold.
        make: an optimizer for groups, from the recipe's block and the options. Each group has `lr`, `weight_decay`,
            `betas` and `eps`, and `lr_factor`, by which the schedule's rate is multiplied. A group whose state has no
            `step` says so by `counts_steps`, false.
        hidden_factor: for an optimizer that treats the matrices of blocks apart: the factor of their rate, from the
            options and muP's width multiplier. They are groups of their own, with `hidden_matrices` true.
        elementwise: whether each element is updated by itself, so that tensor ranks and offload can divide the work.
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
    make=late("plinth.training.engine.muon:make"),
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
    """The package of an optimizer that is not built in: part of a run's identity."""
    origin = None if optimizer.kind in OPTIMIZERS.built_in else OPTIMIZERS.origin(optimizer.kind)
    return None if origin is None else str(origin)


def options_of(optimizer: Optimizer) -> Any:
    """The options of the recipe's block, as its kind takes them.

    Raises:
        RecipeError: no such optimizer, or options that it does not take.
    """
    return OPTIMIZERS.parameters(optimizer.kind, optimizer.options, "training.optimizer.options")


def make_optimizer(groups: Groups, optimizer: Optimizer, origin: str | None) -> torch.optim.Optimizer:
    """The optimizer of a run, on a rank.

    Raises:
        TrainingError: this machine has another version of the package than the one that the run was prepared with.
        ExtensionError, RecipeError: it cannot be used.
    """
    kind = OPTIMIZERS.find(optimizer.kind)
    if origin_of(optimizer) != origin:
        raise TrainingError(
            f"the optimizer {optimizer.kind} of this machine is not that of the run",
            found=origin_of(optimizer) or "built in",
            expected=origin or "built in",
            remedy="install the same version where the ranks run, or start another run",
        )
    made: torch.optim.Optimizer = kind.make(groups, optimizer, options_of(optimizer))
    return made


def problems_with_division(
    optimizer: Optimizer, parallel: Parallel, model: Model, precision: str
) -> Iterator[Refusal]:
    """The reasons for which an optimizer cannot run on a division, by key of `training.parallel`."""
    kind = OPTIMIZERS.find(optimizer.kind)
    apart = {
        f"the optimizer {optimizer.kind}": kind.hidden_factor is not None,
        f"muP at width {model.width_multiplier:g}": model.width_multiplier != 1,
        f"embedding_lr_factor {optimizer.embedding_lr_factor:g}": optimizer.embedding_lr_factor != 1,
        "embedding_weight_decay": optimizer.embedding_weight_decay not in (None, optimizer.weight_decay),
    }
    measured = precision != "fp16" and optimizer.kind in OPTIMIZERS.built_in  # the norm, by `device_gradients`
    if parallel.pipeline > 1 and not measured and any(apart.values()):
        yield (
            "pipeline",
            f"{next(name for name, is_so in apart.items() if is_so)} has a group of parameters for embeddings, which "
            "some stages lack; in FP16, and with an optimizer of a package, DeepSpeed sums the gradient norm over "
            "stages group by group, so that they wait for each other for ever; expected 1, or another precision",
        )
    if kind.elementwise:
        return
    if parallel.tensor > 1:
        yield (
            "tensor",
            f"the optimizer {optimizer.kind} needs every matrix whole, and {parallel.tensor} tensor ranks hold parts "
            "of each at all times; expected 1, and ZeRO or a pipeline to divide the model",
        )
    if parallel.offload != "none":
        yield (
            "offload",
            f"the optimizer {optimizer.kind} multiplies matrices in every update, which the host is too slow for; "
            "expected none",
        )
