"""Exact duplicates: hand-worked clusters, survivors, and independence of order."""

import random
from functools import partial
from typing import Any

import pytest

from plinth.corpus.dedup import clusters, exact, run_tree, sorted_runs
from plinth.corpus.dedup.near import candidates
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.dedup.sorted_runs import SortedRun
from plinth.errors import IntegrityError
from plinth.storage.state import StepCache

TEXTS = ["The cat  sat.", "the cat sat.", "THE\tCAT\nSAT.  ", "the cat sat", "Ünïcode Ж", "ünïcode ж", "", "  "]


def test_equal_but_for_case_and_space_hand_worked(tiny: Any) -> None:
    docs = [tiny.Doc(text, name=f"{i}") for i, text in enumerate(TEXTS)]
    corpus = tiny.corpus({"a": [docs[:3]], "b": [docs[3:5], docs[5:]]})
    made = corpus.through_exact()
    rows = corpus.rows(made)
    groups = [[0, 1, 2], [3], [4, 5], [6, 7]]
    for group in groups:
        smallest = min(docs[i].id for i in group)
        longest = max(len(docs[i].text.encode()) for i in group)
        winner = min(docs[i].id for i in group if len(docs[i].text.encode()) == longest)
        for i in group:
            expected = {
                "considered": True,
                "cluster": smallest,
                "size": len(group),
                "survivor": docs[i].id == winner,
                "text_bytes": len(docs[i].text.encode()),
            }
            assert rows[docs[i].id] == expected
    assert (made.stats["considered"], made.stats["survivors"], made.stats["clusters"]) == (8, 4, 3)
    assert made.stats["largest_cluster"] == 3
    assert made.stats["buckets"]["b"]["considered"] == 5


def test_what_the_policy_drops_is_no_reason_to_drop_another(tiny: Any) -> None:
    docs = [
        tiny.Doc("same text but longer ", name="dropped", fired=("short",)),
        tiny.Doc("same text but longer", name="kept"),
    ]
    corpus = tiny.corpus({"a": [docs]})
    rows = corpus.rows(corpus.through_exact())
    assert rows[docs[1].id]["survivor"]
    assert rows[docs[1].id]["size"] == 1
    dropped = rows[docs[0].id]
    assert dropped["considered"] is False
    assert dropped["cluster"] is None
    assert dropped["size"] == 0
    assert not dropped["survivor"]


@pytest.mark.parametrize("keep", ["longest", "smallest_id"])
def test_order_of_parts_and_size_of_ranges_do_not_matter(tiny: Any, keep: str) -> None:
    picks = random.Random(1)
    docs = [tiny.Doc(picks.choice("abc") + " " * picks.randrange(3), name=str(i)) for i in range(60)]
    results = []
    for seed, range_rows in ((1, 1000), (2, 7), (3, 1)):
        random.Random(seed).shuffle(docs)
        parts = [docs[:10], docs[10:11], [], docs[11:]]
        corpus = tiny.corpus({"a": parts[:seed], "z": parts[seed:]}, dedup=Dedup(keep=keep), range_rows=range_rows)
        rows = corpus.rows(corpus.through_exact())
        results.append({identity: (row["cluster"], row["size"], row["survivor"]) for identity, row in rows.items()})
    assert results[0] == results[1] == results[2]
    clusters = {cluster for cluster, _, _ in results[0].values()}
    survivors = [cluster for cluster, _, survivor in results[0].values() if survivor]
    assert sorted(survivors) == sorted(clusters)  # one each, none without


def test_ranks_are_read_of_duplicates_only(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most documents have no duplicates, and the table of ranks is on disk."""
    docs = [tiny.Doc(text, name=str(i)) for i, text in enumerate(["a", "b", "A", "c", "B ", "d"])]
    corpus, asked, original = tiny.corpus({"a": [docs]}), [], clusters.write_members

    def recording(store: Any, at: Any, group: Any, ranks: Any) -> Any:
        asked.append(at.tolist())
        return original(store, at, group, ranks)

    monkeypatch.setattr(clusters, "write_members", recording)
    assert corpus.through_exact().stats["clusters"] == 2
    assert asked == [[0, 1, 2, 4]]


def rows_in_memory(monkeypatch: pytest.MonkeyPatch, *functions: tuple[Any, str]) -> list[int]:
    """Numbers of rows that task functions (module, name) read or write at once, in small chunks."""
    monkeypatch.setattr(run_tree, "HEAVY_ROWS", 32)
    monkeypatch.setattr(run_tree, "MERGE_ROWS", 8)
    monkeypatch.setattr(run_tree, "CHUNK_ROWS", 8)
    rows, watching, read, write = [0], [False], SortedRun._blocks, sorted_runs.write

    def reading(run: SortedRun, first: int, last: int) -> Any:
        columns = read(run, first, last)
        rows.append(columns[0].size * watching[0])
        return columns

    def writing(store: Any, name: str, kind: str, chunks: Any, *given: Any, **named: Any) -> Any:
        chunks = list(chunks)
        rows.extend(len(chunk[0]) for chunk in chunks if watching[0])
        return write(store, name, kind, chunks, *given, **named)

    def watched(function: Any, store: Any, task: Any) -> Any:
        watching[0] = True
        try:
            return function(store, task)
        finally:
            watching[0] = False

    monkeypatch.setattr(SortedRun, "_blocks", reading)
    monkeypatch.setattr(sorted_runs, "write", writing)
    for module, name in functions:
        monkeypatch.setattr(module, name, partial(watched, getattr(module, name)))
    return rows


@pytest.mark.parametrize("module", [exact, candidates])
def test_the_largest_group_does_not_decide_how_much_a_task_holds(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    """Many copies, and look-alikes that differ in their last word, next to documents of their own."""
    monkeypatch.setattr(sorted_runs, "BLOCK_ROWS", 4)
    monkeypatch.setattr(run_tree, "MOST_RUNS", 2)
    picks, most = random.Random(3), []
    for copies in (60, 600):
        page = " ".join(f"w{i}" for i in range(90))
        texts = [page] * copies if module is exact else [f"{page} {i}" for i in range(copies)]
        docs = [tiny.Doc(text, name=str(i)) for i, text in enumerate([*texts, *(f"{i} own" for i in range(60))])]
        picks.shuffle(docs)
        corpus = tiny.corpus({"a": [docs[:11], docs[11:25]], "z": [docs[25:]]}, dedup=Dedup(keep="longest"))
        whole = corpus.through_exact() if module is exact else corpus.through_near()
        with monkeypatch.context() as patch:
            patch.setattr(StepCache, "get", lambda cache, key: None)
            rows = rows_in_memory(patch, (module, "_group"), (run_tree, "_merge"))
            again = corpus.through_exact() if module is exact else corpus.through_near()
        assert again.digest == whole.digest
        assert whole.stats["largest_cluster"] == copies
        most.append(max(rows))
    assert max(most) <= 32


def test_a_foreign_policy_is_refused(tiny: Any) -> None:
    corpus = tiny.corpus({"a": [[tiny.Doc("x")]]})
    corpus.policies = tiny.corpus({"a": [[tiny.Doc("x"), tiny.Doc("y")]]}).policies
    with pytest.raises(IntegrityError, match="policy of bucket a"):
        corpus.through_exact()
