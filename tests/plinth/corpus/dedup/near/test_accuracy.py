"""Precision and recall of removal on planted pairs, chains and crowds, with intervals that hold the truth."""

import random
from typing import Any

import numpy as np
import pytest

from plinth.corpus.dedup.near import accuracy, minhash
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.storage.state import StepCache
from plinth_text.similarity import recall

SHINGLES = 90  # of a text of 94 words


def changed(words: list[str], first: int, count: int) -> list[str]:
    """The words with `count` of them replaced, from number `first` on."""
    return [*words[:first], *(f"new{first}x{words[0]}x{i}" for i in range(count)), *words[first + count :]]


def words(picks: random.Random) -> list[str]:
    return [f"{picks.getrandbits(48):x}" for _ in range(SHINGLES + 4)]


def test_planted_pairs_are_measured_as_they_are(tiny: Any) -> None:
    picks, pairs = random.Random(4), []
    for end, count in ((10, 300), (5, 200)):  # similarities 80 / 100 and 85 / 95
        bases = [words(picks) for _ in range(count)]
        pairs += [(base, changed(base, len(base) - end, end)) for base in bases]
    docs = [tiny.Doc(" ".join(text)) for pair in pairs for text in pair]
    picks.shuffle(docs)
    corpus = tiny.corpus({"a": [docs[:400], docs[400:]]}, dedup=Dedup(minhash=MinHash()))
    made = corpus.through_near()
    found, merged = made.stats["accuracy"], made.stats["clusters"]
    assert found["precision"]["value"] == 1
    assert found["precision"]["low"] > 0.98
    assert found["recall"]["low"] <= merged / 500 <= found["recall"]["high"]
    expected = (300 * recall(0.8, 14, 8) + 200 * recall(85 / 95, 14, 8)) / 500
    assert found["recall"]["value"] == pytest.approx(expected, abs=0.02)
    assert sum(row["merged"] for row in found["strata"]) == found["recall"]["documents"]


def test_a_document_that_is_removed_for_a_third_one_costs_precision(tiny: Any) -> None:
    picks, docs = random.Random(5), []
    for number in range(40):  # the middle is similar to both ends, which are not similar to each other
        middle = words(picks)
        ends = changed(middle, 0, 5), changed(middle, 89, 5)
        docs += [tiny.Doc(" ".join(text) + " " * i, name=f"{number}{i}") for i, text in enumerate((middle, *ends))]
    params = MinHash(bands=40, rows=3, threshold=0.85)
    corpus = tiny.corpus({"a": [docs]}, dedup=Dedup(minhash=params, keep="smallest_id"))
    made = corpus.through_near()
    assert made.stats["clusters"] == 40
    rows = corpus.rows(made)
    kept = [i for i in range(120) if rows[docs[i].id]["survivor"]]
    wrong = sum(i % 3 > 0 for i in kept)  # an end is kept: the other end is removed for it
    assert 0 < wrong < 40
    found = made.stats["accuracy"]["precision"]
    assert found["value"] == pytest.approx(1 - wrong / 80, abs=1e-6)
    assert found["low"] < found["value"] < found["high"]


def test_nothing_removed_is_nothing_measured(tiny: Any) -> None:
    picks = random.Random(6)
    corpus = tiny.corpus({"a": [[tiny.Doc(" ".join(words(picks))) for _ in range(5)]]})
    assert corpus.through_near().stats["accuracy"] == {"precision": None, "recall": None, "strata": []}


def test_the_sample_is_bounded_and_the_same_in_any_partition(tiny: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(accuracy, "POOL", 100)
    monkeypatch.setattr(accuracy, "PER_STRATUM", 7)
    picks, template = random.Random(7), [f"template{i}" for i in range(60)]
    docs = [tiny.Doc(" ".join([*template, *words(picks)[:40]])) for _ in range(80)]  # a crowd under every key
    docs += [tiny.Doc(" ".join(text)) for base in map(words, [picks] * 60) for text in (base, changed(base, 90, 4))]
    corpus = tiny.corpus({"a": [docs[:90], docs[90:]]}, dedup=Dedup(minhash=MinHash(bands=56, rows=2)))
    first = corpus.through_near()
    strata = first.stats["accuracy"]["strata"]
    assert strata
    assert max(row[name] for row in strata for name in ("removed", "near")) <= 7
    with monkeypatch.context() as patch:
        patch.setattr(StepCache, "get", lambda cache, key: None)
        again = minhash.run(tiny.ctx, corpus.dedup, corpus.documents, corpus.signatures, corpus.exact, partition_rows=1)
    assert again.digest == first.digest


def test_rates_by_hand() -> None:
    params = MinHash(bands=14, rows=8, threshold=0.8)
    pool = {"0": [0, 30, 0, 0, 0, 10], "1": [0, 40, 0, 0, 0, 10]}
    found = {
        (0, 1): [(0.9, True), (0.5, True), (float(np.float32(0.8)), True)],  # each stands for 10
        (0, 5): [(1.0, True), (1.0, True)],  # each stands for 5
        (1, 1): [(1.0, True), (1.0, False), (0.1, False), (0.2, False)],
        (1, 5): [(1.0, True)],
    }
    made = accuracy.rates(found, pool, params)
    assert made["precision"] is not None
    assert made["precision"]["value"] == pytest.approx(30 / 40)
    assert made["recall"] is not None
    assert made["recall"]["value"] == pytest.approx(20 / 30, abs=1e-6)  # weights 10, 10, 10
    assert made["recall"]["low"] < 20 / 30 < made["recall"]["high"]
    assert [row["bands"] for row in made["strata"]] == ["1", "9-14"]
    few = accuracy.rates(found, pool, MinHash(bands=2, rows=2))  # fewer bands than strata
    assert few["strata"]
