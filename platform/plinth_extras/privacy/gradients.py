"""Gradient of a private step: clipped per sequence, summed, with noise.

    g = (sum over sequences of g_i min(1, C / |g_i|)  +  sigma C z) / B,     z standard normal

    B  expected sequences of a step    C  clip norm    sigma  noise multiplier    R  ranks that average gradients

B is a constant, since the size of a sampled batch is private. Every rank adds the same noise, so the noise does not
depend on the number of ranks. A gradient that is not finite counts as zero. Memory is needed for the FP32 sum and for
the gradient of one sequence in the parameters' dtype. Noise is added in place, without a host synchronization.

Noise comes from PyTorch's generator, seeded by the run's key for each step and parameter. A resume on the same kind of
device gives the same bits. The generator is not cryptographic, as in Opacus without `secure_mode`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch
from plinth.training.engine.engine import TrainingEngine
from plinth.training.engine.ranks import Rank
from plinth.training.rank_hook import RankHook
from plinth_extras.privacy import PrivacyState, noise_seed, read_key
from plinth_extras.privacy.accounting import PrivacyBudget


class ClippedSum(NamedTuple):
    """Sums of gradients and losses over the sequences of a rank.

    Attributes:
        gradients: sum of the clipped gradients by parameter name, FP32.
        losses: sum of the losses (FP64).
        sequences: number of sequences.
    """

    gradients: dict[str, Tensor]
    losses: Tensor
    sequences: int


def clipped_sum(module: nn.Module, losses: Iterable[Tensor], clip_norm: float, device: torch.device) -> ClippedSum:
    """Return the sums of clipped gradients and of losses. `losses` yields one lazily computed loss per sequence."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in named.items()}
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for loss in losses:
        _add_clipped(list(sums.values()), torch.autograd.grad(loss, list(named.values())), clip_norm)
        total += torch.where(loss.detach().isfinite(), loss.detach(), 0.0).double()
        count += 1
    return ClippedSum(sums, total, count)


def _add_clipped(sums: list[Tensor], gradients: tuple[Tensor, ...], clip_norm: float) -> None:
    """Add the clipped gradient of one sequence to `sums`."""
    norm = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)).norm()
    fine, factor = norm.isfinite(), (clip_norm / norm).clamp(max=1.0)
    for held, gradient in zip(sums, gradients, strict=True):
        held += torch.where(fine, gradient.float() * factor, 0.0)


class PrivateRun(RankHook):
    """Differentially private steps of a run on one rank. Each step spends budget before it reads its batch.

    Raises:
        SignatureError: the key of the run is not on this machine.
    """

    engine: TrainingEngine

    def __init__(self, config: RunConfig, rank: Rank, state: PrivacyState) -> None:
        key = read_key(Workspace(config.workspace), config.run_id, state.secret_sha256)
        self.budget = PrivacyBudget(state)
        self.gradients = PrivateGradients(state, key, config.global_batch_sequences, config.data_ranks)

    def attach(self, engine: TrainingEngine) -> None:
        self.engine = engine

    def state(self) -> dict[str, Any]:
        return self.budget.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.budget.steps = state["steps"]

    def saved(self, state: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "privacy", {key: state[key] for key in ("unit", "epsilon", "delta")}

    def before_step(self, step: int) -> None:
        self.budget.spend(step)
        self.gradients.step = step

    def gradient(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        return self.gradients.of(self.engine.module, map(partial(self.engine.sequence_loss, batch), batch.micro))


class PrivateGradients:
    """Clipped gradients with noise for the steps of a run. `step` is the number of the next step.

    Args:
        key: privacy key of the run.
        expected: B, the expected number of sequences per step.
        replicas: R, the number of ranks that average gradients.
    """

    def __init__(self, state: PrivacyState, key: bytes, expected: int, replicas: int) -> None:
        self.step = 0
        self.noise_multiplier, self.clip_norm = state.noise_multiplier, state.clip_norm
        self._key, self._expected, self._replicas = key, expected, replicas

    def of(self, module: nn.Module, losses: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean loss over all ranks' sequences (FP64) and the scalar for the backward pass.

        All ranks must call this method.

        Args:
            losses: losses of the rank's sequences, computed lazily.
        """
        sums = clipped_sum(module, losses, self.clip_norm, next(module.parameters()).device)
        shared = torch.stack([sums.losses, sums.losses.new_tensor(float(sums.sequences))])
        dist.all_reduce(shared)
        self.add_noise(sums.gradients)
        return shared[0] / shared[1].clamp(min=1.0), surrogate(module, sums.gradients)

    def add_noise(self, sums: Mapping[str, Tensor]) -> None:
        """Scale the gradient sums and add noise, in place. The mean of the results over all ranks is the step's
        gradient."""
        std = self.noise_multiplier * self.clip_norm / self._expected if self.noise_multiplier else 0.0
        for name, held in sums.items():
            held.mul_(self._replicas / self._expected)
            if std:
                held.add_(self._normal(name, held).mul_(std))

    def _normal(self, name: str, like: Tensor) -> Tensor:
        generator = torch.Generator(like.device).manual_seed(noise_seed(self._key, self.step, name))
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=torch.float32)


def surrogate(module: nn.Module, gradients: Mapping[str, Tensor]) -> Tensor:
    """Return a scalar whose gradients are `gradients`, so that its backward pass reduces them over the ranks."""
    held = dict(module.named_parameters())
    return torch.stack([(held[name].float() * gradient).sum() for name, gradient in gradients.items()]).sum()
