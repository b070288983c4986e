"""Statistics by layer against what is computed by hand, and the same numbers in every ZeRO stage."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from plinth.launch.parameters import Launch
from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth.training.config import RunConfig
from plinth.training.engine.device_measurements import COLUMNS, LayerMonitor, LayerStatistics
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Telemetry
from tests.ranks import run_ranks

SHAPE = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64, qk_norm=True, tied_embeddings=False)
NAMES = ("embedding", "0", "1", "head")


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(seed))


def test_against_numbers_by_hand() -> None:
    model = build(SHAPE, 50, 1)
    for parameter in model.parameters():
        parameter.data *= 3
    stats = LayerMonitor(model, 2, every=5)
    assert stats.latest() is None
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in (*NAMES, "q", "k")}
    for name, part in zip(NAMES[1:], (*model.blocks, model.norm), strict=True):
        part.register_forward_hook(lambda module, inputs, output, name=name: seen[name].append(output.detach()))
    model.blocks[1].self_attn.core.register_forward_pre_hook(
        lambda module, inputs: [seen[name].append(x.detach()) for name, x in zip("qk", inputs, strict=False)] and None
    )
    gradients: list[list[float]] = []
    for step in (4, 5):  # only the second is measured
        for values in seen.values():
            values.clear()
        gradients.clear()
        stats.begin(step)
        stats.gradient_scale = 0.5
        for micro in range(2):
            model.zero_grad()
            inputs = tokens(2 * step + micro)
            seen["embedding"].append(model.embed_tokens.detach()[inputs[:, :-1]])
            (model(inputs[:, :-1], targets=inputs[:, 1:]) / 2).backward()
            rows = ([model.embed_tokens], model.blocks[0].parameters(), model.blocks[1].parameters())
            grouped = [*(list(row) for row in rows), [model.norm.weight, model.lm_head]]
            gradients.append([2 * float(torch.cat([p.grad.flatten() for p in row]).norm()) for row in grouped])
        stats.end()
    assert stats.at(4) is None
    found = stats.at(5)
    assert found is stats.latest()
    assert found is not None
    assert (found.step, found.names) == (5, NAMES)
    assert found.column("grad_norm") == pytest.approx(np.sqrt(np.square(gradients).mean(0)), rel=1e-5)
    for row, name in enumerate(NAMES):
        x = torch.stack(seen[name])
        assert found.column("rms")[row] == pytest.approx(float(x.square().mean().sqrt()), rel=1e-5)
        assert found.column("max_abs")[row] == pytest.approx(float(x.abs().max()), rel=1e-6)
    q, k = torch.cat(seen["q"]), torch.cat(seen["k"])
    largest = (q @ k.repeat_interleave(2, dim=1).transpose(-1, -2)).abs().max() / math.sqrt(8)
    bound = float(found.column("logit_bound")[2])
    assert float(largest) <= bound < 4 * float(largest)
    assert math.isnan(found.column("logit_bound")[0])
    event = found.event()
    assert event["logit_bound"][0] is None
    assert set(event) == {"names", *COLUMNS}


def test_zeros_are_seen_and_never_is_free() -> None:
    model = build(SHAPE, 50, 1)
    stats = LayerMonitor(model, 2, every=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        stats.begin(1)
        model(tokens(1))
        stats.end()
    found = stats.at(1)
    assert found is not None
    assert found.column("zero").tolist() == [1.0] * 4
    assert np.isnan(found.column("grad_norm")).all()  # nothing went backward
    silent = build(SHAPE, 50, 1)
    LayerMonitor(silent, 2, every=0)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in silent.modules())
    assert all(parameter._backward_hooks is None for parameter in silent.parameters())


def measure(configs: list[RunConfig]) -> list[list[LayerStatistics]]:
    """On a rank: two measured steps of each run, one after the other."""
    import synthetic

    from plinth.training.engine.engine import join, leave
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.parallel.topology import place_of

    rank, found = join(configs[0]), []
    for config in configs:
        data = place_of(config.parallel, config.ranks, rank.index).data
        seen = config.model_copy(update={"launch": Launch(ranks=config.data_ranks), "parallel": Parallel()})
        engine = open_engine(config, rank)
        found.append([])
        for step in (1, 2):
            engine.stats.begin(step)
            engine.train_step(synthetic.batch_at(seen, step, data), 1e-3)
            layers = engine.stats.at(step)
            assert layers is not None
            found[-1].append(layers)
    leave()
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_same_however_the_model_is_divided(make: Callable[..., RunConfig]) -> None:
    kinds = [Parallel(zero_stage=0), Parallel(zero_stage=1), Parallel(zero_stage=2), Parallel(zero_stage=3)]
    kinds += [Parallel(zero_stage=3, activation_checkpointing=1), Parallel(zero_stage=0, tensor=2)]
    every = Telemetry(layers_every=1)
    first, second = run_ranks(2, measure, [make(telemetry=every, parallel=kind) for kind in kinds])
    for ours, theirs in zip(first, second, strict=True):  # the same numbers, so that guards decide the same
        for one, other in zip(ours, theirs, strict=True):
            assert np.array_equal(one.values, other.values, equal_nan=True)
    reference, *others, tensor = first
    assert np.isfinite(reference[0].column("grad_norm")).all()
    for found in others:
        for step, again in zip(reference, found, strict=True):
            assert again.values == pytest.approx(step.values, rel=1e-4, nan_ok=True)
    (alone,) = run_ranks(1, measure, [make(telemetry=every, parallel=kinds[0], launch=Launch(ranks=1))])
    for step, again in zip(alone[0], tensor, strict=True):
        assert again.values == pytest.approx(step.values, rel=1e-3, nan_ok=True)
