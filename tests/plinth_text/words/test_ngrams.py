"""Words and n-grams: hand-worked splits, a slow reference in Python, hostile bytes."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.words import BLOCK, WIDE, jaccard, ngram_hashes, ngram_sets

MASK = 2**64 - 1


def mixed(value: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = ((value ^ (value >> 33)) * factor) & MASK
    return value ^ (value >> 33)


def word_hash(word: str) -> int:
    state = 0
    for letter in word:
        state = ((state ^ ord(letter)) * 0x9FB21C651E98DF25) & MASK
    return mixed(state)


def gram_hash(words: list[str]) -> int:
    state = word_hash(words[0])
    for word in words[1:]:
        state = (state * 0xD6E8FEB86659FD93 + word_hash(word)) & MASK
    return mixed(state)


def expected(words: list[str], n: int) -> list[int]:
    if not words:
        return []
    n = min(n, len(words))
    return [gram_hash(words[i : i + n]) for i in range(len(words) - n + 1)]


def hashes(texts: list[str], n: int) -> list[list[int]]:
    starts, values = ngram_hashes(pa.array(texts, pa.large_string()), n)
    return [values[starts[i] : starts[i + 1]].tolist() for i in range(len(texts))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat's HAT, re-done!", ["the", "cat", "s", "hat", "re", "done"]),
        ("snake_case x1 0xFF", ["snake_case", "x1", "0xff"]),
        ("", []),
        (" \t\n.,;—“”…\u00a0\u2028", []),
        ("Été ΣΑΣ Привет", ["été", "σασ", "привет"]),
        ("naïve—“quoted”…", ["naïve", "quoted"]),
        ("我爱 NY。ok", ["我", "爱", "ny", "ok"]),
        ("ดี a😀b", ["ด", "ี", "a", "😀", "b"]),
        ("a\x00b", ["a", "b"]),
        ("İx ẞ", ["İx", "ẞ"]),
    ],
)
def test_words_hand_worked(text: str, words: list[str]) -> None:
    assert hashes([text], 1) == [[gram_hash([word]) for word in words]]


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab Z_9.,\n"), max_size=6), st.integers(1, 6))
def test_ascii_agrees_with_a_regular_expression(texts: list[str], n: int) -> None:
    assert hashes(texts, n) == [expected(re.findall(r"[0-9a-z_]+", text.lower()), n) for text in texts]


_WORDS = st.text(alphabet="abMZ_09é", min_size=1, max_size=27)
_BETWEEN = st.text(alphabet=" .,@[`{/:^\n\x7f—", min_size=1, max_size=9)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(_WORDS, _BETWEEN), min_size=1, max_size=40), st.integers(0, 4200), st.integers(1, 40))
def test_long_runs_agree_with_the_words_they_are_made_of(
    pairs: list[tuple[str, str]], longest: int, times: int
) -> None:
    # words of up to 27 characters and one as long as a block, moved over the ends of blocks and of eights
    words = [word for word, _ in pairs] * times + ["x" * longest] * (longest > 0) + [word for word, _ in pairs]
    between = [space for _, space in pairs] * times + [" "] * (longest > 0) + [space for _, space in pairs]
    text = "".join(word + space for word, space in zip(words, between, strict=True))
    assert hashes([text, text[:-1]], 1) == [[gram_hash([word.lower()]) for word in words]] * 2


@pytest.mark.parametrize("alphabet", ["a", "a ", "ab7_Z.- \n"])
def test_runs_of_every_length_around_a_block(alphabet: str) -> None:
    sizes = [*range(WIDE - 9, WIDE + 9), *range(BLOCK - 9, BLOCK + 9), *range(2 * BLOCK - 2, 2 * BLOCK + 2)]
    texts = [(alphabet * size)[:size] for size in sizes]
    assert hashes(texts, 1) == [expected(re.findall(r"[0-9a-z_]+", text.lower()), 1) for text in texts]


def test_a_text_shorter_than_n_is_one_ngram_of_all_its_words() -> None:
    short, same, other = hashes(["one two", "One, two!", "two one"], 5)
    assert short == same == [gram_hash(["one", "two"])]
    assert short != other


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5), st.integers(1, 5))
def test_invalid_utf8_reads_no_byte_of_its_neighbour(blobs: list[bytes], n: int) -> None:
    def column(values: list[bytes]) -> pa.Array:
        offsets = np.cumsum([0, *(len(value) for value in values)], dtype=np.int64)
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(values) or b"\0")]
        return pa.Array.from_buffers(pa.large_string(), len(values), buffers)

    starts, together = ngram_hashes(column(blobs), n)
    for i, blob in enumerate(blobs):
        alone = ngram_hashes(column([blob]), n)[1]
        assert together[starts[i] : starts[i + 1]].tolist() == alone.tolist()


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_slices_and_nulls(texts: list[str], start: int, length: int) -> None:
    column = pa.array([*texts, None], pa.large_string())
    piece = column.slice(start, length)
    starts, values = ngram_hashes(piece, 2)
    whole = hashes([text or "" for text in piece.to_pylist()], 2)
    assert [values[starts[i] : starts[i + 1]].tolist() for i in range(len(piece))] == whole


def test_jaccard_hand_worked() -> None:
    a, b, c, empty = ngram_sets(pa.array(["a b c d a b", "a b c e", "x y", ""], pa.large_string()), 2)
    assert a.size == 4  # ab bc cd da, once each
    assert jaccard(a, b) == 2 / 5
    assert jaccard(a, a) == 1.0
    assert jaccard(a, c) == 0.0
    assert jaccard(empty, empty) == 0.0
