"""Initial weights: the same however they are divided, distributed as asked, and never whole where a part is held."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import starting
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.model.decoder import build
from plinth.model.division import Placement
from plinth.model.initialisation import CUT, TILE, Initial
from plinth.model.parameters import Model
from plinth.model.presets import PRESETS
from plinth.operation.planning.memory import parameters_of_rank
from plinth.training.checkpoint.snapshot import parameters_digest
from plinth.training.config import RunConfig
from plinth.training.engine.engine import DTYPES
from plinth.training.parallel.parameters import Parallel
from plinth.training.parallel.zero3_initialisation import fill_range
from tests.ranks import run_ranks

CONFIG = Model(layers=3, dim=32, heads=4, kv_heads=2, ffn_dim=64)


def filled(initial: Initial, name: str, shape: tuple[int, int]) -> torch.Tensor:
    target = torch.full(shape, math.nan)
    initial.fill(target, name, "embedding", Placement(shape))
    return target


@settings(deadline=None, max_examples=15)
@given(st.tuples(st.integers(1, 600), st.integers(1, 1500)), st.data())
def test_any_part_is_that_of_the_whole(shape: tuple[int, int], data: st.DataObject) -> None:
    initial = Initial(CONFIG, data.draw(st.integers(0, 2**63)))
    whole = filled(initial, "w", shape)
    row, column = (data.draw(st.integers(0, size - 1)) for size in shape)
    rows, columns = (data.draw(st.integers(0, size - at)) for size, at in zip(shape, (row, column), strict=True))
    part = torch.full((rows, columns), math.nan)
    initial.fill(part, "w", "embedding", Placement(shape, row, column))
    assert torch.equal(part, whole[row : row + rows, column : column + columns])
    start = data.draw(st.integers(0, whole.numel()))
    count = data.draw(st.integers(1, whole.numel()))
    ranged = torch.full(shape, math.nan)
    fill_range(ranged, initial, "w", "embedding", start, count)
    assert torch.equal(ranged.flatten()[start : start + count], whole.flatten()[start : start + count])
    assert int((~ranged.isnan()).sum()) <= count + 2 * shape[1]  # no more than whole rows


def test_values_are_normal_and_no_two_tiles_alike() -> None:
    shape = (2 * TILE[0], 4 * TILE[1])
    initial = Initial(CONFIG.model_copy(update={"init_std": 0.5, "init": "normal"}), 7)
    z = filled(initial, "lm_head", shape).double() / 0.5
    count = z.numel()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(float(z.pow(power).mean()) - moment) < 5 * math.sqrt(variance / count)
    steps = torch.arange(1, count + 1, dtype=torch.float64) / count
    away = (torch.special.ndtr(z.flatten().sort().values) - steps).abs().max()  # Kolmogorov and Smirnov's
    assert float(away) < 1.95 / math.sqrt(count)  # one in a thousand would be farther, by chance
    tiles = [t.flatten() for rows in z.split(TILE[0]) for t in rows.split(TILE[1], dim=1)]
    bound = 5 / math.sqrt(tiles[0].numel())
    matrix = torch.corrcoef(torch.stack([*tiles, filled(initial, "other", TILE).double().flatten()]))
    assert float((matrix - torch.eye(len(matrix))).abs().max()) < bound
    other = Initial(initial.config, 8)
    assert abs(float((filled(other, "lm_head", TILE).flatten() * tiles[0]).mean())) < bound


def test_truncated_values_stay_within_and_keep_their_shape() -> None:
    initial = Initial(CONFIG.model_copy(update={"init": "trunc-normal", "init_std": 1.0}), 3)
    z = filled(initial, "lm_head", (4 * TILE[0], TILE[1])).double()
    assert CUT - 0.001 < float(z.abs().max()) <= CUT
    density = math.exp(-(CUT**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * CUT * density / math.erf(CUT / math.sqrt(2))
    assert float(z.square().mean()) == pytest.approx(variance, rel=0.01)


def test_every_parameter_has_values_of_its_own() -> None:
    model = build(CONFIG, 64, 1)
    matrices = [p.detach().flatten()[:1024] for p in model.parameters() if p.dim() == 2]
    assert len({tuple(values.tolist()) for values in matrices}) == len(matrices)
    one, two = (build(CONFIG, 64, seed) for seed in (2, 3))
    assert not torch.equal(one.embed_tokens, two.embed_tokens)


TIED = CONFIG.model_copy(update={"layers": 6, "dim": 64, "ffn_dim": 192})
UNTIED = TIED.model_copy(update={"tied_embeddings": False, "qk_norm": True})

DIVISIONS: dict[str, tuple[str, Model, Parallel]] = {
    "one": ("fp32", TIED, Parallel(zero_stage=0)),
    "zero 3": ("fp32", TIED, Parallel(zero_stage=3)),
    "tensor": ("fp32", TIED, Parallel(tensor=2)),
    "pipeline": ("fp32", TIED, Parallel(pipeline=2)),
    "tensor, untied": ("fp32", UNTIED, Parallel(tensor=2)),
    "pipeline, untied, bf16": ("bf16", UNTIED, Parallel(pipeline=2)),
    "zero 2, bf16": ("bf16", TIED, Parallel(zero_stage=2)),
    "zero 3, untied, bf16, offloaded": ("bf16", UNTIED, Parallel(zero_stage=3, offload="parameters")),
}


@pytest.mark.slow
def test_engines_of_any_division_begin_alike_and_make_no_more_than_their_share(
    make: Callable[..., RunConfig],
) -> None:
    """Bits equal those of one process; what is made before DeepSpeed begins is a rank's share and one parameter."""
    configs = {
        name: make(model=model, parallel=parallel, precision=precision, vocab_size=99)
        for name, (precision, model, parallel) in DIVISIONS.items()
    }
    found = run_ranks(2, starting.open_all, configs)
    for key, config in configs.items():
        dtype = DTYPES[config.precision]
        model = build(config.model, config.vocab_size, config.seed).to(dtype)
        digest = parameters_digest(model.named_parameters())
        sizes = [parameter.numel() for parameter in model.parameters()]
        norms = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
        divisor = 2 if config.parallel.zero_stage == 3 or config.parallel.model_ranks > 1 else 1
        end = max(sizes) if config.parallel.pipeline > 1 else 0  # stages are not of one size
        share = (sum(sizes) / divisor + norms + end) * dtype.itemsize
        scratch = max(sizes) * (dtype.itemsize + 4) + 8192  # one parameter, and a tile of FP32; the rest is counters
        assert share + scratch < 0.8 * sum(sizes) * dtype.itemsize or divisor == 1  # or the bound would say nothing
        for digest_there, peak in (answer[key] for answer in found):
            assert digest_there == digest, key
            assert peak <= share + scratch, key


def test_no_rank_of_a_70b_model_makes_more_than_its_share() -> None:
    model, vocabulary = Model(preset="70b"), PRESETS["70b"].vocab_size
    layouts = {
        "tensor 8, pipeline 4": (Parallel(tensor=8, pipeline=4), 32, [0, 31]),
        "tensor 8": (Parallel(tensor=8, zero_stage=1), 8, [7]),
        "zero 3 over 64": (Parallel(zero_stage=3), 64, [63]),
    }
    (found,) = run_ranks(1, starting.plan_all, model, vocabulary, layouts)
    total, block = 70_553_706_496, 128_256 * 8_192
    for (name, index), (elements, empty_bytes, written) in found.items():
        parallel, world, _ = layouts[name]
        assert empty_bytes < 100_000, (name, index)  # a few bytes a parameter, whatever its size
        if parallel.zero_stage == 3:
            assert elements == total
            rows = sum(28_672 for _ in written) * 2  # a range begins and ends within rows
            assert sum(written.values()) / 2 <= total / world + rows
        else:
            assert sum(written.values()) == 2 * elements
            planned = parameters_of_rank(model, vocabulary, parallel)
            assert elements <= planned + model.dim <= 1.05 * total / world + block / 8  # the last stage has a norm more
        assert max(written.values()) <= 2 * block
