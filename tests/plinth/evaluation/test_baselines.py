"""gzip and the byte trigram: hand-worked answers, a proper distribution, a plain second opinion."""

import gzip
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.evaluation.slices.tables import BLOCK, Trigram, gzip_bits


def slow_probability(documents: list[bytes], context: tuple[int, int], byte: int) -> float:
    """The definition, by counting."""
    grams: list[Counter[tuple[int, ...]]] = [Counter(), Counter(), Counter()]
    for data in documents:
        padded = b"\0\0" + data
        for i in range(2, len(padded)):
            for order in range(3):
                grams[order][tuple(padded[i - order : i + 1])] += 1
    p = 1 / 256
    for order, history in enumerate([(), context[1:], context]):
        following = {gram: n for gram, n in grams[order].items() if gram[:-1] == history}
        if following:
            p = (following.get((*history, byte), 0) + len(following) * p) / (sum(following.values()) + len(following))
    return p


def test_untrained_is_uniform() -> None:
    assert Trigram().bits(b"\x00abc\xff") == 40.0


def test_one_byte_by_hand() -> None:
    # Trained on "a": in every order one count, one kind. p1 = (1 + 1/256) / 2, p2 = (1 + p1) / 2, p3 = (1 + p2) / 2.
    p = (1 + (1 + (1 + 1 / 256) / 2) / 2) / 2
    assert Trigram().train([b"a"]).bits(b"a") == pytest.approx(-math.log2(p), rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=4), st.binary(max_size=8))
def test_agrees_with_the_definition(documents: list[bytes], data: bytes) -> None:
    padded = b"\0\0" + data
    expected = sum(
        -math.log2(slow_probability(documents, (padded[i - 2], padded[i - 1]), padded[i]))
        for i in range(2, len(padded))
    )
    assert Trigram().train(documents).bits(data) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("before", [b"", b"t", b"th", b"zq", b"\xff\x00"])
def test_probabilities_of_the_next_byte_sum_to_one(before: bytes) -> None:
    model = Trigram().train([b"the theatre", b"then they thought"])
    start = model.bits(before)
    assert sum(2 ** (start - model.bits(before + bytes([byte]))) for byte in range(256)) == pytest.approx(1.0)


def test_learns_and_counts_bytes() -> None:
    model = Trigram().train([b"the cat sat on the mat. " * 50])
    assert model.trained_bytes == 24 * 50
    assert model.bits(b"the mat sat") < model.bits(b"xqz jkv wpf") / 2
    before = model.bits(b"xqz")
    assert model.train([b"xqz"]).bits(b"xqz") < before


def test_documents_beyond_one_block_are_counted_each_from_its_start() -> None:
    documents = [b"ab", b"", b"bc\0"] * BLOCK
    expected = sum(-math.log2(slow_probability(documents, *gram)) for gram in [((0, 0), 98), ((0, 98), 99)])
    model = Trigram().train(iter(documents))
    assert model.bits(b"bc") == pytest.approx(expected, rel=1e-9)
    assert model.trained_bytes == 5 * BLOCK


def test_gzip_counts_the_whole_file() -> None:
    data = b"abc" * 100
    assert gzip_bits(data) == 8 * len(gzip.compress(data, 9, mtime=0))
    assert gzip_bits(b"") == 160
