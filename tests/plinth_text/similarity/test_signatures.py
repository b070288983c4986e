"""Signatures against a slow reference; estimates and recall against theory."""

import random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text import similarity
from plinth_text.words import jaccard, ngram_sets

MASK = 2**64 - 1
FIXED = ["0x69945dea82460da", "0xf2b5717db02809ea", "0x4604208f575a097a", "0x9b2af0a33458f9d3"]


def column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def reference(text: str, n: int, a: np.ndarray, b: np.ndarray) -> list[int]:
    grams = ngram_sets(column([text]), n)[0].tolist()
    return [
        min(((factor * (gram >> 32) + term) & MASK) >> 32 for gram in grams)
        for factor, term in zip(a.tolist(), b.tolist(), strict=True)
    ]


@settings(deadline=None)
@given(st.lists(st.text(alphabet="abc Ж.", max_size=60), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 25))
def test_signatures_agree_with_the_definition(texts: list[str], n: int, count: int) -> None:
    a, b = similarity.permutations(count, 7)
    signed, filled = similarity.signatures(column(texts), n, a, b)
    for i, text in enumerate(texts):
        if filled[i]:
            assert signed[i].tolist() == reference(text, n, a, b)
        else:
            assert ngram_sets(column([text]), n)[0].size == 0
            assert set(signed[i].tolist()) == {2**32 - 1}


def test_a_document_longer_than_a_block() -> None:
    text = " ".join(str(i % 7001) for i in range(9001))
    a, b = similarity.permutations(4, 1)
    assert similarity.signatures(column([text]), 5, a, b)[0][0].tolist() == reference(text, 5, a, b)


def test_permutations_are_fixed_for_ever() -> None:
    a, b = similarity.permutations(2, 1)
    assert [hex(value) for value in (*a.tolist(), *b.tolist())] == FIXED
    assert similarity.permutations(3, 2)[0].tolist() != similarity.permutations(3, 1)[0].tolist()


def pair(picks: random.Random, words: int, changed: int) -> tuple[str, str]:
    """Two texts of distinct words that differ in `changed` words spread evenly: every change breaks n shingles."""
    left = [f"w{picks.randrange(10**9)}" for _ in range(words)]
    right = list(left)
    for i in range(changed):
        right[(i * words) // changed + words // (2 * changed)] = f"x{picks.randrange(10**9)}"
    return " ".join(left), " ".join(right)


def test_estimate_and_recall_of_planted_pairs_follow_theory() -> None:
    picks, bands, rows, pairs = random.Random(5), 14, 8, 400
    a, b = similarity.permutations(bands * rows, 1)
    for changed in (3, 6, 9, 14):
        texts = [text for _ in range(pairs) for text in pair(picks, 300, changed)]
        sets = ngram_sets(column(texts), 5)
        true = jaccard(sets[0], sets[1])
        shingles, broken = 296, 5 * changed
        assert true == (shingles - broken) / (shingles + broken)
        signed, _ = similarity.signatures(column(texts), 5, a, b)
        agreement = (signed[0::2] == signed[1::2]).mean()
        assert abs(agreement - true) < 4 * (true * (1 - true) / (pairs * bands * rows)) ** 0.5 + 0.01
        keys = similarity.band_keys(signed, bands, rows)
        found = (keys[0::2] == keys[1::2]).any(axis=1).mean()
        theory = similarity.recall(true, bands, rows)
        assert abs(found - theory) < 4 * (theory * (1 - theory) / pairs) ** 0.5 + 0.02


def test_recall_at_the_published_shape() -> None:
    assert round(similarity.recall(0.8, 14, 8), 3) == 0.924  # FineWeb's figure


def test_keys_of_different_bands_never_mean_the_same() -> None:
    signed = np.zeros((1, 6), dtype=np.uint32)
    assert len(set(similarity.band_keys(signed, 3, 2)[0].tolist())) == 3
    swapped = np.array([[1, 2, 2, 1]], dtype=np.uint32)
    first, second = similarity.band_keys(swapped, 2, 2)[0].tolist()
    assert first != second
