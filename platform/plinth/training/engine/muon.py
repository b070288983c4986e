"""Muon for the hidden matrices, AdamW for embeddings and gains, whichever rank holds which part of a matrix.

    v  momentum of the gradient g:  v <- v + (1 - beta) (g - v)
    u  Nesterov's look ahead:       g + beta (v - g)
    O  u made orthogonal: five steps of Newton and Schulz in BF16
    w  <- w (1 - lr decay) - lr scale O

Jordan et al. 2024 (kellerjordan.github.io/posts/muon), Liu et al. 2025 ("Moonlight", arXiv:2502.16982); on whole
matrices bit for bit as `torch.optim.Muon`. Momentum and weights stay divided as ZeRO divides them; where a matrix
lies on several ranks, u travels in BF16, which the iteration begins with in any case (`matrix_division`).

Where `found_inf` is 1, weights, momentum and moments stay as they are, without a wait of the host: the new values
are computed and not taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plinth.training.engine.matrix_division import HeldMatrix, MatrixDivision, Wave
from plinth.training.parameters.engine import Optimizer
from plinth.training.parameters.optimizers import Groups, MuonOptions

#: Coefficients of the iteration, its steps, and the least norm that it divides by (Jordan et al.).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
LEAST_NORM = 1e-7

SCALES: dict[str, Callable[[int, int], float]] = {
    "rms": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral": lambda rows, columns: math.sqrt(max(1, rows / columns)),
}


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: singular values between about 0.7 and 1.2, in BF16.

    Args:
        matrix: [rows, columns] in BF16; overwritten.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x.div_(x.norm().clamp(min=LEAST_NORM))
    for _ in range(STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def make(groups: Groups, optimizer: Optimizer, options: MuonOptions) -> Muon:
    """Muon, with its options of the recipe."""
    return Muon(groups, options)


class Muon(torch.optim.Optimizer):
    """Groups with `hidden_matrices` are stepped by Muon, all others by PyTorch's fused AdamW."""

    def __init__(self, groups: Groups, options: MuonOptions) -> None:
        super().__init__(groups, {"fused": True})  # `found_inf` is honoured
        self._momentum, self._scale = options.momentum, SCALES[options.scale]
        others = [group for group in groups if not group.get("hidden_matrices")]
        for group in groups:
            group["counts_steps"] = not group.get("hidden_matrices")
        self._adamw = torch.optim.AdamW(others, fused=True) if others else None
        #: Where ZeRO puts flat tensors in place of matrices: the parts of matrices in each.
        self.division = MatrixDivision()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of the parameters that have a gradient; a collective where matrices lie on several ranks."""
        bad = getattr(self, "found_inf", None)
        self._step_others(bad)
        for group in self.param_groups:
            if group.get("hidden_matrices"):
                for flat in group["params"]:
                    if flat.grad is not None:
                        self._step_matrices(flat, group, bad)

    def _step_others(self, bad: Tensor | None) -> None:
        groups = [group for group in self.param_groups if not group.get("hidden_matrices")]
        if self._adamw is not None and groups:
            self._adamw.param_groups, self._adamw.state = groups, self.state
            self._adamw.found_inf = bad  # type: ignore[attr-defined]
            self._adamw.step()

    def _step_matrices(self, flat: Tensor, group: dict[str, Any], bad: Tensor | None) -> None:
        state = self.state[flat]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(flat, memory_format=torch.preserve_format)
        assert flat.grad is not None
        tensors = (flat.detach().view(-1), flat.grad.view(-1), state["momentum_buffer"].view(-1))
        for wave in self.division.waves(flat):
            self._step_wave(wave, tensors, group, bad)

    def _step_wave(self, wave: Wave, flat: tuple[Tensor, ...], group: dict[str, Any], bad: Tensor | None) -> None:
        """Update matrices whose parts travel together: to the rank that multiplies each, and back."""
        weights, gradient, momentum = ([all_[one.held] for one in wave.matrices] for all_ in flat)
        ahead = [self._look_ahead(v, g, bad) for v, g in zip(momentum, gradient, strict=True)]
        whole = wave.gather(ahead)
        made = {index: orthogonal(matrix).reshape(-1) for index, matrix in whole.items()}
        for one, w, update in zip(wave.matrices, weights, wave.scatter(made, ahead), strict=True):
            self._apply(one, w, update, group, bad)

    def _look_ahead(self, v: Tensor, g: Tensor, bad: Tensor | None) -> Tensor:
        """Take a gradient into the momentum; what is made orthogonal, in BF16."""
        new = v.lerp(g, 1 - self._momentum)
        v.copy_(_unless(bad, new, v))
        return g.lerp(new, self._momentum).bfloat16()

    def _apply(self, one: HeldMatrix, w: Tensor, update: Tensor, group: dict[str, Any], bad: Tensor | None) -> None:
        lr = group["lr"]
        new = w.mul(1 - lr * group["weight_decay"]).add_(update, alpha=-lr * self._scale(*one.shape))
        w.copy_(_unless(bad, new, w))


def _unless(bad: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if bad is None else torch.where(bad == 0, new, old)
