"""Terms in texts: whole words and phrases, thin disguises, spans in code points."""

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.terms import MAX_WORDS, TermTable

TERMS = TermTable(["grumbok", "bad egg", "zill", "bad egg salad", "ünwort", "猫", "xox"])


def found(text: str, obfuscated: bool = True) -> list[tuple[str, str, bool]]:
    hits = TERMS.find(pa.array([text], pa.large_string()), obfuscated)
    assert hits.starts.tolist() == [0, len(hits.terms)]
    return [
        (TERMS.terms[term], text[first:last], bool(hidden))
        for term, (first, last), hidden in zip(hits.terms, hits.spans.tolist(), hits.obfuscated, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A grumbok, GRUMBOK! grumboks agrumbok", [("grumbok", "grumbok"), ("grumbok", "GRUMBOK")]),
        ("bad  egg and bad-egg", [("bad egg", "bad  egg"), ("bad egg", "bad-egg")]),
        ("a bad egg salad, egg bad", [("bad egg salad", "bad egg salad")]),
        ("Ein ÜNWORT, zwei Ünworte", [("ünwort", "ÜNWORT")]),
        ("die猫zill", [("猫", "猫"), ("zill", "zill")]),
        ("nothing at all", []),
        ("", []),
    ],
)
def test_whole_words_whatever_their_case(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == [(term, piece, False) for term, piece in expected]


@pytest.mark.parametrize(
    ("text", "term", "piece"),
    [
        ("you grumb0k!", "grumbok", "grumb0k"),
        ("you gRuMb@k", None, ""),  # an a where the term has an o
        ("zi11 it", "zill", "zi11"),
        ("z!ll", "zill", "z!ll"),
        ("so g.r.u.m.b.o.k.", "grumbok", "g.r.u.m.b.o.k"),
        ("x z i l l x", "zill", "z i l l"),
        ("x z-i-l-l", "zill", "z-i-l-l"),
        ("z-i l-l", None, ""),  # two kinds of marks
        ("grumboooook", "grumbok", "grumboooook"),
        ("grumbook", None, ""),  # twice is spelling
        ("grümbòk", "grumbok", "grümbòk"),
        ("gruмbоk", "grumbok", "gruмbоk"),  # Cyrillic letters among others
        ("ｇｒｕｍｂｏｋ", "grumbok", "ｇｒｕｍｂｏｋ"),
        ("grum\u200bbok", "grumbok", "grum\u200bbok"),
        ("x0x0x", None, ""),
        ("hydroz1llate", None, ""),  # whole words only
    ],
)
def test_thin_disguises(text: str, term: str | None, piece: str) -> None:
    assert found(text) == ([(term, piece, True)] if term else [])
    assert found(text, obfuscated=False) == []


def test_the_same_in_a_slice_of_a_column() -> None:
    column = pa.array(["zill", "", "a bad egg", None, "grumb0k zill"], pa.large_string())
    hits = TERMS.find(column.slice(1))
    assert hits.starts.tolist() == [0, 0, 1, 1, 3]
    assert hits.spans.tolist() == [[2, 9], [0, 7], [8, 12]]


@pytest.mark.parametrize("term", ["", " ... ", "word " * (MAX_WORDS + 1)])
def test_terms_that_cannot_be_sought(term: str) -> None:
    with pytest.raises(ValueError, match="words"):
        TermTable([term])


ALPHABET = "zil0.1! -_ZILäéаі猫\u200b\n"


@settings(deadline=None)  # the first example compiles
@given(st.text(alphabet=st.one_of(st.sampled_from(ALPHABET), st.characters(exclude_categories=["Cs"])), max_size=60))
def test_spans_lie_in_the_text_and_open_hits_are_words(text: str) -> None:
    hits = TERMS.find(pa.array([text], pa.large_string()))
    reached = 0
    for first, last in hits.spans.tolist():
        assert reached <= first < last <= len(text)
        reached = last
    clear = TERMS.find(pa.array([text], pa.large_string()), obfuscated=False)
    for term, (first, last) in zip(clear.terms, clear.spans.tolist(), strict=True):
        assert len(re.split(r"\W+", text[first:last])) == len(TERMS.terms[term].split())


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.sampled_from(["zill", "grumbok", "other", "Zill", "egg", "bad", "x"]), max_size=12))
def test_open_hits_are_those_of_a_slow_search(words: list[str]) -> None:
    """Longest phrase first, from left to right."""
    text, lowered, at, expected = " ".join(words), [word.lower() for word in words], 0, []
    while at < len(words):
        if lowered[at : at + 2] == ["bad", "egg"]:
            expected.append("bad egg")
            at += 1
        elif lowered[at] in ("zill", "grumbok"):
            expected.append(lowered[at])
        at += 1
    assert [term for term, _, _ in found(text, obfuscated=False)] == expected


def test_many_hits_in_one_text() -> None:
    assert len(found("zill grumb0k " * 500)) == 1000
