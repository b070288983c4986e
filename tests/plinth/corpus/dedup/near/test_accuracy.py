"""Precision and recall of removal on planted pairs, chains and crowds, with intervals that hold the truth."""

import itertools
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.corpus.dedup.near import accuracy, linking, minhash, sample
from plinth.corpus.dedup.near.sample import Sample
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.storage.state import StepCache
from plinth_text.similarity import band_keys, permutations, recall

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
    monkeypatch.setattr(sample, "POOL", 100)
    monkeypatch.setattr(sample, "PER_STRATUM", 7)
    picks, template = random.Random(7), [f"template{i}" for i in range(60)]
    docs = [tiny.Doc(" ".join([*template, *words(picks)[:40]])) for _ in range(40)]  # a crowd under every key
    docs += [tiny.Doc(" ".join(text)) for base in map(words, [picks] * 40) for text in (base, changed(base, 90, 4))]
    corpus = tiny.corpus({"a": [docs[:50], docs[50:]]}, dedup=Dedup(minhash=MinHash(bands=56, rows=2)))
    first = corpus.through_near()
    strata = first.stats["accuracy"]["strata"]
    assert strata
    assert max(row[name] for row in strata for name in ("removed", "near")) <= 7
    with monkeypatch.context() as patch:
        patch.setattr(StepCache, "get", lambda cache, key: None)
        again = minhash.run(tiny.ctx, corpus.dedup, corpus.documents, corpus.signatures, corpus.exact, partition_rows=1)
    assert again.digest == first.digest


def drawn(rows: list[tuple[int, int, int, list[float]]]) -> Sample:
    """A sample by hand: question, bands, bit set of candidates in one cluster, similarities to the candidates, which
    are independent of each other."""
    overlap = np.zeros((sample.SUBSETS, len(rows)), dtype=np.float32)
    for column, (*_, similarities) in enumerate(rows):
        for subset in range(1, 2 ** len(similarities)):
            overlap[subset - 1, column] = np.prod([s for i, s in enumerate(similarities) if subset >> i & 1])
    question, bands, together = (np.array([row[i] for row in rows], dtype=np.uint64) for i in range(3))
    candidates, number = np.array([len(row[3]) for row in rows], dtype=np.uint64), np.arange(len(rows), dtype=np.uint64)
    others = np.zeros((sample.OTHERS, len(rows)), dtype=np.uint64)
    return Sample(number, number, question, candidates, bands, together, others, others, overlap)


def test_rates_by_hand() -> None:
    params = MinHash(bands=14, rows=8, threshold=0.8)
    pool = {"0": [0, 30, 0, 0, 0, 10], "1": [0, 40, 0, 0, 0, 10]}
    rows = [(0, 1, 1, [similarity]) for similarity in (0.9, 0.5, 0.8)]  # each has weight 10
    rows += [(0, 9, 1, [1.0])] * 2  # each has weight 5
    rows += [(1, 1, together, [similarity]) for similarity, together in ((1.0, 1), (1.0, 0), (0.1, 0), (0.2, 0))]
    rows += [(1, 9, 1, [1.0])]
    made = accuracy.rates(drawn(rows), pool, params, 0.5)
    assert made["precision"]["value"] == pytest.approx(30 / 40)
    assert made["recall"]["value"] == pytest.approx(20 / 30, abs=1e-6)  # weights 10, 10, 10
    assert made["recall"]["low"] < 20 / 30 < made["recall"]["high"]
    assert [row["bands"] for row in made["strata"]] == ["1", "9-14"]
    assert [row["merged"] for row in made["strata"]] == [1, 1]
    few = accuracy.rates(drawn(rows), pool, MinHash(bands=2, rows=2), 0.5)  # fewer bands than strata
    assert few["strata"]


def test_a_document_stands_for_the_ones_without_a_common_band() -> None:
    params = MinHash(bands=1, rows=1, threshold=0.8)  # the probability of a common band is the similarity
    few = drawn([(1, 1, 1, [0.8]), (1, 1, 1, [0.9, 0.8]), (1, 1, 1, [0.9, 0.9, 0.9]), (1, 1, 1, [0.9, 0.1])])
    made = accuracy.represented(few, np.array([1, 3, 7, 1]), params)
    assert made == pytest.approx([1 / 0.8, 1 - (1 - 1 / 0.9) * (1 - 1 / 0.8), 1 - (1 - 1 / 0.9) ** 3, 1 / 0.9])
    few.candidates[2] = 4
    assert accuracy.represented(few, np.array([1, 3, 7, 1]), params)[2] == 1


def test_overlaps_are_those_of_sets() -> None:
    picks = random.Random(8)
    sets = [sorted({picks.randrange(40) for _ in range(picks.randrange(1, 30))}) for _ in range(40)]
    size = np.array([len(one) for one in sets]).reshape(10, 4)
    size[::3, 3] = 0  # a candidate less
    start = np.cumsum([0, *(len(one) for one in sets)])[:-1].reshape(10, 4)
    values, out = np.array([at for one in sets for at in one], dtype=np.uint64), np.empty((10, 7), dtype=np.float32)
    sample.overlaps(values, start, size, out)
    for row, subset in itertools.product(range(10), range(1, 8)):
        few = [set(sets[4 * row + i]) if size[row, i] else set() for i in range(4) if i == 0 or subset >> (i - 1) & 1]
        assert out[row, subset - 1] == np.float32(len(set.intersection(*few)) / len(set.union(*few)))


@pytest.mark.parametrize(("clusters", "runs", "pool"), [(60, 100, 2048), (600, 25, 2048), (600, 40, 400)])
def test_intervals_hold_the_truth_and_estimates_are_unbiased(
    monkeypatch: Any, clusters: int, runs: int, pool: int
) -> None:
    monkeypatch.setattr(sample, "POOL", pool)
    picks, texts, label = random.Random(9), list[str](), list[int]()
    for cluster in range(clusters):  # pairs of similarity 82 / 98, and triples of 85 / 95 and 80 / 100
        base = words(picks)
        members = [base, changed(base, 86, 8)] if cluster % 2 else [base, changed(base, 0, 5), changed(base, 89, 5)]
        texts += [" ".join(one) for one in members]
        label += [cluster] * len(members)
    made = [
        one_run(texts, np.array(label), 1000 * run) for run in range(runs)
    ]  # seeds next to each other share permutations
    truth, value, low, high = np.array(made).T
    assert np.mean((low <= truth) & (truth <= high)) >= 0.93
    assert abs(np.mean(value - truth)) < 3 * np.std(value - truth) / math.sqrt(runs)
    assert truth.mean() > 0.97


def one_run(texts: list[str], label: Any, seed: int) -> tuple[float, ...]:
    """True recall, estimate and interval, with the permutations of this seed. All documents of a cluster have a
    duplicate in it."""
    params = MinHash(seed=seed)
    signed, _ = linking.signatures(pa.array(texts), params, *permutations(params.bands * params.rows, seed))
    key, node = band_keys(signed, params.bands, params.rows).reshape(-1), np.repeat(np.arange(label.size), params.bands)
    order = np.lexsort((node, key))
    ids = np.random.default_rng(seed).integers(0, 2**63, (2, label.size)).astype(np.uint64)
    links = linking.Links(key[order], node[order], ids[0], ids[1], params.threshold)
    sets = linking.sets(pa.array(texts), params)
    size = np.array([one.size for one in sets])
    payload = linking.Payload(np.cumsum(size) - size, size, np.concatenate(sets))
    links.walk(linking.SETS, payload=payload)
    root = links.roots()
    candidates = np.unique(node[order][np.isin(key[order], key[order][1:][np.diff(key[order]) == 0])]).size
    below = sample.limit(candidates)
    chosen, pool = sample.choose(sample.draw(links, np.arange(label.size).astype(np.uint64), root, below, payload))
    rate = accuracy.rates(chosen, pool, params, below / 2**64)["recall"]
    return float(np.mean(np.bincount(root)[root] > 1)), rate["value"], rate["low"], rate["high"]
