"""Distillation: exact where teacher and student are one, and what plain PyTorch computes with all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from plinth.model.distillation import Teacher, distilled_cross_entropy, divergence
from plinth.model.loss import IGNORED, cross_entropy

N, D, E, V = 24, 12, 20, 40


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sides() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and output matrices of student and teacher, and targets of which some are not scored."""
    targets = torch.randint(0, V, (N,), generator=torch.Generator().manual_seed(5))
    targets[3:7] = IGNORED
    return drawn(N, D, seed=1).requires_grad_(), drawn(V, D, seed=2).requires_grad_(), drawn(N, E, seed=3), drawn(
        V, E, seed=4
    ), targets


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_a_teacher_teaches_itself_nothing(temperature: float) -> None:
    logits = drawn(N, V, seed=1) * 10
    gap, gradient = divergence(logits, logits.clone(), temperature)
    assert gap.tolist() == [0.0] * N
    assert not gradient.any()
    hidden, weight, _, _, targets = sides()
    itself = Teacher(hidden.detach(), weight.detach(), 1.5, 1.0, temperature)
    loss = distilled_cross_entropy(hidden, weight, targets, itself, scale=1.5, rows=7)
    loss.backward()
    assert loss.item() == 0.0
    assert hidden.grad is not None
    assert weight.grad is not None
    assert not hidden.grad.any()
    assert not weight.grad.any()


@pytest.mark.parametrize("rows", [1, 7, N, 100])
@pytest.mark.parametrize(("share", "temperature"), [(1.0, 1.0), (0.5, 2.0), (0.25, 1.0)])
def test_chunks_give_what_stored_logits_give(share: float, temperature: float, rows: int) -> None:
    hidden, weight, teaches, output, targets = sides()
    given = Teacher(teaches, output, 0.5, share, temperature)
    ours = distilled_cross_entropy(hidden, weight, targets, given, scale=1.5, z_loss=1e-2, rows=rows)
    ours.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    found = [ours.detach(), hidden.grad.clone(), weight.grad.clone()]
    hidden.grad = weight.grad = None
    stored, logits, kept = teaches @ output.T * 0.5, hidden @ weight.T * 1.5, targets != IGNORED  # all of them at once
    log_q, log_p = ((side / temperature).log_softmax(-1) for side in (logits, stored))
    gap = functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    plain = cross_entropy(hidden, weight, targets, scale=1.5, z_loss=1e-2)
    theirs = (1 - share) * plain + share * temperature**2 * gap[kept].sum() / kept.sum()
    theirs.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    for one, other in zip(found, (theirs.detach(), hidden.grad, weight.grad), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6 * max(1.0, float(other.abs().max())))


def test_its_gradient_is_that_of_finite_differences() -> None:
    student = drawn(2, 5, seed=1).double().requires_grad_()
    teacher = drawn(2, 5, seed=2).double()
    gap, gradient = divergence(student, teacher, 2.0)
    (expected,) = torch.autograd.grad(gap.sum(), student)
    assert torch.allclose(gradient, expected, atol=1e-12)
    assert bool((gap > 0).all())


def test_nothing_scored_teaches_nothing() -> None:
    hidden, weight, teaches, output, targets = sides()
    none = torch.full_like(targets, IGNORED)
    loss = distilled_cross_entropy(hidden, weight, none, Teacher(teaches, output, 1.0, 0.5, 1.0))
    loss.backward()
    assert loss.item() == 0.0
    assert hidden.grad is not None
    assert not hidden.grad.any()
