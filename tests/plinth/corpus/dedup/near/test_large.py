"""Large components in pieces: the bytes of one task, whatever the pieces; bounded memory; a run that is killed."""

import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus import sidecars
from plinth.corpus.dedup import run_tree, sorted_runs
from plinth.corpus.dedup.near import candidates, components, crowds, large, minhash, payloads, sample
from plinth.corpus.dedup.near.linking import SETS, Links, Payload
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.storage.state import StepCache
from plinth.storage.workspace import Workspace

from ...conftest import Corpus, Tools
from ..test_exact import rows_in_memory

#: Many bands of few rows: documents that share a template share keys.
DEDUP = Dedup(minhash=MinHash(bands=30, rows=2, threshold=0.7))


def linked(tools: Tools, picks: random.Random, documents: int, verify: Any = "text") -> Corpus:
    """A corpus that is nearly one component: pages of a template, chains of pages, and pages with one word changed."""
    template = [f"template{i}" for i in range(40)]
    texts = [" ".join([*template * 3, str(i)]) for i in range(documents // 4)]
    while len(texts) < documents:
        words = [f"{picks.getrandbits(40):x}" for _ in range(50)]
        for link in range(picks.choice([1, 1, 1, 3, 8])):
            texts.append(" ".join([*template, *words]))
            words[4 * link : 4 * link + 3] = [f"{picks.getrandbits(40):x}" for _ in range(3)]
    picks.shuffle(texts)
    docs, cuts = [tools.Doc(text) for text in texts], sorted(picks.choices(range(len(texts)), k=2))
    dedup = DEDUP.model_copy(update={"minhash": DEDUP.minhash.model_copy(update={"verify": verify})})
    return tools.corpus({"a": [docs[: cuts[0]], docs[cuts[0] : cuts[1]]], "b": [docs[cuts[1] :]]}, dedup=dedup)


def compared(corpus: Corpus, partition_rows: int, **given: Any) -> Any:
    inputs = (corpus.dedup, corpus.documents, corpus.signatures, corpus.exact)
    return minhash.run(corpus.ctx, *inputs, partition_rows=partition_rows, **given)


def tiny_limits(patch: pytest.MonkeyPatch) -> None:
    """Limits at which a corpus of a test has many pieces, crowds, runs and heavy keys."""
    patch.setattr(sorted_runs, "BLOCK_ROWS", 4)
    patch.setattr(run_tree, "MOST_RUNS", 3)
    patch.setattr(run_tree, "MERGE_ROWS", 16)
    patch.setattr(run_tree, "CHUNK_ROWS", 16)
    patch.setattr(components, "CHUNK_ROWS", 64)
    for module in (candidates, crowds, large, payloads):
        patch.setattr(module, "CHUNK_ROWS", 16)
    patch.setattr(candidates, "ROUTE_ROWS", 200)
    patch.setattr(large, "CLUSTER_ROWS", 16)
    patch.setattr(crowds, "ORDER_ROWS", 30)
    patch.setattr(sample, "POOL", 40)


def watch(patch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Tasks of a function in this process."""
    tasks, original = list[Any](), getattr(module, name)
    patch.setattr(module, name, lambda store, task: tasks.append(task) or original(store, task))
    return tasks


@pytest.mark.exhaustive
@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 90),
    st.sampled_from([7, 40, 1000]),
    st.sampled_from(["text", "signature"]),
    st.sampled_from([0, 20]),
    st.booleans(),
)
def test_any_pieces_give_the_bytes_of_one_task(
    tmp_path_factory: Any, seed: int, partition_rows: int, span: int, verify: Any, key_bits: int, known: bool
) -> None:
    tools = Tools(Context(Workspace(tmp_path_factory.mktemp("pieces")).ensure()))
    with pytest.MonkeyPatch.context() as patch:
        tiny_limits(patch)
        corpus = linked(tools, random.Random(seed), 120, verify)
        whole = corpus.through_near()
        patch.setattr(candidates, "KEY_BITS", key_bits)
        if not known:  # or else the similarities of the first run are looked up
            patch.setattr(StepCache, "get", lambda cache, key: None)
        assert compared(corpus, partition_rows, span=span).digest == whole.digest


@pytest.mark.parametrize(
    ("known", "workers"), [*(pytest.param(False, n, marks=pytest.mark.exhaustive) for n in (0, 2)), (True, 0)]
)
def test_pieces_crowds_and_a_cluster_that_exceeds_a_task_give_the_bytes_of_one_task(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, known: bool, workers: int
) -> None:
    if not workers:  # which import the modules anew
        tiny_limits(monkeypatch)
    corpus = linked(tiny, random.Random(1), 150)
    whole = corpus.through_near()
    assert workers or whole.stats["largest_cluster"] > 2 * large.CLUSTER_ROWS
    monkeypatch.setattr(candidates, "KEY_BITS", 0)
    if not known:  # or else the similarities of the first run are looked up
        monkeypatch.setattr(StepCache, "get", lambda cache, key: None)
    if workers:
        with LocalEngine(workers) as tiny.ctx.engine:
            assert compared(corpus, 45).digest == whole.digest
        return
    links, written = watch(monkeypatch, minhash, "_link"), watch(monkeypatch, large, "_members")
    assert compared(corpus, 45).digest == whole.digest
    pieces = [link.compared.piece for link in links]
    assert sum(piece.crowd is not None for piece in pieces) > 4
    assert sum(piece.is_partial and piece.crowd is None for piece in pieces) > 10
    assert any(piece.without for piece in pieces)
    assert {task.heavy for task in written} == {False, True}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_pieces_cost_no_more_per_document_in_a_larger_component(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that pieces read from sorted runs and from columns, at 1, 2, 4 and 8 times as many documents."""
    counts, take = [], sidecars.Column.take
    for times in (1, 2, 4, 8):
        tools = Tools(Context(Workspace(tmp_path / str(times)).ensure()))
        with monkeypatch.context() as patch:
            tiny_limits(patch)
            corpus = linked(tools, random.Random(1), 40 * times, "signature")
            corpus.through_exact()
            corpus.sign()
            rows = rows_in_memory(patch, (minhash, "_link"), (payloads, "_place"))
            patch.setattr(sidecars.Column, "take", lambda *given, rows=rows: rows.append(given[2].size) or take(*given))
            links = watch(patch, minhash, "_link")
            compared(corpus, 33)
        assert sum(link.compared.piece.is_partial for link in links) >= 8 * times
        counts.append(sum(rows))
    assert float(np.polyfit(np.log([1, 2, 4, 8]), np.log(counts), 1)[0]) < 1.1, counts


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_size_of_a_component_does_not_decide_how_much_a_task_holds(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, tasks = [], [(minhash, "_link"), (large, "_members"), (large, "_rank"), (large, "_draw"), (crowds, "_weigh")]
    tasks += [(crowds, "_order"), (candidates, "_divide"), (components, "_fold"), (run_tree, "_merge_level")]
    for documents in (50, 200):
        with monkeypatch.context() as patch:
            tiny_limits(patch)
            corpus = linked(tiny, random.Random(2), documents)
            corpus.through_near()
            patch.setattr(StepCache, "get", lambda cache, key: None)
            rows = rows_in_memory(patch, *tasks)
            made = compared(corpus, 35, span=20)
        assert made.digest == corpus.near.digest
        assert made.stats["largest_cluster"] >= documents // 4
        assert made.stats["candidates"] > 0.9 * documents
        most.append(max(rows))
    assert max(most) <= 12 * 40  # pairs that a piece compares; one task would compare thousands


SCRIPT = """
import os, random, signal, sys
from pathlib import Path
import tests.plinth.corpus.dedup.near.test_large as test
from plinth.compute import context

ran, kill_at = [0], int(sys.argv[2])
original = context.measured

def measured(fn, store, task):
    ran[0] += 1
    if ran[0] == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(fn, store, task)

tools = test.Tools(test.Context(test.Workspace(Path(sys.argv[1])).ensure()))
corpus = test.linked(tools, random.Random(3), 100)
corpus.through_exact()
for bucket, documents in corpus.documents.items():
    made = test.minhash.signatures(tools.ctx, bucket, corpus.dedup.minhash, documents)
    corpus.__dict__.setdefault("signatures", {})[bucket] = made
context.measured = measured
print(ran[0], test.compared(corpus, 40).digest, ran[0])
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    def run(workspace: str, kill_at: int) -> Any:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / workspace), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[5])

    _, digest, total = run("whole", 0).stdout.split()
    done, kills = None, 0
    while done is None:
        killed = run("killed", int(total) // 6)  # tasks that were done are not repeated, so six times are enough
        if killed.returncode:
            assert killed.returncode == -signal.SIGKILL
            kills += 1
        else:
            done = killed.stdout.split()
    assert done[1] == digest
    assert 5 <= kills <= 7


def pairs(
    ctx: Context, groups: Sequence[Sequence[int]], ids: Any, partition_rows: int, weigh: bool
) -> tuple[set[int], int]:
    """Keys of the pairs that all pieces compare if no two documents are similar, and the number of pieces of crowds."""
    weight = 1 + 7 * weigh * (ids[:, 2] % 2)
    rows = sorted((key, at) for key, group in enumerate(groups) for at in set(group))
    key, at = np.array(rows, dtype=np.uint64).T
    shared = candidates.write_shared(ctx.store, (key * np.uint64(2**58 + 12345)), at)
    weights = sidecars.Column.of(ctx.store, [sidecars.write(ctx.store, "weights", weight.astype("<u4"))], "<u4")
    found = candidates.find(ctx, "test", [shared], len(ids), partition_rows, 64, weights if weigh else None)
    ranks = sidecars.Column.of(ctx.store, [sidecars.write(ctx.store, "ranks", ids)], "<u8", 3)
    made, _, _ = crowds.pieces(ctx, "test", found, ranks, 2**60)
    compared = set[int]()
    for piece in made:
        key, at = piece.read(ctx.store)
        documents = np.unique(at)
        if piece.crowd:  # its own documents, the next ones and the smallest one
            assert weight[documents].sum() <= 3 * max(partition_rows, 32) + weight.max() * (crowds.NEIGHBOURS + 1)
        assert at.size <= 2 * max(partition_rows, 32) + crowds.NEIGHBOURS or not piece.is_partial
        high, low, _ = np.ascontiguousarray(ranks.take(ctx.store, documents).T)
        links = Links(key, np.searchsorted(documents, at), high, low, 0.5, piece.all_pairs)
        values = np.arange(1, documents.size + 1, dtype=np.uint64)
        payload = Payload(np.arange(documents.size), np.ones(documents.size, np.int64), values)
        compared |= set(links.walk(SETS, payload=payload)[0].tolist())
    return compared, sum(piece.crowd is not None for piece in made)


def assert_same_pairs(
    ctx: Context, sizes: Sequence[tuple[int, int]], partition_rows: int, key_bits: int, weigh: bool
) -> None:
    """Groups of a few documents and crowds of many (sizes and seeds), which all have a document in common."""
    groups = [[0, *random.Random(seed).sample(range(300), size)] for size, seed in sizes]
    ids = np.random.default_rng(sizes[0][1]).integers(0, 2**63, (300, 3), dtype=np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        tiny_limits(patch)
        patch.setattr(candidates, "KEY_BITS", key_bits)
        whole, none = pairs(ctx, groups, ids, 10_000, False)
        pieces, divided = pairs(ctx, groups, ids, partition_rows, weigh)
    assert pieces == whole
    assert none == 0
    assert divided or max(sizes)[0] < 2 * max(partition_rows, 32)


@pytest.mark.parametrize(("key_bits", "weigh"), [(0, False), (20, True)])
def test_pieces_compare_the_pairs_of_the_whole(tiny: Any, key_bits: int, weigh: bool) -> None:
    assert_same_pairs(tiny.ctx, [(5, 1), (33, 2), (250, 3), (90, 4)], 33, key_bits, weigh)


@pytest.mark.exhaustive
@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(2, 250), st.integers(0, 2**32)), min_size=1, max_size=6),
    st.sampled_from([1, 33, 60, 100]),
    st.sampled_from([0, 20]),
    st.booleans(),
)
def test_any_pieces_compare_the_pairs_of_the_whole(
    tmp_path_factory: Any, sizes: list[tuple[int, int]], partition_rows: int, key_bits: int, weigh: bool
) -> None:
    ctx = Context(Workspace(tmp_path_factory.mktemp("pairs")).ensure())
    assert_same_pairs(ctx, sizes, partition_rows, key_bits, weigh)
