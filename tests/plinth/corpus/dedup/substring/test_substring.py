"""Repeated passages: the same cuts as a suffix array finds, whatever the parts, ranges and workers."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plinth.corpus.curate import apply_edits
from plinth.corpus.dedup import edits, lines, substring
from plinth.corpus.dedup.parameters import LineParameters, Substring
from plinth_text.similarity import word_positions

LOOSE = {"min_words": 0, "min_share": 0.0}


def made(tiny: Any, buckets: dict[str, list[list[Any]]], range_rows: int = 4_000_000, **params: Any) -> Any:
    corpus = tiny.corpus(buckets)
    corpus.through_exact()
    chosen = Substring(**{**LOOSE, **params})
    corpus.substring = substring.run(corpus.ctx, chosen, corpus.documents, corpus.exact, range_rows=range_rows)
    return corpus


def in_order(corpus: Any) -> list[Any]:
    return [doc for bucket in sorted(corpus.buckets) for docs in corpus.buckets[bucket] for doc in docs]


def texts(corpus: Any) -> dict[str, str]:
    """Return the remaining text of every surviving document, by name."""
    rows = corpus.rows(corpus.substring)
    docs = in_order(corpus)
    return {doc.name: apply_edits(doc.text, rows[doc.id]["edits"]) for doc in docs if rows[doc.id]["survivor"]}


def words_of(text: str) -> list[str]:
    found = word_positions(text)
    return [found.passage(i, 1).decode()[:-1] for i in range(found.start_cp.size)]


def suffix_array(texts: Sequence[str], n: int) -> list[list[str]]:
    """Return the remaining words of each text: sort all suffixes, cut every window of n words that equals its
    predecessor in this order."""
    words = [words_of(text) for text in texts]
    suffixes = sorted(
        (doc_words[i : i + n], doc, i) for doc, doc_words in enumerate(words) for i in range(len(doc_words))
    )
    gone = [[False] * len(doc_words) for doc_words in words]
    for (above, *_), (below, doc, i) in pairwise(suffixes):
        if len(below) == n and above == below:
            gone[doc][i : i + n] = [True] * n
    return [[w for w, cut in zip(ws, cuts, strict=True) if not cut] for ws, cuts in zip(words, gone, strict=True)]


def prose(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(10**6)}" for _ in range(count))


def test_the_first_occurrence_stays(tiny: Any) -> None:
    rng = random.Random(1)
    passage = prose(rng, 60)
    one = tiny.Doc(f"Start of one. {passage}. End of one.", "1")
    two = tiny.Doc(f"Start of two. “{passage.upper().replace(' ', ', ')}.” Naïve end 😀 of two.", "2")
    three = tiny.Doc(f"{passage[: passage.rindex(' w')]} but otherwise. Third.", "3")
    corpus = made(tiny, {"b": [[three]], "a": [[one], [two]]})
    assert texts(corpus) == {
        "1": one.text, "2": "Start of two. Naïve end 😀 of two.", "3": "but otherwise. Third.",
    }  # fmt: skip
    stats = corpus.substring.stats
    assert (stats["edited"], stats["edits"], stats["differing"]) == (2, 2, 0)
    whole = sum(len(doc.text.encode()) for doc in (one, two, three))
    assert stats["removed_bytes"] == whole - sum(len(text.encode()) for text in texts(corpus).values())
    assert corpus.rows(corpus.substring)[two.id]["edits"][0]["reason"] == "repeated_passage"


def test_fifty_words_are_cut_and_forty_nine_are_not(tiny: Any) -> None:
    rng = random.Random(2)
    fifty, short = prose(rng, 50), prose(rng, 49)
    docs = [tiny.Doc(f"a {fifty} b {short} c", "1"), tiny.Doc(f"d {short} e {fifty} f", "2")]
    assert texts(made(tiny, {"a": [docs]}))["2"] == f"d {short} e f"


def test_within_one_document(tiny: Any) -> None:
    passage = prose(random.Random(3), 50)
    doc = tiny.Doc(f"{passage}\n\nand again\n\n{passage}\n\nend", "1")
    assert texts(made(tiny, {"a": [[doc]]}))["1"] == f"{passage}\n\nand again\n\nend"
    periodic = tiny.Doc("left right " * 100, "2")
    assert texts(made(tiny, {"a": [[periodic]]}))["2"] == "left right "


@pytest.mark.parametrize(
    ("text", "cut", "left"),
    [
        ("Before. (Cut me,) after", "Cut me", "Before. after"),
        ("Before-cut me-after", "cut me", "Before--after"),
        ("cut me!\n\nAfter", "cut me", "After"),
        ("Before cut me!\n\nAfter", "cut me", "Before cut me!\n\nAfter"),  # a part of a sentence
        ("Before\n\ncut me\n\nAfter", "cut me", "Before\n\nAfter"),
        ("Before\u2003«cut me»", "cut me", "Before\u2003"),
        ("cut me", "cut me", ""),
    ],
)
def test_what_goes_with_a_passage(text: str, cut: str, left: str) -> None:
    words = words_of(text)
    found = word_positions(text)
    first = words.index(cut.lower().split()[0])
    start, end, start_byte, end_byte = substring._place(text, found, first, first + 1)
    assert text[:start] + text[end:] == left
    assert (len(text[:start].encode()), len(text[:end].encode())) == (start_byte, end_byte)


word = st.sampled_from(["a", "B", "b", "ñ", "日本", "x,", "y\n", "😀", "e\u0301", "—"])
corpora = st.lists(st.lists(word, max_size=14).map(" ".join), min_size=1, max_size=6)


@pytest.mark.exhaustive
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(corpora, st.integers(2, 5), st.integers(1, 3), st.sampled_from([7, 4_000_000]))
def test_the_words_that_a_suffix_array_leaves(tiny: Any, found: list[str], n: int, parts: int, range_rows: int) -> None:
    docs = [tiny.Doc(text, f"{n}{i}") for i, text in enumerate(found)]
    size = -(-len(docs) // parts)
    corpus = tiny.corpus({"a": [docs[i : i + size] for i in range(0, len(docs), size)]})
    corpus.through_exact()
    docs = [doc for doc in docs if corpus.rows(corpus.exact)[doc.id]["survivor"]]
    params = Substring(min_tokens=n, **LOOSE)
    corpus.substring = substring.run(corpus.ctx, params, corpus.documents, corpus.exact, range_rows=range_rows)
    left = texts(corpus)
    expected = suffix_array([doc.text for doc in docs], n)
    assert [words_of(left[doc.name]) for doc in docs] == expected
    removed = sum(len(doc.text.encode()) - len(left[doc.name].encode()) for doc in docs)
    assert corpus.substring.stats["removed_bytes"] == removed


def planted(rng: random.Random, count: int) -> list[str]:
    """Random documents that quote each other."""
    found: list[str] = []
    for _ in range(count):
        pieces = [prose(rng, rng.randint(0, 40))]
        for _ in range(rng.randint(0, 3)):
            source = found[rng.randrange(len(found))].split() if found else []
            at = rng.randrange(max(1, len(source)))
            pieces += [" ".join(source[at : at + rng.randint(5, 90)]), prose(rng, rng.randint(0, 9))]
        found.append(" ".join(pieces))
    return found


@pytest.mark.parametrize(
    ("parts", "range_rows"), [(1, 10**6), pytest.param(7, 10**6, marks=pytest.mark.exhaustive), (7, 200)]
)
def test_the_same_cuts_with_one_part_or_seven(tiny: Any, parts: int, range_rows: int) -> None:
    docs = [tiny.Doc(text, str(n)) for n, text in enumerate(planted(random.Random(6), 40))]
    size = -(-len(docs) // parts)
    corpus = made(tiny, {"a": [docs[i : i + size] for i in range(0, len(docs), size)]}, range_rows, min_tokens=20)
    docs = [doc for doc in docs if corpus.rows(corpus.exact)[doc.id]["survivor"]]
    left = texts(corpus)
    assert [words_of(left[doc.name]) for doc in docs] == suffix_array([doc.text for doc in docs], 20)
    assert corpus.substring.stats["edits"] > 20


def test_text_that_lines_cut_is_not_there(tiny: Any) -> None:
    rng = random.Random(8)
    line, rest, more = prose(rng, 30), prose(rng, 30), prose(rng, 60)
    docs = [
        tiny.Doc(f"{line}\n{prose(rng, 9)}", "1"),
        tiny.Doc(f"{line}\n{rest}\n{more} ü", "2"),  # its first line is cut
        tiny.Doc(f"{rest} {more} end", "3"),
    ]
    corpus = tiny.corpus({"a": [docs[:2], docs[2:]]})
    corpus.through_exact()
    before = lines.run(corpus.ctx, LineParameters(boilerplate_documents=None, **LOOSE), corpus.documents, corpus.exact)
    corpus.substring = substring.run(corpus.ctx, Substring(**LOOSE), corpus.documents, before)
    assert texts(corpus)["3"] == "end"
    # across a hole: text cut by lines is neither counted twice nor compared
    holed = tiny.corpus(
        {"a": [[*docs[:1], tiny.Doc(f"{rest} {more}", "0"), tiny.Doc(f"{rest}\n{line}\n{more} z", "4")]]}
    )
    holed.through_exact()
    before = lines.run(holed.ctx, LineParameters(boilerplate_documents=None, **LOOSE), holed.documents, holed.exact)
    assert before.stats["edited"] == 1
    holed.substring = substring.run(holed.ctx, Substring(**LOOSE), holed.documents, before)
    assert texts(holed)["4"] == "z"
    together = before.stats["removed_bytes"] + holed.substring.stats["removed_bytes"]
    assert together == len(f"{rest}\n{line}\n{more} ")


def test_excluded_buckets_are_neither_cut_nor_compared(tiny: Any) -> None:
    passage = prose(random.Random(10), 50)
    buckets = {"a": [[tiny.Doc(f"{passage} one", "1")]], "b": [[tiny.Doc(f"{passage} two", "2")]]}
    assert texts(made(tiny, buckets, exclude=("a",)))["2"] == f"{passage} two"
    assert texts(made(tiny, buckets, exclude=("b",)))["2"] == f"{passage} two"
    assert texts(made(tiny, buckets))["2"] == "two"


def test_keys_that_collide_cut_nothing(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys of one bit, the comparison of words alone decides."""
    keys = edits.window_keys

    def weak(*args: Any) -> tuple[Any, Any]:
        high, low = keys(*args)
        return high & np.uint64(1), low & np.uint64(1)

    monkeypatch.setattr(edits, "window_keys", weak)
    rng = random.Random(11)
    passage = prose(rng, 30)
    docs = [tiny.Doc(f"{passage} {prose(rng, 20)}", str(n)) for n in range(3)]
    corpus = made(tiny, {"a": [docs]}, min_tokens=20)
    assert corpus.substring.stats["differing"] > 0
    left = texts(corpus)
    assert all(set(words_of(doc.text)[30:]) <= set(words_of(left[doc.name])) for doc in docs)


def test_runs_join_where_both_places_go_on() -> None:
    rows = [(5, 3, 1, 8), (5, 4, 1, 9), (5, 5, 2, 0), (7, 6, 2, 1), (5, 7, 2, 2)]
    columns = [np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True)]
    found = substring.runs_of(*columns, tokens=10)
    assert list(zip(found.at, found.word, found.first, found.first_word, found.length, strict=True)) == [
        (5, 3, 1, 8, 11), (5, 5, 2, 0, 10), (5, 7, 2, 2, 10), (7, 6, 2, 1, 10),
    ]  # fmt: skip
