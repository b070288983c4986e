"""Holdout: chosen by id and seed alone, within its bounds."""

import random
from typing import Any

import pytest

from plinth.corpus.protected.heldout_parameters import Holdout
from plinth.corpus.protected.holdout import below, rank
from plinth.errors import StageError


def texts(tiny: Any, count: int, stem: str = "d") -> list[Any]:
    picks = random.Random(stem)
    return [tiny.Doc(f"{stem}{i} " + " ".join(str(picks.randrange(10**6)) for _ in range(9))) for i in range(count)]


def chosen(corpus: Any) -> set[bytes]:
    rows = corpus.rows(corpus.through_holdout())
    return {identity for identity, row in rows.items() if row["held_out"]}


def by_rank(docs: list[Any], seed: int = 1) -> list[bytes]:
    return sorted((doc.id for doc in docs), key=lambda identity: rank(seed, identity))


def test_a_document_is_held_out_when_its_keyed_hash_is_below_the_fraction(tiny: Any) -> None:
    docs = texts(tiny, 300)
    corpus = tiny.corpus({"a": [docs[:7], docs[7:]]}, holdout_params=Holdout(fraction=0.2))
    found = chosen(corpus)
    assert found == {doc.id for doc in docs if rank(1, doc.id) < below(0.2)}
    assert 30 < len(found) < 90
    assert corpus.holdout.stats["held_out"] == len(found)
    assert corpus.holdout.stats["held_out_bytes"] == sum(len(doc.text) for doc in docs if doc.id in found)
    other = tiny.corpus({"a": [docs]}, holdout_params=Holdout(fraction=0.2, seed=2))
    assert chosen(other) != found


@pytest.mark.parametrize(("low", "high", "expected"), [(1, 5, 5), (90, 2000, 90), (3, 3, 3)])
def test_bounds_take_the_smallest_hashes_of_each_bucket(tiny: Any, low: int, high: int, expected: int) -> None:
    params = Holdout(fraction=0.2, min_documents=low, max_documents=high)
    buckets = {name: texts(tiny, 120, name) for name in ("a", "b")}
    cut = {name: [docs[:100], docs[100:101], docs[101:]] for name, docs in buckets.items()}
    whole = {name: [docs] for name, docs in buckets.items()}
    for corpus in (cut, whole):
        found = chosen(tiny.corpus(corpus, holdout_params=params))
        assert found == {identity for docs in buckets.values() for identity in by_rank(docs)[:expected]}


def test_order_of_parts_does_not_matter_and_others_stay_when_one_arrives(tiny: Any) -> None:
    docs = texts(tiny, 200)
    params = Holdout(fraction=0.1)
    found = chosen(tiny.corpus({"a": [docs[:50], docs[50:]]}, holdout_params=params))
    shuffled = docs[::-1]
    assert chosen(tiny.corpus({"a": [shuffled[:3], shuffled[3:]]}, holdout_params=params)) == found
    more = texts(tiny, 40, "new")
    assert chosen(tiny.corpus({"a": [docs, more]}, holdout_params=params)) >= found


def test_only_survivors_are_held_out(tiny: Any) -> None:
    docs = [tiny.Doc("a b c", name=str(i)) for i in range(30)]
    docs += [tiny.Doc(f"other {i}", fired=("bad",)) for i in range(30)]
    corpus = tiny.corpus({"a": [docs]}, holdout_params=Holdout(fraction=0.99))
    assert chosen(corpus) <= corpus.survivors(corpus.near)
    assert corpus.holdout.stats["survivors"] == 1


def test_a_bucket_that_cannot_give_enough_fails_by_name(tiny: Any) -> None:
    corpus = tiny.corpus({"few": [texts(tiny, 3)]}, holdout_params=Holdout(min_documents=4))
    with pytest.raises(StageError, match="bucket few"):
        corpus.through_holdout()
    narrow = tiny.corpus({"few": [texts(tiny, 9)]}, holdout_params=Holdout(min_documents=4, max_documents=2))
    with pytest.raises(StageError, match="bucket few"):
        narrow.through_holdout()


def test_a_bucket_without_survivors_is_left_alone(tiny: Any) -> None:
    dropped = [tiny.Doc("x", fired=("bad",))]
    corpus = tiny.corpus({"a": [dropped], "b": [texts(tiny, 5)]}, holdout_params=Holdout(min_documents=2))
    assert corpus.through_holdout().stats["buckets"]["a"]["held_out"] == 0
