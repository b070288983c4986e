import re
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.rules import gopher


def duplicates(pieces: list[str]) -> tuple[int, int]:
    again = [piece for i, piece in enumerate(pieces) if piece in pieces[:i]]
    return len(again), sum(map(len, again))


def top(words: list[str], n: int) -> int:
    grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
    return max((len(gram) * count for gram, count in grams.most_common(1)), default=0)


def repeated(words: list[str], n: int) -> int:
    before, characters, i = set(), 0, 0
    while i + n <= len(words):
        gram = "".join(words[i : i + n])
        characters += len(gram) if gram in before else 0
        i += n if gram in before else 1
        before.add(gram)
    return characters


def shares(text: str) -> list[float]:
    """Plain Python, as datatrove's filter has it."""
    if not text:
        return [0.0] * len(gopher.REPETITION_COLUMNS)
    size, words = len(text), text.split()
    lines, paragraphs = re.split(r"\n+", text), re.split(r"\n{2,}", text.strip())
    copies, characters = duplicates(lines)
    paragraph_copies, paragraph_characters = duplicates(paragraphs)
    return [
        copies / len(lines),
        characters / size,
        paragraph_copies / len(paragraphs),
        paragraph_characters / size,
        *(top(words, n) / size for n in range(2, 5)),
        *(repeated(words, n) / size for n in range(5, 11)),
    ]


def found(texts: list[str]) -> list[list[float]]:
    return np.asarray(gopher.repetition_shares(pa.array(texts, pa.large_string()))).tolist()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_shares_are_those_of_plain_python(any_texts: st.SearchStrategy[list[str]], data: st.DataObject) -> None:
    texts = data.draw(any_texts)
    assert found(texts) == [shares(text) for text in texts]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "aa", "ab", "ü"]), max_size=80))
def test_n_grams_of_few_words_repeat_as_in_plain_python(words: list[str]) -> None:
    text = " ".join(words)
    assert found([text]) == [shares(text)]


def test_shares_by_hand() -> None:
    text = "one two\nthree\none two\n\none two\n"
    # lines: one two, three, one two, one two, and the empty one after the last line end; 31 characters
    row = dict(zip(gopher.REPETITION_COLUMNS, found([text])[0], strict=True))
    assert row["duplicate_lines"] == 2 / 5
    assert row["duplicate_line_characters"] == 14 / 31
    assert row["duplicate_paragraphs"] == 0
    assert row["top_2_gram"] == 3 * 7 / 31
    assert row["top_3_gram"] == len("one two three") / 31  # a top n-gram counts even when it comes once
    assert row["duplicate_5_grams"] == 0


def test_a_repeated_n_gram_is_skipped_whole() -> None:
    row = dict(zip(gopher.REPETITION_COLUMNS, found(["a b c d e " * 3])[0], strict=True))
    assert row["duplicate_5_grams"] == 10 / 30
    assert row["duplicate_10_grams"] == 10 / 30  # the one from the sixth word on equals the first


def test_equality_is_of_words_without_their_spaces_beyond_four() -> None:
    row = dict(zip(gopher.REPETITION_COLUMNS, found(["aa a a a a . a aa a a a"])[0], strict=True))
    assert row["duplicate_5_grams"] == 6 / 23


def test_texts_do_not_see_each_other() -> None:
    texts = ["same line\nother", "same line\nother", "", "same line\nother " * 40]
    assert found(texts) == [found([text])[0] for text in texts]
    assert found(texts)[0][0] == 0


def test_extremes_fit_the_tables() -> None:
    texts = ["\n" * 1000, "a\n" * 1000, "a " * 1000, "x" * 1000, "\n\na" * 300]
    assert found(texts) == [shares(text) for text in texts]
