"""Groups, components and pairs: all pairs of a few, neighbors and the smallest id of a crowd, in any order."""

import itertools
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import candidates, linking
from plinth.corpus.dedup.near.components import read_members
from plinth.corpus.dedup.near.linking import ALL_PAIRS, LOOK_UP, MARK, NEIGHBOURS, SETS, Links, Payload
from plinth.corpus.dedup.run_tree import Branch, RangeReader
from plinth.storage.workspace import Workspace

Entry = tuple[int, int]  # band key, document


def compared(entries: list[Entry], ids: list[int]) -> tuple[set[frozenset[int]], Links]:
    """Pairs that are compared when no two documents have anything in common."""
    key, node = (np.array(column, dtype=np.uint64) for column in zip(*entries, strict=True))
    low = np.array(ids, dtype=np.uint64)
    links = Links(key, node.astype(np.int64), np.zeros_like(low), low, 0.5)
    payload = Payload(np.arange(low.size), np.ones(low.size, np.int64), np.arange(1, low.size + 1, dtype=np.uint64))
    pairs, values = links.walk(SETS, payload=payload)
    ends = linking.ends(np.zeros_like(low), low)
    by_key = {_mixed(int(ends[a]) + int(ends[b])): frozenset((a, b)) for a, b in all_pairs(range(low.size))}
    assert len(set(pairs.tolist())) == pairs.size  # no pair twice
    assert not (values & np.uint64(0xFFFFFFFF)).any()  # similarity 0
    assert links.roots().tolist() == list(range(low.size))
    return {by_key[int(pair)] for pair in pairs}, links


def _mixed(value: int) -> int:
    """The key of a pair: the 64-bit finalizer of MurmurHash3."""
    value &= 2**64 - 1
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = ((value ^ (value >> 33)) * factor) & (2**64 - 1)
    return value ^ (value >> 33)


def all_pairs(items: Any) -> set[tuple[int, int]]:
    return set(itertools.combinations(items, 2))


@pytest.fixture(autouse=True)
def _wrapping() -> Any:
    with np.errstate(over="ignore"):
        yield


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_a_few_documents_under_a_key_are_all_compared(keys: list[int]) -> None:
    entries = sorted((key, i) for i, key in enumerate(keys))
    expected = {frozenset((i, j)) for i, j in all_pairs(range(len(keys))) if keys[i] == keys[j]}
    assert compared(entries, [100 - i for i in range(len(keys))])[0] == expected


def test_the_bound_of_all_pairs_is_inclusive() -> None:
    for count in (ALL_PAIRS, ALL_PAIRS + 1):
        found, _ = compared([(1, i) for i in range(count)], list(range(count)))
        assert (len(found) == count * (count - 1) // 2) == (count <= ALL_PAIRS)


def test_a_crowd_is_paired_with_its_smallest_id_and_its_neighbours_in_linear_number() -> None:
    count, picks = 300, random.Random(1)
    ids = picks.sample(range(10**9), count)
    found, _ = compared([(7, at) for at in range(count)], ids)
    smallest = ids.index(min(ids))
    others = {frozenset((smallest, at)) for at in range(count) if at != smallest}
    assert others <= found
    chain = found - others
    assert NEIGHBOURS * (count - NEIGHBOURS) - 2 * NEIGHBOURS <= len(chain) <= NEIGHBOURS * count
    another_band = compared([(8, at) for at in range(count)], ids)[0] - others
    assert len(chain & another_band) < len(chain) / 4  # an order of its own
    order = list(range(count))
    picks.shuffle(order)
    assert compared([(7, at) for at in order], ids)[0] == found


def test_a_pair_that_is_connected_or_refused_is_not_compared_again() -> None:
    low = np.arange(6, dtype=np.uint64)
    key = np.repeat(np.array([1, 2, 3], dtype=np.uint64), 6)
    links = Links(key, np.tile(np.arange(6), 3), np.zeros(6, np.uint64), low, 0.5)
    values = np.array([1, 1, 1, 9, 9, 9], dtype=np.uint64)
    pairs, _ = links.walk(SETS, payload=Payload(np.arange(6), np.ones(6, np.int64), values))
    assert links.roots().tolist() == [0, 0, 0, 3, 3, 3]
    assert pairs.size < 15  # of the 15 pairs under each of three keys


def test_known_pairs_need_no_text() -> None:
    low = np.arange(40, dtype=np.uint64)
    key, node = np.ones(40, np.uint64), np.arange(40)
    values = (np.arange(40) // 2 + 1).astype(np.uint64)
    payload = Payload(np.arange(40), np.ones(40, np.int64), values)
    first = Links(key, node, np.zeros(40, np.uint64), low, 0.5)
    pairs, found = first.walk(SETS, payload=payload)
    order = sorted_runs.in_order(pairs, found)
    known = pairs[order], found[order]
    again = Links(key, node, np.zeros(40, np.uint64), low, 0.5)
    again.walk(LOOK_UP, known=known)
    assert again.roots().tolist() == first.roots().tolist()
    again.walk(MARK)
    assert not again.needed.any()
    fewer = Links(key, node, np.zeros(40, np.uint64), low, 0.5)
    fewer.walk(LOOK_UP, known=(known[0][1:], known[1][1:]))
    fewer.walk(MARK)
    assert 1 <= fewer.needed.sum() <= 2


@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 19)), max_size=60),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 21),
)
def test_components_and_partitions_agree_with_python(
    tmp_path_factory: Any, entries: list[Entry], range_rows: int, partition_rows: int, span: int
) -> None:
    ctx = Context(Workspace(tmp_path_factory.mktemp("components")).ensure())
    spread = 2**64 // 9
    unique = sorted({(key * spread, at) for key, at in entries})
    columns = [np.array([one[i] for one in unique], dtype=np.uint64) for i in (0, 1)]
    run = sorted_runs.write(ctx.store, "leaf", "bands", [columns], 2)
    mask = sidecars.Column.of(ctx.store, [sidecars.write(ctx.store, "mask", np.ones(20, np.uint8))], "<u1")
    reader = RangeReader.over(ctx.store, "bands", (Branch(run, (0,)),), sidecars.SlotNumbers((0, 20)))
    found = candidates.find(ctx, "test", candidates.groups(ctx, reader, mask, range_rows), 20, partition_rows, span)
    root = list(range(20))
    for (key, a), (other, b) in itertools.pairwise(unique):
        if key == other:
            small, large = sorted((root[a], root[b]))
            root = [small if value == large else value for value in root]
    expected = {at: value for at, value in enumerate(root) if root.count(value) > 1}
    documents, components = read_members(ctx.store, found.components.members, 0, 20)
    assert dict(zip(documents.tolist(), components.tolist(), strict=True)) == expected
    assert found.documents == len(expected)
    seen: list[int] = []
    big = {one for one in root if root.count(one) > max(1, partition_rows)}
    assert set(sidecars.open_flat(ctx.store, found.large, "<u8").tolist()) == big
    for low, high in (*found.partitions, *found.pieces, *((code, code + 1) for code in found.crowded)):
        keys, held = candidates.read_routed(ctx.store, found.routed, low, high)
        of = {expected[at] for at in held.tolist()}
        assert (of <= big) if low >= candidates.LARGE else not of & big
        assert of <= big or sum(root.count(one) for one in of) <= partition_rows
        assert not of & big or len(set(keys.tolist())) <= 1 or held.size <= ALL_PAIRS
        seen += held.tolist()
        assert sum(keys[1:] != keys[:-1]) + bool(keys.size) == len(set(keys.tolist()))  # groups are not torn
    assert len(seen) == sum(sum(key == other for other, _ in unique) > 1 for key, _ in unique)


def test_a_branch_of_many_documents_costs_a_reader_only_its_rows(tmp_path: Any) -> None:
    store, documents = Context(Workspace(tmp_path / "workspace").ensure()).store, 9_000_000
    picks = np.random.default_rng(1)
    kept = picks.integers(0, 2, documents).astype(np.uint8)
    pieces = [sidecars.write(store, "mask", piece) for piece in (kept[:5_000_000], kept[5_000_000:])]
    mask = sidecars.Column.of(store, pieces, "<u1")
    key = np.sort(picks.integers(0, 2**62, 5000, dtype=np.uint64))
    at = picks.integers(0, documents, 5000, dtype=np.uint64)
    run = sorted_runs.write(store, "leaf", "bands", [(key, at)], 2)
    reader = RangeReader.over(store, "bands", (Branch(run, (0,)),), sidecars.SlotNumbers((0, documents)))
    tracemalloc.start()
    found = reader.read(store, 0, 2**64, mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    chosen = kept[at] != 0
    assert [column.tolist() for column in found] == [key[chosen].tolist(), at[chosen].tolist()]
    assert peak < documents // 4


def test_an_open_run_holds_twelve_bytes_of_a_block(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "BLOCK_ROWS", 1)
    store, blocks = Context(Workspace(tmp_path / "workspace").ensure()).store, 50_000
    run = sorted_runs.write(store, "leaf", "bands", [(np.arange(blocks, dtype=np.uint64),)], 1)
    tracemalloc.start()
    with sorted_runs.SortedRun(store, run) as opened:
        held = tracemalloc.get_traced_memory()[0]
        assert opened.slice(blocks - 1, blocks)[0].tolist() == [blocks - 1]
    tracemalloc.stop()
    assert 12 * blocks <= held < 13 * blocks
