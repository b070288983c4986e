"""Facts about rows: compared with counting by hand, with any number of workers, and without padding."""

from __future__ import annotations

from collections import Counter
from math import log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.tokens.reading.compact_batch import DUPLICATE_N, TOP_N, CompactBatch, row_facts


def _by_hand(row: list[int]) -> list[float]:
    eights, fours = (Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1)) for n in (DUPLICATE_N, TOP_N))
    duplicate = (eights.total() - len(eights)) / eights.total() if eights else 0.0
    top = max(fours.values()) / fours.total() if fours else 0.0
    return [duplicate, top, -sum(n / len(row) * log2(n / len(row)) for n in Counter(row).values())]


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.lists(st.sampled_from([0, 1, 2, 60_000]), min_size=41, max_size=41), min_size=1, max_size=4))
def test_facts_are_those_counted_by_hand(dtype: str, rows: list[list[int]]) -> None:
    tokens = np.array(rows, dtype)
    facts = row_facts(CompactBatch.of(tokens))
    assert facts == pytest.approx(np.array(list(map(_by_hand, rows))), abs=1e-12)
    alone = [row_facts(CompactBatch.of(tokens[i : i + 1]))[0] for i in range(len(rows))]
    assert np.array_equal(facts, np.stack(alone))  # to the last bit, however a batch is divided


def test_known_rows() -> None:
    width = 64
    rows: list[Any] = [[7] * width, list(range(width)), [1, 2] * (width // 2)]
    found = row_facts(CompactBatch.of(np.array(rows, "<u2")))
    grams = width - DUPLICATE_N + 1
    assert found[0].tolist() == [(grams - 1) / grams, 1.0, 0.0]
    assert found[1].tolist() == [0.0, 1 / (width - TOP_N + 1), 6.0]
    assert found[2].tolist() == [(grams - 2) / grams, 31 / 61, 1.0]


def test_a_large_vocabulary_does_not_collide() -> None:
    """Every token and every n-gram of 4,096 different ones is distinct, also where only high bits differ."""
    tokens = (np.arange(4097, dtype=np.uint64) * 524_287 % 2**32).astype("<u4")[None]
    duplicate, top, entropy = row_facts(CompactBatch.of(tokens))[0]
    assert (duplicate, top) == (0.0, 1 / (4097 - TOP_N + 1))
    assert entropy == pytest.approx(log2(4097), abs=1e-12)


def test_padding_is_left_out_and_context_is_not() -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
    tokens = np.array([[*text, *[0] * 18], [*text, *text, 1, 2, 3], [0] * 33], "<u2")
    scored = np.ones((3, 32), np.bool_)
    scored[0, len(text) - 1 :] = False  # padding
    scored[1, 4] = False  # the context of a piece
    scored[2] = False  # nothing but padding behind an end-of-text
    facts = row_facts(CompactBatch.of(tokens, None, scored))
    assert facts[0] == pytest.approx(_by_hand(text), abs=1e-12)
    assert facts[1] == pytest.approx(_by_hand(tokens[1].tolist()), abs=1e-12)
    assert facts[2].tolist() == [0.0, 0.0, 0.0]
