"""The coordinate check of Tensor Programs V (Yang et al., arXiv:2203.03466, appendix D.1).

With muP neither the activations at the start nor what training changes in them grows with width; without, they do.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model, MuP
from plinth.training.engine.optimization import parameter_groups, set_rates
from plinth.training.parameters.optimizers import Optimizer

WIDTHS = (64, 128, 256)
STEPS, VOCABULARY = 3, 64


def at_width(width: int, mup: bool) -> Model:
    return Model(
        layers=2,
        dim=width,
        heads=width // 16,
        kv_heads=width // 16,
        ffn_dim=2 * width,
        init_std=1 / 8,  # 1 / sqrt(64): what the narrowest would have by its fan-in
        tied_embeddings=False,
        mup=MuP(base_dim=64, base_head_dim=16) if mup else None,
    )


@cache
def coordinates(mup: bool) -> dict[int, tuple[float, float]]:
    """By width: logits at the start, and how far training moves the last block's output (root mean squares)."""
    found = {}
    for width in WIDTHS:
        model = build(at_width(width, mup), VOCABULARY, 1)
        tokens = torch.randint(0, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(3))
        before, logits = outputs(model, tokens)
        optimizer = Optimizer(lr=2e-3, weight_decay=0.0)
        adam = torch.optim.AdamW(parameter_groups(optimizer, model.config, model.named_parameters()))
        for _ in range(STEPS):
            set_rates(adam.param_groups, optimizer.lr)
            model(tokens[:, :-1], targets=tokens[:, 1:]).backward()
            adam.step()
            adam.zero_grad()
        after, _ = outputs(model, tokens)
        found[width] = (rms(logits), rms(after - before))
    return found


@torch.no_grad()
def outputs(model: Decoder, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = []
    handle = model.blocks[-1].register_forward_hook(lambda module, inputs, output: kept.append(output))
    logits = model(tokens)
    handle.remove()
    return kept[0], logits


def rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())


def growth(values: list[float]) -> float:
    """Exponent of the power of the width that the values follow."""
    x, y = [math.log2(width) for width in WIDTHS], [math.log2(value) for value in values]
    mean = sum(x) / len(x)
    return sum((a - mean) * b for a, b in zip(x, y, strict=True)) / sum((a - mean) ** 2 for a in x)


def test_with_mup_nothing_grows_with_width() -> None:
    start, moved = zip(*coordinates(True).values(), strict=True)
    assert growth(list(start)) < 0.05  # and may shrink: the output begins at 1 / sqrt(m)
    assert abs(growth(list(moved))) < 0.2


def test_without_it_does() -> None:
    start, moved = zip(*coordinates(False).values(), strict=True)
    assert growth(list(start)) > 0.4
    assert growth(list(moved)) > 0.4


def test_at_the_base_width_it_is_the_plain_model() -> None:
    tokens = torch.arange(20)[None]
    plain, scaled = (build(at_width(64, mup), VOCABULARY, 1) for mup in (False, True))
    assert torch.equal(plain(tokens), scaled(tokens))
    groups = parameter_groups(Optimizer(), scaled.config, scaled.named_parameters())
    assert [group["lr_factor"] for group in groups] == [1.0, 1.0]


def test_rates_and_scales_of_table_8() -> None:
    model = build(at_width(256, True), VOCABULARY, 1)
    groups = parameter_groups(Optimizer(lr=1e-2), model.config, model.named_parameters())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    factors = {names[id(p)]: group["lr_factor"] for group in groups for p in group["params"]}
    assert {factors["embed_tokens"], factors["lm_head"], factors["norm.weight"]} == {1.0}
    assert {factors[name] for name in factors if name.endswith("proj.weight")} == {0.25}
    assert model.config.logit_scale == 0.25
    stds = {
        name: float(parameter.detach().std()) for name, parameter in model.named_parameters() if parameter.dim() == 2
    }
    assert stds["embed_tokens"] == pytest.approx(1 / 8, rel=0.05)
    assert stds["layers.0.self_attn.q_proj.weight"] == pytest.approx(1 / 16, rel=0.05)
    assert stds["layers.1.mlp.down_proj.weight"] == pytest.approx(1 / 32, rel=0.05)  # and 1 / sqrt(2 layers)
