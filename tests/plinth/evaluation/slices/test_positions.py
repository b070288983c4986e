"""Bits per token by position: bins that add up, and a curve over the same documents."""

from __future__ import annotations

import numpy as np
import pytest

from plinth.evaluation.engine.records import TokenBits
from plinth.evaluation.slices.job import bins, by_position
from plinth.evaluation.slices.tables import on_grid


def text(bits: list[float]) -> TokenBits:
    return TokenBits(np.arange(1, len(bits) + 1), on_grid(np.array(bits, dtype=np.float64)))


@pytest.mark.parametrize(
    ("longest", "edges"),
    [(0, [0, 0]), (1, [0, 1]), (8, [0, 8]), (9, [0, 8, 9]), (64, [0, 8, 16, 32, 64]), (65, [0, 8, 16, 32, 64, 65])],
)
def test_bins_double(longest: int, edges: list[int]) -> None:
    assert bins(longest).tolist() == edges


def test_every_token_counts_once_and_bins_add_up() -> None:
    draw = np.random.default_rng(5)
    texts = [text(draw.exponential(3.0, size).tolist()) for size in (0, 1, 8, 9, 31, 32, 33, 200, 1000)]
    found = by_position(texts, 64)
    assert sum(row["tokens"] for row in found["all"]) == sum(len(one.bits) for one in texts)
    assert sum(row["bits"] for row in found["all"]) == sum(float(one.bits.sum()) for one in texts)
    assert [(row["start"], row["end"]) for row in found["all"]][-1] == (512, 1000)
    assert [row["n"] for row in found["all"]][:3] == [8, 6, 5]
    for row in found["all"]:
        assert row["value"] == pytest.approx(row["bits"] / row["tokens"], abs=1e-6)


def test_the_curve_of_long_documents_compares_like_with_like() -> None:
    """Short documents have high cost and long ones low cost at every position: only the curve over all of them
    falls."""
    texts = [text([8.0] * 16) for _ in range(30)] + [text([2.0] * 128) for _ in range(30)]
    found = by_position(texts, 64)
    assert [row["value"] for row in found["all"]] == [5.0, 5.0, 2.0, 2.0, 2.0]
    assert [(row["start"], row["end"], row["value"], row["n"]) for row in found["long"]] == [
        (0, 8, 2.0, 30), (8, 16, 2.0, 30), (16, 32, 2.0, 30), (32, 64, 2.0, 30)
    ]  # fmt: skip


def test_nothing_is_drawn_where_nothing_fills_the_context() -> None:
    assert by_position([text([1.0] * 10)], 64)["long"] == []
    assert by_position([text([])], 64)["all"] == []
