"""The loss over a divided vocabulary is that of the whole one, in reduced precision too."""

from __future__ import annotations

import pytest
import torch

from plinth.model.division import TensorRanks, divided_cross_entropy
from plinth.model.loss import cross_entropy


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_bf16_logits_are_scaled_in_fp32(scale: float) -> None:
    """muP scales logits: in BF16 the product would be rounded once more, by up to 0.4%."""
    torch.manual_seed(1)
    hidden, weight = torch.randn(64, 32).bfloat16(), torch.randn(50, 32).bfloat16()
    targets = torch.randint(0, 50, (64,))
    losses, gradients = [], []
    for divided in (False, True):
        given = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        if divided:
            loss = divided_cross_entropy(*given, targets, 0, TensorRanks(), scale=scale, z_loss=1e-3)
        else:
            loss = cross_entropy(*given, targets, scale=scale, z_loss=1e-3)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradients.append([each.grad.float() for each in given if each.grad is not None])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    for whole, part in zip(*gradients, strict=True):
        assert (whole - part).norm() <= 0.004 * whole.norm()
