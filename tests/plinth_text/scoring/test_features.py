"""Hashed words and pairs: the rows that a slow reference finds, and margins that are their means."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text import scoring
from plinth_text.unicode import utf8
from plinth_text.words import hash_words, scratch

BITS = 10
MASK = 2**64 - 1


def words_of(text: str) -> list[int]:
    data, offsets = utf8(pa.array([text], pa.large_string()))
    words = scratch(offsets)
    return [int(word) for word in words[: hash_words(data, offsets[0], offsets[1], words)]]


def reference(text: str, bits: int, most: int) -> list[int]:
    """The definition, in Python's integers."""
    words = words_of(text)[:most]
    pairs = [((one * 0xD6E8FEB86659FD93 + two) * 0x9E3779B97F4A7C15) & MASK for one, two in pairwise(words)]
    return [value >> (64 - bits) for value in (*words, *pairs)]


def table(labels: int) -> scoring.F32:
    return np.random.default_rng(5).normal(size=(1 << BITS, labels)).astype(np.float32)


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.text(max_size=60), max_size=6), st.integers(1, 12))
def test_rows_are_those_of_the_definition(texts: list[str], most: int) -> None:
    starts, rows = scoring.rows(pa.array(texts, pa.large_string()), BITS, most)
    for at, text in enumerate(texts):
        assert rows[starts[at] : starts[at + 1]].tolist() == reference(text, BITS, most)


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.text(max_size=80), min_size=1, max_size=5), st.sampled_from([1, 3]), st.sampled_from([0, 1, 4]))
def test_margins_are_the_largest_mean_of_a_stretch(texts: list[str], labels: int, window: int) -> None:
    weights, bias = table(labels), np.arange(labels, dtype=np.float32)
    found = scoring.margins(pa.array(texts, pa.large_string()), weights, bias, window)
    for at, text in enumerate(texts):
        words = words_of(text)
        size = window if window and len(words) > window else len(words)
        begins = [min(start, len(words) - size) for start in range(0, len(words), size)] if words else []
        stretches = []
        for begin in begins:
            own = words[begin : begin + size]
            pairs = [((one * 0xD6E8FEB86659FD93 + two) * 0x9E3779B97F4A7C15) & MASK for one, two in pairwise(own)]
            rows = [value >> (64 - BITS) for value in (*own, *pairs)]
            stretches.append(weights[rows].astype(np.float64).mean(axis=0) + bias)
        expected = np.max(stretches, axis=0) if stretches else bias
        np.testing.assert_allclose(found[at], expected, atol=1e-9)


def test_a_slice_of_a_column_scores_as_the_texts_alone() -> None:
    texts = ["one two three", "", "ünï cödé", "猫 cat", "one"]
    column = pa.array(texts, pa.large_string())
    whole = scoring.margins(column, table(2), np.zeros(2, np.float32))
    part = scoring.margins(column.slice(1, 3), table(2), np.zeros(2, np.float32))
    assert (part == whole[1:4]).all()
    assert (whole[1] == 0).all()  # the bias alone


def test_a_short_passage_of_a_long_text_is_not_averaged_away() -> None:
    weights = np.zeros((1 << 20, 1), np.float32)
    weights[scoring.rows(pa.array(["grumbok"], pa.large_string()), 20, 9)[1], 0] = 10.0
    text = pa.array(["word " * 2000 + "grumbok " + "word " * 2000], pa.large_string())
    zero = np.zeros(1, np.float32)
    assert scoring.margins(text, weights, zero)[0, 0] == pytest.approx(10 / 8001)
    assert scoring.margins(text, weights, zero, window=8)[0, 0] == pytest.approx(10 / 15)
