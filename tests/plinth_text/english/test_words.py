"""Compare words and sentences with spaCy's blank English pipeline as datatrove calls it, and check some by hand."""

import importlib.util
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.english import source
from tests.agreement.profiles import real_documents
from tests.plinth_text.english_text import sentence_count, words

spacy = pytest.mark.skipif(
    importlib.util.find_spec("spacy") is None or importlib.util.find_spec("datatrove") is None,
    reason="peers of the benchmarks",
)
#: Strings on which the rules depend: affixes, units, parts of URLs, exceptions, white space.
PIECES = [
    *"aAbBzs.t09.,;:'\"-–—…~/@?#()[]{}<>=+*^$%°£ \n\t\x85\u00a0é你、。।²µUS_|\\&!∞😀",
    *("http://", "www.", ".com", "10.2", "..", "US$", "'s", "’s", "n't", "km", "...", "can't", "a.m.", ":)", "):"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop, we cannot.", "Do|n't|stop|,|we|can|not|."),
        ("He paid US$5.20 (approx.) at 5pm in Rome, D.C.", "He|paid|US$|5.20|(|approx|.|)|at|5|pm|in|Rome|,|D.C."),
        ("well-known: https://example.com/a?b=1, x@y.org.", "well|-|known|:|https://example.com/a?b=1|,|x@y.org|."),
        ("def f():  \n\treturn a.b", "def|f|(|):|return|a.b"),
        ("", ""),
        (" \n ", ""),
    ],
)  # fmt: skip
def test_words_by_hand(text: str, expected: str) -> None:
    assert words(text) == [word for word in expected.split("|") if word]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("One. Two! Three?", 3), ("Mr. Smith and Dr. No met.", 1), ("And so on... It goes.", 1), ("No end", 1), ("", 1),
     ('He said "no." Then he left.', 2), ("Version 4.5 of it.", 1)],
)  # fmt: skip
def test_sentences_by_hand(text: str, expected: int) -> None:
    assert sentence_count(text) == expected


@pytest.mark.exhaustive
@spacy
def test_the_data_is_that_of_the_installed_spacy() -> None:
    from tests.agreement.english_rules import rules

    made = json.loads(json.dumps(rules()))
    assert {key: made[key] for key in made if key != "source"} == {
        key: source()[key] for key in source() if key != "source"
    }


def same(text: str) -> None:
    from datatrove.utils.text import split_into_sentences, split_into_words

    assert words(text) == split_into_words(text)
    assert sentence_count(text) == len(split_into_sentences(text))


@pytest.mark.exhaustive
@spacy
def test_every_exception_with_what_may_stand_around_it() -> None:
    around = ("{}", "({})", "x{}", "{}.", "-{}y", "a/{}", '"{}",', "{0}{0}", "{} b")
    for spaced in source()["exceptions"]:
        for form in around:
            same(form.format(spaced.replace(" ", "")))


@spacy
@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"])), max_size=16))
def test_random_text(pieces: list[str]) -> None:
    same("".join(pieces))


@pytest.mark.exhaustive
@spacy
def test_real_documents() -> None:
    for text in random.Random(3).sample(real_documents(400, 3000), 120):
        same(text)
