"""The chunked loss is the plain loss, and its gradients are the plain gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from plinth.model import loss as module
from plinth.model.loss import IGNORED, cross_entropy

N, D, V = 37, 16, 101


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype)
    weight = (torch.randn(V, D, generator=generator, dtype=torch.float64) / 2).to(dtype)
    targets = torch.randint(0, V, (N,), generator=generator)
    targets[::5] = IGNORED
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, z_loss: float) -> Tensor:
    """From the definition, token by token."""
    terms = []
    for row, target in zip(hidden @ weight.T * scale, targets.tolist(), strict=True):
        if target != IGNORED:
            z = row.exp().sum().log()
            terms.append(z - row[target] + z_loss * z**2)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("rows", [1, 7, 36, 37, 500])
@pytest.mark.parametrize(("scale", "z_loss"), [(1.0, 0.0), (0.25, 1e-2)])
def test_loss_and_gradients(rows: int, scale: float, z_loss: float) -> None:
    hidden, weight, targets = inputs(torch.float32)
    exact = inputs()
    wanted = plain(*exact, scale, z_loss)
    found = cross_entropy(hidden, weight, targets, scale=scale, z_loss=z_loss, rows=rows)
    (found * 3).backward()
    (wanted * 3).backward()
    assert found.dtype == torch.float32
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-6)
    for ours, theirs in zip((hidden, weight), exact, strict=False):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(ours.grad.double(), theirs.grad, atol=1e-6, rtol=1e-4)
    with torch.no_grad():
        again = cross_entropy(hidden, weight, targets, scale=scale, z_loss=z_loss, rows=rows)
    assert float(again) == pytest.approx(float(wanted.detach()), rel=1e-6)


def test_nothing_scored_is_zero_and_moves_nothing() -> None:
    for rows in (4, 100):
        hidden, weight, targets = inputs()
        loss = cross_entropy(hidden, weight, torch.full_like(targets, IGNORED), rows=rows)
        loss.backward()
        assert float(loss.detach()) == 0
        assert hidden.grad is not None
        assert float(hidden.grad.abs().max()) == 0


def test_logits_of_all_tokens_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = []
    logits = module.logits_of
    monkeypatch.setattr(module, "logits_of", lambda *a: largest.append(len(found := logits(*a))) or found)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 10 * V + 3)
    cross_entropy(*inputs()).backward()
    assert largest == [10, 10, 10, 7]


def test_bf16_sums_in_fp32() -> None:
    """Many chunks lose nothing against one."""
    hidden, weight, targets = inputs(torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    plain(exact[0], exact[1], targets, 1.0, 0.0).backward()
    cross_entropy(hidden, weight, targets, rows=5).backward()
    for ours, theirs in zip((hidden, weight), exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert float((ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()) < 0.01


@pytest.mark.parametrize("rows", [7, 500])
def test_no_shape_depends_on_the_data_so_that_no_host_waits_for_it(rows: int) -> None:
    """On tensors without values, whatever needs one to go on fails."""
    with FakeTensorMode() as fake:
        hidden, weight, targets = (fake.from_tensor(x.detach()) for x in inputs())
        for z_loss in (0.0, 1e-2):
            asked = (hidden.requires_grad_(), weight.requires_grad_(), targets)
            cross_entropy(*asked, z_loss=z_loss, rows=rows).backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == (N, D)
