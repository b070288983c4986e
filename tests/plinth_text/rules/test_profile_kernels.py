"""Kernels of Dolma's, RedPajama's, C4's and RefinedWeb's counting against plain Python on random text."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plinth.corpus.annotate.base import ANNOTATORS
from plinth.corpus.annotate.rules import gopher as redpajama_annotator
from tests.agreement import lines, words

#: Strings that the rules search for, and strings that could make a kernel and Python differ.
PIECES = [
    "the cat sat on the mat and", "the cat sat on the mat and", "Lorem, ipsum dolor", "lo-rem ipsum", "JavaScript",
    "{ }", "3 likes", "12.5K views", "(1,2 shares)", "3 likes more", "ADD TO CART NOW", "123", "4 5", "  9  ", "Menu",
    "items in cart", "2 Items in Cart today", "You may read more... ", "Read more>>>", "Sign-in here now", "sign-in",
    "a b c d e f g h i j k Sign-in", "It is so. And this!", 'He said "so it was"', "terms of use apply to all.",
    "see [12] there is more. [edit]", "one two three four five.", "so on and so on and...", "wait for it now…",
    "• item", "* item", "- item", "▪ x", "# # …", "Ωμέγα ΣΊΣΥΦΟΣ Σ", "e\u0301 \u00e9 É", "a\u0327\u0301 a\u0301\u0327",
    "İstanbul ŉ ǰ", "ﬁ K Å", "각 각", "²³ ½ Ⅷ ٣", "ǅ ǲ ª Ⓐ", "\u00a0x", "x\u00a0", "\u00a0", "_ __ a_b", "x" * 70,
    "if (x) return;", "“quoted”", "Jo's dog.", "۱۲ ৩", "", "", " ",
]  # fmt: skip
JOINS = ["\n", "\n", " ", "\n\n", "\r\n", "\t", "\u2028"]


def pages() -> st.SearchStrategy[str]:
    """Pieces in any order, repeated, between separators of all kinds."""
    pieces = st.one_of(st.sampled_from(PIECES), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
    joined = st.lists(st.tuples(pieces, st.sampled_from(JOINS)), max_size=14).map(
        lambda pairs: "".join(piece + join for piece, join in pairs)
    )
    return st.tuples(joined, st.integers(1, 3)).map(lambda pair: pair[0] * pair[1])


TEXTS = st.lists(pages(), max_size=4)


def rows(name: str, texts: list[str], **params: Any) -> list[dict[str, Any]]:
    chosen = ANNOTATORS[name]
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return chosen.annotate(batch, chosen.params(**params)).to_pylist()


@settings(max_examples=100, deadline=None)
@given(texts=TEXTS, join=st.booleans())
@example(texts=["a", " ", "x" * 70 + " " + "y" * 80 + " z" * 3], join=False)
def test_dolma_counts_gopher_like_plain_python(texts: list[str], join: bool) -> None:
    for found, text in zip(rows("gopher_dolma", texts, join_blank_lines=join), texts, strict=True):
        assert found == pytest.approx(words.gopher_dolma(text, join), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(texts=TEXTS)
@example(texts=["ΣΑΣ ΑΣ’Σ", "a\u0301\u0327 b", "1² ½\nx"])
def test_redpajama_signals_are_those_of_plain_python(texts: list[str]) -> None:
    for found, text in zip(rows("redpajama", texts), texts, strict=True):
        assert found == pytest.approx(words.redpajama(text), abs=1e-8)


def test_redpajama_takes_stop_words_from_a_list() -> None:
    batch = pa.record_batch({"text": pa.array(["The cat, the dog; don't."], pa.large_string())})
    prepared = redpajama_annotator.PreparedSignals(frozenset({"cat", "don", "the"}))
    (row,) = redpajama_annotator.annotate_redpajama(batch, prepared).to_pylist()
    assert row["stop_words"] == pytest.approx(3 / 10)  # The cat , the dog ; don ' t .


@settings(max_examples=80, deadline=None)
@given(texts=TEXTS, run=st.integers(0, 9))
def test_repeated_tokens_are_those_of_plain_python(texts: list[str], run: int) -> None:
    texts = [f"{text}{'a b, ' * run}{text}" for text in texts]
    for found, text in zip(rows("repeated_tokens", texts), texts, strict=True):
        assert found == words.repeated_tokens(text)


@settings(max_examples=80, deadline=None)
@given(texts=TEXTS)
def test_character_classes_are_those_of_plain_python(texts: list[str]) -> None:
    for found, text in zip(rows("characters", texts), texts, strict=True):
        assert found == pytest.approx(words.characters(text), abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, profile=st.sampled_from(["paper", "dclm", "dolma"]))
@example(texts=["One two three [3] four five. [3]\n\nA b c d e.\nA b c d e.\nx\n"], profile="dclm")
def test_c4_leaves_the_page_that_plain_python_leaves(texts: list[str], profile: str) -> None:
    least = {"paper": 5, "dclm": 3, "dolma": 0}[profile]
    for row, text in zip(rows("c4_lines", texts, profile=profile), texts, strict=True):
        goes = row["lorem_ipsum"] or row["curly_bracket"] or row["sentences"] < least
        goes |= profile == "dolma" and row["javascript"]
        expected = {"paper": lines.c4_paper, "dclm": lines.c4_dclm, "dolma": lines.c4_dolma}[profile](text)
        assert (None if goes else lines.tidy(lines.cut(text, row["cuts"]))) == lines.tidy(expected)
        assert row["characters"] == len(text)


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS)
@example(texts=["\u00a0Hello there\n3 likes\nMenu\nall of it stays here " * 9])
@example(texts=["a long line of text that keeps the share low " * 9 + "\n2 Items in Cart\nSign-in\nso, Read more...\n"])
def test_refinedweb_leaves_the_page_that_plain_python_leaves(texts: list[str]) -> None:
    for row, text in zip(rows("refinedweb_lines", texts), texts, strict=True):
        goes = row["emptied"] or not row["words"] or row["removed_words"] > 0.05
        assert (None if goes else lines.tidy(lines.cut(text, row["cuts"]))) == lines.tidy(lines.refinedweb(text))
        assert row["words"] == lines.words(text)
