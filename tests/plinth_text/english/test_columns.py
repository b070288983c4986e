"""The words of a column: those of each text, split once for all annotators that are given the same column."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.corpus.annotate.base import annotator
from plinth_text import english, shared
from plinth_text.rules import c4
from plinth_text.unicode import utf8
from tests.plinth_text.english_text import words

TEXT = st.text(st.sampled_from("aB.,:;()'$5 \n\u00a0é、"), max_size=30)
ONE, OTHER = ["Don't stop.", "", "It's 5pm: (foo):"], ["Don't stop!", "", "It's 5pm: (bar):"]


def split(texts: pa.Array) -> list[list[str]]:
    made, found = english.column_words(*utf8(texts)), []
    for number, text in enumerate(texts.to_pylist()):
        data, edges = text.encode(), made.edges[2 * made.first[number] : 2 * made.first[number + 1]].tolist()
        found.append([data[low:high].decode() for low, high in zip(edges[::2], edges[1::2], strict=True)])
    return found


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXT, max_size=6), skip=st.integers(0, 3))
def test_the_words_of_each_text(texts: list[str], skip: int) -> None:
    column = pa.array(texts, pa.large_string())[skip:]
    assert split(column) == [words(text) for text in texts[skip:]]


def test_words_of_the_last_column_are_kept_and_never_those_of_another() -> None:
    one, other = (pa.array(texts, pa.large_string()) for texts in (ONE, OTHER))
    first = english.column_words(*utf8(one))
    assert english.column_words(*utf8(one)) is first
    assert split(one[1:]) == [words(text) for text in ONE[1:]]
    assert split(one[:2]) == [words(text) for text in ONE[:2]]
    assert split(other) == [words(text) for text in OTHER]
    assert english.column_words(*utf8(one)) is not first
    shared.forget()
    assert shared._last.column is None
    assert not shared._last.results


def test_annotators_of_one_pass_split_a_column_and_apply_the_rules_of_c4_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, split_all, count_pages = [], english.split_all, c4.count_pages
    monkeypatch.setattr(english, "split_all", lambda *given: (calls.append("words"), split_all(*given)))
    monkeypatch.setattr(c4, "count_pages", lambda *given: (calls.append("lines"), count_pages(*given)))
    batch = pa.record_batch({"text": pa.array([*ONE, "One [3]. Two three four.\nFive?"], pa.large_string())})
    shared.forget()
    for name, params in {
        "gopher_quality": {}, "gopher_repetition": {}, "fineweb": {"after_c4": True},
        "c4": {"terminal_punctuation": False},
    }.items():  # fmt: skip
        annotator(name).annotate(batch, annotator(name).params(**params))
    assert calls == ["words", "lines"]
