"""Connected components in rounds: the same as a union-find over everything, in few rounds, whatever the ranges."""

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus.dedup import run_tree, sorted_runs
from plinth.corpus.dedup.near import candidates, components
from plinth.corpus.dedup.near.components import Components, connect, read_members
from plinth.errors import IntegrityError
from plinth.storage.workspace import Workspace

Group = Sequence[int]


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def shared(ctx: Context, groups: Sequence[Group], runs: int = 1) -> tuple[Any, ...]:
    """Sorted runs of documents that share keys, as many as there are runs: group i has the key i."""
    found = []
    for run in range(runs):
        rows = [(key, at) for key, group in enumerate(groups) if key % runs == run for at in sorted(set(group))]
        columns = [np.array([row[i] for row in rows], dtype=np.uint64) for i in (0, 1)]
        found.append(candidates.write_shared(ctx.store, *columns))
    return tuple(found)


def union_find(groups: Sequence[Group]) -> dict[int, int]:
    """The smallest document of every component, by a plain union-find that holds every document."""
    parent = {at: at for group in groups for at in group}

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for group in groups:
        for at in group:
            low, high = sorted((root(group[0]), root(at)))
            parent[high] = low
    return {at: root(at) for at in parent}


def found(ctx: Context, joined: Components, documents: int) -> dict[int, int]:
    at, component = read_members(ctx.store, joined.members, 0, documents)
    return dict(zip(at.tolist(), component.tolist(), strict=True))


def joined(ctx: Context, groups: Sequence[Group], documents: int, span: int, runs: int = 1) -> int:
    """Assert that the components are those of the union-find; return the number of rounds."""
    made = connect(ctx, "test", shared(ctx, groups, runs), documents, span)
    assert found(ctx, made, documents) == union_find(groups)
    assert made.documents == len(union_find(groups))
    assert made.rounds <= components.most_rounds(documents)
    return made.rounds


@settings(deadline=None, max_examples=10)
@given(
    st.lists(st.lists(st.integers(0, 59), min_size=2, max_size=6), max_size=50),
    st.sampled_from([1, 2, 7, 30, 64]),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 2, 4096]),
)
def test_components_are_those_of_a_union_find(
    tmp_path_factory: Any, groups: list[list[int]], span: int, runs: int, chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(components, "CHUNK_ROWS", chunk)
        patch.setattr(sorted_runs, "BLOCK_ROWS", 4)
        patch.setattr(run_tree, "MOST_RUNS", 2)
        joined(Context(Workspace(tmp_path_factory.mktemp("union")).ensure()), groups, 60, span, runs)


@pytest.mark.parametrize("order", ["rising", "falling", "zigzag", "shuffled"])
def test_a_chain_takes_a_round_for_each_doubling(ctx: Context, order: str) -> None:
    for count in (16, 64):
        chain = list(range(count))
        if order == "falling":
            chain.reverse()
        elif order == "zigzag":  # small and large numbers take turns
            chain = [at for pair in zip(chain[: count // 2], chain[count // 2 :], strict=True) for at in pair]
        elif order == "shuffled":
            random.Random(1).shuffle(chain)
        assert joined(ctx, list(itertools.pairwise(chain)), count, 4) <= math.log2(count) + 3


@pytest.mark.parametrize("center", [0, 50, 99])
def test_a_star_is_joined_at_once(ctx: Context, center: int) -> None:
    star = [(center, at) for at in range(100) if at != center]
    assert joined(ctx, star, 100, 10) <= 4
    assert joined(ctx, star, 100, 100) == 1


def test_a_giant_key_and_what_hangs_on_it(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "CHUNK_ROWS", 64)
    groups = [range(50, 5000), *((at, at - 40) for at in range(60, 90)), (3, 4990)]
    assert joined(ctx, groups, 5000, 500, runs=2) <= 6


def test_without_shared_keys_there_are_no_components(ctx: Context) -> None:
    assert joined(ctx, [], 0, 8) == 1
    assert joined(ctx, [], 100, 8) == 1
    assert candidates.find(ctx, "test", [], 100, 10, 8).partitions == ((0, 100),)


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    picks = random.Random(2)
    groups = [picks.sample(range(400), picks.choice([2, 2, 3])) for _ in range(300)]
    made = []
    for workers in (0, 2):
        ctx = Context(Workspace(tmp_path / str(workers)).ensure())
        if workers:
            ctx.engine = LocalEngine(workers)
        made.append(candidates.find(ctx, "test", shared(ctx, groups, 3), 400, 20, 50))
        ctx.engine.close()
    assert made[0] == made[1]
    assert made[0].components.rounds > 2


def test_a_run_that_is_killed_between_rounds_goes_on(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [(i, i + 1) for i in range(199)]
    runs, original, ran = shared(ctx, chain), components._fold, []

    def dies(store: Any, task: Any) -> Any:
        ran.append((task.low, task.hooks, task.answers))
        if len(ran) == 27:  # of ten ranges: in the third round
            raise KeyboardInterrupt
        return original(store, task)

    monkeypatch.setattr(components, "_fold", dies)
    with pytest.raises(KeyboardInterrupt):
        connect(ctx, "test", runs, 200, 20)
    made = connect(ctx, "test", runs, 200, 20)
    assert found(ctx, made, 200) == union_find(chain)
    assert ran.count(ran[26]) == 2  # only the killed task ran twice
    assert len(ran) == 10 * made.rounds + 1


@pytest.mark.parametrize("kind", ["_fold", "_answer"])
def test_a_flipped_byte_in_a_run_between_rounds_is_named(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    original = getattr(components, kind)

    def spoils(store: Any, task: Any) -> Any:
        made = original(store, task)
        for part in made:
            path = store.path(part.blob)
            data = bytearray(path.read_bytes())
            data[len(data) // 4] ^= 1
            path.chmod(0o644)
            path.write_bytes(bytes(data))
        return made

    monkeypatch.setattr(components, kind, spoils)
    with pytest.raises(IntegrityError, match="has changed since it was written"):
        connect(ctx, "test", shared(ctx, [(i, i + 1) for i in range(99)]), 100, 10)
