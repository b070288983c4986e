"""Windows, anchors and places of words agree with slow, obvious Python."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.similarity import window_keys, windows, word_positions
from plinth_text.words import ngram_hashes

#: No deadline: the first example of a test may compile a kernel.
wordy = st.lists(st.sampled_from(["a", "b", "C", "ünï", "日", "x1"]), max_size=40).map(" ".join)
unicode = st.text(st.sampled_from("aBé Σ_-.,\t\n日本ก😀\u0301ß\u2028"), max_size=50) | st.text(max_size=40)


def column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def words_of(text: str) -> list[str]:
    found = word_positions(text)
    return [found.passage(i, 1).decode()[:-1] for i in range(found.start_cp.size)]


@settings(deadline=None)
@given(unicode)
def test_places_are_on_the_characters(text: str) -> None:
    found = word_positions(text)
    assert found.start_cp.size == ngram_hashes(column([text]), 1)[0][1]
    previous = 0
    for i, word in enumerate(words_of(text)):
        start, end = int(found.start_cp[i]), int(found.end_cp[i])
        assert previous <= start < end
        assert [text[start:end].encode().decode().lower()] == [word] or not word.isascii()
        assert len(text[:start].encode()) == found.start_byte[i]
        assert len(text[:end].encode()) == found.end_byte[i]
        previous = end


@settings(deadline=None)
@given(unicode)
def test_folded_words_are_equal_where_their_hashes_are(text: str) -> None:
    _, hashes = ngram_hashes(column([text]), 1)
    words = words_of(text)
    assert len(set(zip(words, hashes.tolist(), strict=True))) == len(set(words)) == len(set(hashes.tolist()))


def test_ascii_words_are_those_of_a_pattern() -> None:
    text = "The quick-brown fox_2's  “jumped”, (twice)!\n\nEnd."
    assert words_of(text) == [word.lower() for word in re.findall(r"[A-Za-z0-9_]+", text)]
    assert word_positions(text).passage(1, 2) == b"quick brown "


@settings(deadline=None)
@given(st.lists(wordy, max_size=4), st.integers(2, 7))
def test_equal_windows_have_equal_keys_and_anchors(texts: list[str], n: int) -> None:
    found = windows(column(texts), n)
    every = np.ones(found.anchors.size, dtype=np.bool_)
    high, low = window_keys(found, n, every)
    listed = []
    for doc, text in enumerate(texts):
        words = words_of(text)
        count = max(0, len(words) - n + 1)
        assert found.starts[doc + 1] - found.starts[doc] == count
        listed += [tuple(words[i : i + n]) for i in range(count)]
    for keys in (high.tolist(), low.tolist()):
        assert len(set(zip(listed, keys, strict=True))) == len(set(listed)) == len(set(keys))
    assert len(set(zip(listed, found.anchors.tolist(), strict=True))) == len(set(listed))


@settings(deadline=None)
@given(st.lists(wordy, max_size=3), st.integers(2, 7), st.data())
def test_keys_of_some_windows_are_those_of_all(texts: list[str], n: int, data: st.DataObject) -> None:
    found = windows(column(texts), n)
    count = found.anchors.size
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
    for some, every in zip(window_keys(found, n, wanted), window_keys(found, n, wanted | True), strict=True):
        assert some.tolist() == every[wanted].tolist()


@settings(deadline=None)
@given(wordy, st.integers(2, 7))
def test_two_windows_of_the_same_words_have_two_anchors_to_count(text: str, n: int) -> None:
    found = windows(column([text]), n)
    words = words_of(text)
    anchor_of = np.cumsum(found.fresh) - 1
    for i in range(found.anchors.size):
        for j in range(i + 1, found.anchors.size):
            if words[i : i + n] == words[j : j + n]:
                assert anchor_of[i] != anchor_of[j]
                assert found.anchors[i] == found.anchors[j]


@pytest.mark.parametrize("texts", [[], [""], ["one two"], [" ", "\n"]])
def test_texts_without_windows(texts: list[str]) -> None:
    found = windows(column(texts), 3)
    assert found.anchors.size == 0
    assert found.starts.tolist() == [0] * (len(texts) + 1)
