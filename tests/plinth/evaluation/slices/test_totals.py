"""Totals by slice: exact sums however text is cut into slices, ratios of sums, the documents that cost most."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.evaluation.slices import job, tables

Scored = Callable[[list[dict[str, Any]]], pa.Table]
COUNTED = ("bytes", "documents", "tokens", "bits")


def many(rows: int) -> list[dict[str, Any]]:
    """Return documents whose bits are not short binary fractions, with labels on every axis."""
    draw = random.Random(7)
    return [
        {
            "bucket": draw.choice(["web", "code", "prose"]),
            "language": draw.choice(["en", "de", "unknown"]),
            "domain": f"{int(draw.paretovariate(0.8))}.example",
            "length": draw.choice(["< 1 KiB", "64 KiB and more"]),
            "slice_own": draw.choice(["yes", "no"]),
            "bytes": draw.randrange(1, 100_000),
            "model_bits": draw.uniform(0.001, 3e5),
            "tokens": draw.randrange(1, 30_000),
        }
        for _ in range(rows)
    ]


def test_the_slices_of_every_axis_add_up_to_the_whole_to_the_last_bit(scored: Scored) -> None:
    table = scored(many(400))
    whole, axes = job.row(table), job.axis_totals(table)
    assert set(axes) == {"bucket", "language", "domain", "length", "own"}
    assert len(set(table["domain"].to_pylist())) > job.MOST_SLICES == len(axes["domain"])
    exact = sum(Fraction(bits) for bits in table["model_bits"].to_pylist())
    assert Fraction(whole["bits"]) == exact
    for slices in axes.values():
        for name in COUNTED:
            assert sum(row[name] for row in slices.values()) == whole[name]  # floats: equal, not close
    naive = sum(row["model_bits"] for row in many(400))
    assert naive != whole["bits"]  # bits that are off the grid do not add up so


def test_any_order_of_documents_gives_the_same_statistics(scored: Scored) -> None:
    named = [(number.to_bytes(16, "big"), f"file:///{number}") for number in range(60)]
    rows = [{**row, "id": id_, "uri": uri} for row, (id_, uri) in zip(many(60), named, strict=True)]
    one, other = scored(rows), scored(random.Random(1).sample(rows, len(rows)))
    for axis, slices in job.axis_totals(one).items():
        for name, row in job.axis_totals(other)[axis].items():
            assert [row[key] for key in (*COUNTED, "model")] == [slices[name][key] for key in (*COUNTED, "model")]
    assert job.worst(one) == job.worst(other)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1e5), max_size=30), st.randoms(use_true_random=False))
def test_sums_on_the_grid_are_exact_in_any_order(bits: list[float], draw: random.Random) -> None:
    values = tables.on_grid(np.array(bits, dtype=np.float64))
    assert np.all(np.abs(values - bits) <= tables.GRID / 2)
    mixed = draw.sample(values.tolist(), len(bits))
    assert sum(mixed) == job.exact_sum(values) == float(sum(map(Fraction, mixed)))


def test_bits_per_byte_are_the_ratio_of_sums(scored: Scored) -> None:
    """One long document of 2 bits a byte, one short of 6: together 2.04, where a mean of ratios would say 4."""
    found = job.row(scored([{"bytes": 990, "model_bits": 1980.0}, {"bytes": 10, "model_bits": 60.0}]))
    assert (found["model"], found["bits"], found["bytes"]) == (2.04, 2040.0, 1000)
    assert (found["gzip"], found["trigram"], found["n"]) == (0.6, 0.5, 2)
    assert found["perplexity"] == round(2 ** (2040 / 50), 4)
    assert found["flags"] == ["few_clusters"]


def test_intervals_hold_the_value_and_narrow_with_documents(scored: Scored) -> None:
    draw = random.Random(3)
    rows = [{"bytes": 1000, "model_bits": draw.gauss(2000, 400)} for _ in range(400)]
    few, all_ = job.row(scored(rows[:40])), job.row(scored(rows))
    for found in (few, all_):
        assert found["low"] < found["model"] < found["high"]
        assert found["seed"] == job.SEED
        assert "bootstrap" in found["method"]
    assert (few["high"] - few["low"]) / (all_["high"] - all_["low"]) == pytest.approx(10**0.5, rel=0.35)
    same = job.row(scored([{}] * 3))
    assert (same["low"], same["high"]) == (same["model"], same["model"])
    assert "degenerate" in same["flags"]
    assert (job.interval(same), job.interval(few)) == ("none", f"{few['low']:.4f} to {few['high']:.4f}")


def test_baselines_are_compared_on_the_same_documents(scored: Scored) -> None:
    """Documents differ far more than model and baseline do on each of them: only a pairing sees the difference."""
    draw = random.Random(4)
    rows = [{"bytes": 1000, "model_bits": bits, "trigram_bits": bits + draw.gauss(40, 10), "gzip_bits": bits}
            for bits in (float(draw.randrange(500, 6000)) for _ in range(80))]  # fmt: skip
    found = job.row(scored(rows), paired=True)
    trigram, gzip = found["above"]["trigram"], found["above"]["gzip"]
    assert -0.045 < trigram["low"] < trigram["value"] < trigram["high"] < -0.035
    assert found["low"] < found["trigram"] < found["high"]
    assert trigram["value"] == pytest.approx(found["model"] - found["trigram"], abs=2e-6)
    assert (trigram["p"] < 0.001, gzip["value"], gzip["p"]) == (True, 0.0, 1.0)


def test_worst_documents_are_those_above_the_rate_of_their_bucket(scored: Scored) -> None:
    rows = [{"bucket": "web", "bytes": 1000, "model_bits": bits} for bits in (2000.0, 2000.0, 2000.0, 4000.0)]
    rows += [{"bucket": "code", "bytes": 1000, "model_bits": 7000.0}] * 2  # no more expensive than its bucket
    found = job.worst(scored(rows))
    assert [(row["id"], row["model"], row["excess_bits"]) for row in found] == [(f"{3:032x}", 4.0, 1500.0)]
    assert job.worst(scored(rows[:3])) == []


def test_lengths_are_shown_from_short_to_long_others_by_their_text() -> None:
    rows = {name: {"bytes": size} for name, size in (("64 KiB and more", 9), ("< 1 KiB", 1), ("1 to 4 KiB", 5))}
    assert job.in_order("length", rows) == ["< 1 KiB", "1 to 4 KiB", "64 KiB and more"]
    others = {"b": {"bytes": 1}, job.OTHERS: {"bytes": 99}, "a": {"bytes": 5}}
    assert job.in_order("domain", others) == ["a", "b", job.OTHERS]
