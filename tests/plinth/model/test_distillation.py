"""Distillation: exact where teacher and student are one, and what plain PyTorch computes with all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from plinth.model.loss import (
    IGNORED,
    Teacher,
    TopTokens,
    cross_entropy,
    distilled_cross_entropy,
    divergence,
    divergence_of_top,
    top_tokens,
)

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


@pytest.mark.parametrize("count", [1, 5, V])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_what_a_teacher_said_teaches_it_nothing(count: int, temperature: float) -> None:
    logits = drawn(N, V, seed=1) * 10
    gap, gradient = divergence_of_top(logits.clone(), *top_tokens(logits, count, temperature), temperature)
    assert gap.tolist() == [0.0] * N
    assert not gradient.any()


@pytest.mark.parametrize("rows", [7, N])
@pytest.mark.parametrize(("share", "temperature"), [(1.0, 1.0), (0.5, 2.0)])
def test_all_tokens_stored_are_the_teacher(share: float, temperature: float, rows: int) -> None:
    hidden, weight, teaches, output, targets = sides()
    beside = Teacher(teaches, output, 0.5, share, temperature)
    stored = TopTokens(*top_tokens(teaches @ output.T * 0.5, V, temperature), share, temperature)
    found = []
    for given in (beside, stored):
        hidden.grad = weight.grad = None
        loss = distilled_cross_entropy(hidden, weight, targets, given, scale=1.5, z_loss=1e-2, rows=rows)
        loss.backward()
        assert hidden.grad is not None
        assert weight.grad is not None
        found.append([loss.detach(), hidden.grad, weight.grad])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [1, 4, V - 1])
def test_the_tail_is_one_event(count: int) -> None:
    student, teacher = drawn(6, V, seed=1).double().requires_grad_(), drawn(6, V, seed=2).double() * 3
    ids, log_p = top_tokens(teacher, count, 2.0)
    gap, gradient = divergence_of_top(student.detach(), ids, log_p, 2.0)
    q, p = ((side / 2).softmax(-1) for side in (student, teacher))
    others = torch.ones_like(p, dtype=torch.bool).scatter(-1, ids, False)
    events = [torch.cat([side.gather(-1, ids), (side * others).sum(-1, keepdim=True)], -1) for side in (p, q)]
    plain = 4 * (events[0] * (events[0] / events[1]).log()).sum(-1)
    plain.sum().backward()
    assert student.grad is not None
    assert torch.allclose(gap, plain.detach(), rtol=0, atol=1e-12)
    assert torch.allclose(gradient, student.grad, rtol=0, atol=1e-12)
    assert (gap <= divergence(student.detach(), teacher, 2.0)[0] + 1e-12).all()
    assert (ids.diff(dim=-1) > 0).all()
    assert (teacher.gather(-1, ids).min(-1).values >= teacher.masked_fill(~others, -torch.inf).max(-1).values).all()


def test_a_tail_that_the_student_all_but_excludes_gives_finite_numbers() -> None:
    student, teacher = torch.tensor([[300.0, 0.0, -300.0]]), torch.tensor([[0.1, 0.0, 0.0]])
    gap, gradient = divergence_of_top(student, *top_tokens(teacher, 1, 1.0), 1.0)
    assert gap.isfinite().all()
    assert gradient.sum().item() == pytest.approx(0.0, abs=1e-5)
    assert gradient.isfinite().all()
