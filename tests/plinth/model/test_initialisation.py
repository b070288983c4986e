"""Initial weights: the values of any part are those of the whole, and are distributed as configured."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.model.decoder import build
from plinth.model.division import CUT, TILE, Initial, Placement
from plinth.model.parameters import Model
from plinth.training.parallel.divided_decoder import fill_range

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
