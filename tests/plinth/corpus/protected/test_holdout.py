"""Holdout: chosen by id and seed, within its bounds; once held out, never training text again."""

import random
from typing import Any

import pytest

from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.protected.holdout import RESERVED, below, rank
from plinth.corpus.protected.parameters import Holdout
from plinth.errors import StageError
from plinth.storage.parts import read_table


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


def reserved(corpus: Any) -> set[bytes]:
    (part,) = corpus.holdout.named(RESERVED)
    return set(read_table(corpus.ctx.store, part).column("id").to_pylist())


def training(corpus: Any) -> dict[bytes, str]:
    """The curated training text by id."""
    made = corpus.through_curated().values()
    return {
        row["id"]: row["text"]
        for one in made
        for part in one.named("part-")
        for row in read_table(corpus.ctx.store, part, ["id", "text"]).to_pylist()
    }


def growth(tiny: Any, seed: int, steps: int) -> list[dict[str, list[list[Any]]]]:
    """Buckets that grow at random: from a handful on, past every bound, in new parts and old ones, in any order, with
    edited captures of older documents, some longer and some shorter."""
    picks = random.Random(seed)
    found, docs = [], {"tiny": texts(tiny, 3, f"t{seed}"), "web": texts(tiny, picks.randrange(4, 9), f"w{seed}")}
    for step in range(steps):
        for name, own in docs.items():
            longer = [f"{doc.text} more{step}" for doc in picks.sample(own, len(own) // 4)]
            own += [tiny.Doc(text, name=f"{step}-{i}-{text}") for i, text in enumerate(longer)]
            own += texts(tiny, picks.randrange(1, 5 if name == "tiny" else 60), f"{name}{seed}-{step}")
            picks.shuffle(own)
        found.append({name: [own[:5], own[5:]] for name, own in docs.items()})
    return found


EVERY = [
    pytest.param(keep, seed, marks=() if seed == 0 else pytest.mark.exhaustive)
    for keep in ("longest", "smallest_id")
    for seed in range(6)
]


@pytest.mark.parametrize(("keep", "seed"), EVERY)
def test_who_was_held_out_once_never_enters_training(tiny: Any, keep: str, seed: int) -> None:
    params = {"holdout_params": Holdout(fraction=0.2, max_documents=8), "dedup": Dedup(keep=keep)}
    earlier, ever = None, set[bytes]()
    moved = displaced = 0
    for buckets in growth(tiny, seed, steps=3 if seed == 0 else 5):
        corpus = tiny.corpus(buckets, earlier=earlier, **params)
        corpus.through_holdout()
        rows, survivors = corpus.rows(corpus.holdout), corpus.survivors(corpus.near)
        held = chosen(corpus)
        alone = chosen(tiny.corpus(buckets, **params))  # what the hash would choose today
        assert reserved(corpus) == ever | alone
        assert held == reserved(corpus) & survivors
        assert {identity for identity, row in rows.items() if row["reserved"]} == reserved(corpus)
        assert corpus.holdout.stats["carried"] == len(ever - alone)
        moved, displaced = moved + len(ever & survivors - alone), displaced + len(ever - survivors)
        earlier, ever = corpus.holdout, reserved(corpus)
        assert tiny.corpus(buckets, earlier=earlier, **params).through_holdout().digest == earlier.digest
    assert moved  # without the list these would train now
    assert displaced or keep == "smallest_id"


def test_text_that_displaces_a_held_out_document_is_no_training_text_either(tiny: Any) -> None:
    """Under `keep: longest` a longer capture takes the survivor's place; the n-grams of the reserved one protect it."""
    params = {"holdout_params": Holdout(fraction=0.2), "dedup": Dedup(keep="longest")}
    bodies = [" ".join(f"{word}x{i}" for i, word in enumerate(doc.text.split() * 5)) for doc in texts(tiny, 40)]
    docs = [tiny.Doc(body) for body in bodies]
    first = tiny.corpus({"a": [docs]}, **params)
    assert first.through_holdout()
    held = [doc for doc in docs if doc.id in chosen(first)]
    longer = [tiny.Doc(f"{doc.text} and three more") for doc in held]
    second = tiny.corpus({"a": [docs], "b": [longer]}, earlier=first.holdout, **params)
    text = training(second)
    assert len(held) > 3
    assert not second.survivors(second.near) & {doc.id for doc in held}
    grams = {tuple(doc.text.split()[i : i + 13]) for doc in held for i in range(len(doc.text.split()) - 12)}
    for one in text.values():
        words = one.split()
        assert not any(tuple(words[i : i + 13]) in grams for i in range(len(words) - 12))
    forgetful = tiny.corpus({"a": [docs], "b": [longer]}, **params)
    assert {doc.id for doc in longer} & training(forgetful).keys()  # what the list prevents


def test_a_document_stays_reserved_while_it_is_gone(tiny: Any) -> None:
    params = Holdout(fraction=0.2, max_documents=5)
    docs, more = texts(tiny, 60), texts(tiny, 200, "more")
    first = tiny.corpus({"a": [docs]}, holdout_params=params)
    held = chosen(first)
    second = tiny.corpus({"a": [more]}, holdout_params=params, earlier=first.holdout)
    assert chosen(second) & held == set()
    third = tiny.corpus({"a": [docs, more]}, holdout_params=params, earlier=second.holdout)
    assert chosen(third) >= held
