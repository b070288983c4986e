"""Which parameter learns at which rate and decays by how much."""

from __future__ import annotations

import pytest
import torch

from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth.training.engine.optimization import parameter_groups, set_rates
from plinth.training.parameters.optimizers import Optimizer

SHAPE = Model(layers=1, dim=32, heads=4, kv_heads=2, ffn_dim=32, tied_embeddings=False)


def by_name(optimizer: Optimizer) -> dict[str, tuple[float, float]]:
    """Rate after `set_rates(…, 0.5)` and weight decay of every parameter."""
    model = build(SHAPE, 20, 1)
    groups = parameter_groups(optimizer, SHAPE, model.named_parameters())
    set_rates(groups, 0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert found.keys() == set(names.values())
    return found


def test_by_default_matrices_decay_and_gains_do_not() -> None:
    found = by_name(Optimizer(weight_decay=0.2))
    assert {pair for name, pair in found.items() if "norm" in name} == {(0.5, 0.0)}
    assert {pair for name, pair in found.items() if "norm" not in name} == {(0.5, 0.2)}


def test_embeddings_have_their_own() -> None:
    found = by_name(Optimizer(embedding_weight_decay=0.0, embedding_lr_factor=4.0))
    assert found["embed_tokens"] == found["lm_head"] == (2.0, 0.0)
    assert found["layers.0.self_attn.q_proj.weight"] == (0.5, 0.1)


@pytest.mark.parametrize("peak", [1e-3, 1e-1])
def test_independent_decay_shrinks_alike_at_any_peak(peak: float) -> None:
    optimizer = Optimizer(lr=peak, weight_decay=0.1, independent_weight_decay=True, embedding_lr_factor=2.0)
    model = build(SHAPE, 20, 1)
    groups = parameter_groups(optimizer, SHAPE, model.named_parameters())
    set_rates(groups, peak / 2)  # as the schedule has it half way down
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW(groups).step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, before[name] * (0.95 if parameter.dim() == 2 else 1.0), atol=1e-7)
