"""Whole sentences of a span."""

from __future__ import annotations

import pytest

from plinth.text import sentences


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("One. [Two. Three.] Four.", "Two. Three."),
        ("One. T[wo. Three. Fo]ur.", "Three. "),
        ("One. T[wo and thr]ee.", "wo and thr"),
        ("He said: “T[wo.” Three. Fo]ur.", "Three. "),
        ("[One. Two. Thr]ee.", "One. Two. "),
        ("One\n[two\nthr]ee", "two\n"),
        ("一。二[三。四。五]六。", "四。"),
        (f"One {'two ' * 100}[{'three ' * 100}. Four. {'five ' * 100}] six.", None),
        ("O[ne. T]wo", ""),
    ],
)
def test_the_whole_sentences_of_a_span(text: str, kept: str | None) -> None:
    start, end = text.index("["), text.index("]") - 1
    plain = text.replace("[", "").replace("]", "")
    low, high = sentences(plain, start, end)
    assert start <= low <= high <= end
    assert plain[low:high] == (plain[start:end] if kept is None else kept)
