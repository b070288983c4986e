"""The index: runs, trees of them, and a second snapshot that costs only itself."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute import context
from plinth.corpus.dedup import run_tree, sorted_runs
from plinth.corpus.dedup.near import index
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage import store as verified

WORDS = [f"word{i}" for i in range(3000)]


def made(store: Any, keys: Sequence[int], identity: Any = None, columns: int = 2) -> Part:
    key = np.array(keys, dtype=np.uint64)
    rest = [np.arange(key.size, dtype=np.uint64) + np.uint64(c) for c in range(columns - 1)]
    return sorted_runs.write(store, "run", "test", [(key, *rest)], columns, identity)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 50) | st.integers(0, 2**64 - 1), max_size=40),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.integers(1, 5),
)
def test_a_range_of_a_run_is_what_a_filter_gives(
    tmp_path_factory: Any, keys: list[int], bounds: tuple[int, int], block: int
) -> None:
    from plinth.storage.store import Store

    store, keys = Store(tmp_path_factory.mktemp("runs")), sorted(keys)
    low, high = sorted(bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "BLOCK_ROWS", block)
        part = made(store, keys, columns=3)
        with sorted_runs.SortedRun(store, part, "test") as opened:
            for begin, end in ((low, high), (low, sorted_runs.END), (0, sorted_runs.END)):
                key, first, second = opened.slice(begin, end)
                expected = [(value, i) for i, value in enumerate(keys) if begin <= value < end]
                assert list(zip(key.tolist(), first.tolist(), strict=True)) == expected
                assert (second - first == 1).all()
            assert [key for one in opened.chunks(block) for key in one[0].tolist()] == keys


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9) | st.integers(2**64 - 5, 2**64 - 1)), unique=True, max_size=30
    )
)
def test_order_is_by_key_then_ties(rows: list[tuple[int, int]]) -> None:
    key, tie = (np.array([row[i] for row in rows], dtype=np.uint64) for i in (0, 1))
    order = sorted_runs.in_order(key, tie)
    assert [rows[i] for i in order] == sorted(rows)
    assert sorted_runs.stable_order(key).tolist() == sorted(range(len(rows)), key=lambda i: rows[i][0])


def test_a_flipped_byte_anywhere_in_a_run_is_refused(tiny: Any) -> None:
    store, part = tiny.ctx.store, made(tiny.ctx.store, range(9000))
    path = store.path(part.blob)
    data = path.read_bytes()
    path.chmod(0o644)
    for at in (0, 5000 * 16, len(data) - 100, len(data) - 10):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        verified.remember(path, part.blob)  # as a disk does that changes a byte and no time
        with (
            pytest.raises(IntegrityError, match=r"cannot be trusted|another kind"),
            sorted_runs.SortedRun(store, part, "test") as one,
        ):
            one.all()
    path.write_bytes(data[:-1])
    with pytest.raises(IntegrityError, match="is truncated"):
        sorted_runs.SortedRun(store, part, "test")


def test_unsorted_and_short_runs_are_refused(tiny: Any) -> None:
    store = tiny.ctx.store
    unsorted = made(store, [3, 1, 2])
    with pytest.raises(IntegrityError, match="out of order"), sorted_runs.SortedRun(store, unsorted, "test") as one:
        one.all()
    blocks = made(store, [*range(5000, 9096), *range(4096)])
    with pytest.raises(IntegrityError, match="out of order"):
        sorted_runs.SortedRun(store, blocks, "test")
    with pytest.raises(IntegrityError, match="cannot be trusted"):
        sorted_runs.SortedRun(store, made(store, [1, 2]).model_copy(update={"rows": 3}), "test")
    not_a_run = Part(name="text", blob=store.put_bytes(b"not a run at all, but long enough to have a tail"), rows=1)
    with pytest.raises(IntegrityError, match="cannot be trusted"):
        sorted_runs.SortedRun(store, not_a_run, "test")


def test_a_run_of_another_version_is_refused_by_name(tiny: Any) -> None:
    part = made(tiny.ctx.store, [1], identity={"version": "1"})
    with pytest.raises(IntegrityError, match="has an unexpected kind or unexpected parameters") as caught:
        sorted_runs.SortedRun(tiny.ctx.store, part, "test", {"version": "2"})
    assert "version" in str(caught.value.found)
    with pytest.raises(IntegrityError, match="has an unexpected kind or unexpected parameters"):
        sorted_runs.SortedRun(tiny.ctx.store, part, "bands")


def leaves(tiny: Any, count: int, seed: int) -> list[Part]:
    picks = random.Random(seed)
    return [made(tiny.ctx.store, sorted(picks.randrange(2**64) for _ in range(40))) for _ in range(count)]


def entries(tiny: Any, branches: list[run_tree.Branch]) -> list[tuple[int, int, int]]:
    """Key, slot and row of everything in a tree."""
    found = []
    for branch in branches:
        with sorted_runs.SortedRun(tiny.ctx.store, branch.part, "test") as opened:
            key, at = opened.all()
        slots = [branch.slots[value >> 32] for value in at.tolist()]
        found += list(zip(key.tolist(), slots, (at & np.uint64(0xFFFFFFFF)).tolist(), strict=True))
    return sorted(found)


def test_merged_runs_hold_what_their_leaves_hold(tiny: Any, monkeypatch: Any) -> None:
    many = leaves(tiny, 100, 1)
    flat = entries(tiny, [run_tree.Branch(leaf, (i,)) for i, leaf in enumerate(many)])
    monkeypatch.setattr(run_tree, "MERGE_ROWS", 64)
    merged = run_tree.tree(tiny.ctx, "test", 2, many)
    assert len(merged) <= run_tree.MOST_RUNS
    assert entries(tiny, merged) == flat
    monkeypatch.setattr(run_tree, "MOST_RUNS", 2)
    deep = run_tree.tree(tiny.ctx, "test", 2, many)
    assert len(deep) <= 2
    assert entries(tiny, deep) == flat


def test_new_leaves_leave_the_branches_of_old_ones_alone(tiny: Any) -> None:
    old, new = leaves(tiny, 120, 2), leaves(tiny, 6, 3)
    before = {branch.part.blob.sha256 for branch in run_tree.tree(tiny.ctx, "test", 2, old)}
    for at in (0, 60, 120):  # before, among and after the old ones
        after = {branch.part.blob.sha256 for branch in run_tree.tree(tiny.ctx, "test", 2, [*old[:at], *new, *old[at:]])}
        assert len(before - after) <= 2


def near_docs(tiny: Any, seed: int, count: int, bases: int = 12) -> list[Any]:
    picks, shared = random.Random(seed), random.Random(99)
    texts = [[shared.randrange(3000) for _ in range(120)] for _ in range(bases)]
    docs = []
    for i in range(count):
        words = list(picks.choice(texts)) if i % 2 else [picks.randrange(3000) for _ in range(120)]
        words[-picks.randrange(1, 6) :] = [picks.randrange(3000)]
        docs.append(tiny.Doc(" ".join(WORDS[w] for w in words)))
    return docs


def opened_steps(monkeypatch: Any) -> dict[str, int]:
    """From now on: how many items of each step are run, not taken from the cache."""
    ran: dict[str, int] = {}
    original = context._call

    def call(fn: Any, *rest: Any) -> Any:
        ran[fn.__name__] = ran.get(fn.__name__, 0) + 1
        return original(fn, *rest)

    monkeypatch.setattr(context, "_call", call)
    return ran


@pytest.mark.parametrize("verify", ["text", "signature"])
def test_a_second_snapshot_gives_the_bytes_of_a_run_from_scratch(
    tiny: Any, tmp_path: Any, monkeypatch: Any, verify: Any
) -> None:
    from plinth.compute.context import Context
    from plinth.storage.workspace import Workspace

    first, second = near_docs(tiny, 1, 60), near_docs(tiny, 2, 12)
    dedup = Dedup(minhash=MinHash(verify=verify), keep="smallest_id")
    old = {"a": [first[:30], first[30:]], "z": [[]]}
    new = {"a": [first[:30], first[30:]], "b": [second], "z": [[]]}  # numbers of old slots may move
    before = tiny.corpus(old, dedup=dedup)
    before.through_near()
    index.run(tiny.ctx, dedup.minhash, before.documents, before.signatures)
    ran = opened_steps(monkeypatch)
    added = tiny.corpus(new, dedup=dedup)
    grown = added.through_near()
    indexed = index.run(tiny.ctx, dedup.minhash, added.documents, added.signatures)
    assert ran["_sign"] == ran["_digest"] == ran["_bands"] == 1  # the new part's alone
    monkeypatch.undo()
    tiny.ctx = Context(Workspace(tmp_path / "scratch").ensure())
    scratch = tiny.corpus(new, dedup=dedup)
    assert scratch.through_near().digest == grown.digest
    assert index.run(tiny.ctx, dedup.minhash, scratch.documents, scratch.signatures).digest == indexed.digest
    assert grown.stats["clusters"] > before.near.stats["clusters"] or grown.stats["survivors"] < 72


def test_old_texts_that_have_no_new_neighbour_are_not_read_again(tiny: Any, monkeypatch: Any) -> None:
    from plinth.corpus.dedup.near import payloads

    first = near_docs(tiny, 1, 60)
    lonely = [tiny.Doc(" ".join(f"new{i}-{j}" for j in range(60))) for i in range(5)]
    tiny.corpus({"a": [first[:30], first[30:]]}).through_near()
    read: list[int] = []
    original = payloads._values

    def values(params: Any, store: Any, part: Any, rows: Any) -> Any:
        read.append(rows.size)
        return original(params, store, part, rows)

    monkeypatch.setattr(payloads, "_values", values)
    made = tiny.corpus({"a": [first[:30], first[30:], lonely]}).through_near()
    assert sum(read) == 0
    assert made.stats["clusters"] > 3
    twin = tiny.Doc(first[1].text + " and a few words more")
    read.clear()
    tiny.corpus({"a": [first[:30], first[30:], lonely, [twin]]}).through_near()
    assert 2 <= sum(read) < 15  # the twin and those of its cluster it had to be compared with


def test_a_damaged_fact_is_forgotten_not_believed(tiny: Any) -> None:
    from plinth.corpus.dedup.near import linking, minhash

    docs = near_docs(tiny, 1, 40)
    corpus = tiny.corpus({"a": [docs]})
    first = corpus.through_near()
    definition = {"version": minhash.VERIFY_VERSION, **MinHash().similarity()}
    known = linking.recall(tiny.ctx, definition)
    assert known is not None
    path = tiny.ctx.store.path(known.values.blob)
    path.chmod(0o644)
    path.write_bytes(bytes(known.values.blob.bytes))
    assert linking.recall(tiny.ctx, definition) is None
    extra = [tiny.Doc(doc.text + " more") for doc in docs[:3]]
    grown = tiny.corpus({"a": [docs, extra]})
    rows = grown.rows(grown.through_near())
    for doc, other in zip(docs[:3], extra, strict=True):
        assert rows[doc.id]["cluster"] == rows[other.id]["cluster"]
    assert first.stats["clusters"] >= 3
