"""Boundaries: what is fixed, and above all what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.documents.normalize import fix_boundaries, normalize
from plinth.corpus.sources.parameters import Normalisation, Source

PLAIN = Normalisation()
TERMS = {"train": True, "redistribute": True, "commercial": True}
FACTS = {"path": ".", "licence": "MIT", "terms": TERMS, "domain": "d", "snapshot": "s"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the quick brown\ffox jumps", "the quick brown fox jumps"),
        ("the quick brown\n\n12\n\f\n\nfox jumps", "the quick brown fox jumps"),
        ("the quick brown\n\f\n- 13 -\n\nfox jumps", "the quick brown fox jumps"),
        ("The end.\fA new page", "The end.\n\nA new page"),
        ("An example. An exam-\nple is", "An example. An example is"),
        ("It is well-known, well-\nknown indeed", "It is well-known, well-known indeed"),
        ("An example of an exam-\fple", "An example of an example"),
        ("The sentence ended.The next began", "The sentence ended. The next began"),
        ("Is it done?It is. He came!They left.", "Is it done? It is. He came! They left."),
    ],
)
def test_what_is_mended(text: str, expected: str) -> None:
    assert normalize(text, PLAIN, repair_boundaries=True) == expected
    assert normalize(expected, PLAIN, repair_boundaries=True) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a well-\nknown man",  # neither spelling is in the text: undecidable
        "pre-\n1945 and post-\nWar",
        "x = total-\nother; total other totalother",
        "    for item-\nitems in itemitems",
        "see https://example.com/page.The and www.site.In here",
        "the method `ended.The next` and 'node.The other'",
        "object.That.is a chain",
        "System.out.It works",
        "version 3.14.The next",
        "e.g.This is short, i.e.That too",
        "Ph.D.The degree",
        "U.S.The country",
        "return self.The value;",
        "print(done.The next)",
        "if (x) { ended.The next }",
        "1,000.50 and 3.5.The",
        "asp.Net and node.Js are names",
        "- item one\n- item two",
        "ends with a dash -\nand goes on",
        "it costs 5-\n10 euros",
        "WELL-\nKNOWN wellknown",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert normalize(text, PLAIN, repair_boundaries=True) == text


def test_nothing_is_mended_unasked() -> None:
    text = "An example. An exam-\nple ended.The next"
    assert normalize(text, PLAIN) == text
    assert normalize("brown\ffox", PLAIN) == "brown\nfox"


def test_code_cannot_ask_for_it() -> None:
    assert Source.model_validate({"kind": "text", "repair_boundaries": True, **FACTS}).repair_boundaries
    with pytest.raises(ValueError, match="would damage source code"):
        Source.model_validate({"kind": "tree", "repair_boundaries": True, **FACTS})


@given(st.lists(st.sampled_from(["ab", "The", "-", "\n", "\f", " ", ".", "12", "abab", "x=1;", "é"])).map("".join))
def test_mending_twice_is_mending_once_through_the_normal_form(text: str) -> None:
    once = normalize(text, PLAIN, repair_boundaries=True)
    assert normalize(once, PLAIN, repair_boundaries=True) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\f" * 10**5, ""),
        ("x" + "\f1\n" * 10**5 + "y", "x y"),
        (" \n" * 10**5 + "x", " \n" * 10**5 + "x"),
        ("- " * 10**5 + "\fx", "- " * 10**5 + "\nx"),
        ("a-\n" * 10**5, "a-\n" * 10**5),
        ("a" * 10**6, "a" * 10**6),
        ("a.The" * 10**5, "a.The" * 10**5),
    ],
)
def test_no_text_takes_quadratic_time(text: str, expected: str) -> None:
    assert fix_boundaries(text) == expected
