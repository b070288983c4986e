"""Costs against the number of parts, at 1, 2, 4 and 8 times as many: files opened, files written, look-ups in the step
cache, digests that keys are computed from, bytes of tasks. A cost that grows with the square of the parts shows
here."""

import hashlib
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context, manifest
from plinth.compute.engine import InlineEngine, LocalEngine
from plinth.corpus.dedup import clusters, lines, run_tree, semantic, substring
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup, LineParameters, MinHash, Semantic, Substring
from plinth.corpus.documents.removal import drop_repeats
from plinth.corpus.protected import contamination, holdout, protected
from plinth.corpus.protected.parameters import Holdout, Protected, ProtectedSet
from plinth.corpus.sources.inventory import cutter
from plinth.corpus.sources.record import SEEN_BEFORE
from plinth.records import Step
from plinth.storage import listing
from plinth.storage.parts import REJECT_SCHEMA, write_batches, write_table
from plinth.storage.state import StepCache
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from tests.plinth.corpus.conftest import Corpus, Doc

TIMES = (1, 2, 4, 8)
#: Parts at the least size: above every limit below, so that no cost hides under one.
PARTS = 6
MOST_SLOPE = 1.1
STATS = {"stats": {"documents": 8, "text_bytes": 100, "source_bytes": 100}}
NO_REJECTS = {"rejects": {}, "rejected_bytes": 0}


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()

    def count(kind: type, name: str, label: str, size: Callable[..., int] = lambda *given: 1) -> None:
        original = getattr(kind, name)

        def counting(*given: Any, **named: Any) -> Any:
            counts[label] += size(*given)
            return original(*given, **named)

        patch.setattr(kind, name, counting)

    with monkeypatch.context() as patch:
        count(Store, "open_path", "opened")
        count(Store, "put_file", "written")
        count(StepCache, "get", "looked up")
        count(Step, "key", "digests in keys", lambda step, inputs: sum(len(one) for one in inputs) // 64)
        count(InlineEngine, "map", "bytes of tasks", lambda engine, fn, tasks: sum(len(pickle.dumps(t)) for t in tasks))
        yield counts


def slope(counts: list[Counter[str]], label: str) -> float:
    """Return the slope of the logarithm of a count over the logarithm of the size."""
    return float(np.polyfit(np.log(TIMES), np.log([one[label] for one in counts]), 1)[0])


def require_linear(counts: list[Counter[str]]) -> None:
    slopes = {label: round(slope(counts, label), 2) for label in counts[0]}
    assert all(value <= MOST_SLOPE for value in slopes.values()), (slopes, counts)


def lines_of(words: list[str]) -> str:
    return "\n".join(" ".join(words[first : first + 20]) for first in range(0, len(words), 20))


def documents(parts: int) -> list[list[Doc]]:
    """Four documents a part: two of a cluster over three parts, one equal to another part's, one alone."""
    picks = random.Random(parts)
    made: list[list[Doc]] = []
    for part in range(parts):
        page = [f"w{part // 3}-{i}" for i in range(60)]
        edited = [*page[:58], *(f"{picks.getrandbits(40):x}" for _ in range(2))]
        alone = [f"{picks.getrandbits(40):x}" for _ in range(60)]
        same = [f"same{part // 2}-{i}" for i in range(20)]
        texts = (page[: 60 - part % 3], edited, alone, same)
        made.append([Doc(lines_of(words), f"{part}-{i}") for i, words in enumerate(texts)])
    return made


@pytest.mark.exhaustive
def test_deduplication_costs_no_more_per_part_where_there_are_more_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tree, "MOST_RUNS", 4)
    monkeypatch.setattr(run_tree, "LEVEL_FAN", 4)
    monkeypatch.setattr(clusters, "GATHER_SLOTS", 2)
    monkeypatch.setattr(minhash, "PARTITION_ROWS", (8, 8))
    monkeypatch.setitem(minhash.run.__kwdefaults__, "span", 4)
    counts = []
    for times in TIMES:
        ctx = Context(Workspace(tmp_path / str(times)).ensure())
        corpus = Corpus(
            ctx, {"web": documents(PARTS * times)}, dedup=Dedup(minhash=MinHash(bands=20, rows=4)), range_rows=64
        )
        with counted(monkeypatch) as found:
            near = corpus.through_near()
        assert near.stats["clusters"] >= PARTS * times // 4
        counts.append(found)
    require_linear(counts)


def by_given_vectors(ctx: Context, params: Semantic, documents: Any, before: Any, *, range_rows: int) -> Any:
    """A file of vectors for every part, of which the first two documents share one."""
    rng, files = np.random.default_rng(1), []
    for number, part in enumerate(documents["web"].parts):
        rows = rng.standard_normal((part.rows, 8))
        rows[1] = rows[0]
        table = pa.table({"uri": [f"test:{number}-{i}" for i in range(part.rows)], "embedding": list(rows)})
        files.append(write_table(ctx.store, f"{number}.parquet", table))
    vectors = manifest("lists/mine", Step(name="lists", version="1"), {}, files)
    return semantic.run(ctx, params, documents, before, vectors=vectors, range_rows=range_rows)


LATER: dict[str, Any] = {
    "lines": (lines.run, LineParameters(min_characters=10)),
    "substring": (substring.run, Substring(min_tokens=12, min_words=0, min_share=0)),
    "semantic": (semantic.run, Semantic(buckets=("web",), min_words=10, threshold=0.98)),
    "vectors": (by_given_vectors, Semantic(buckets=("web",), vectors="mine", threshold=0.98)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LATER)
def test_what_comes_after_near_duplicates_costs_no_more_per_part_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(run_tree, "MOST_RUNS", 4)
    monkeypatch.setattr(run_tree, "LEVEL_FAN", 4)
    monkeypatch.setattr(clusters, "GATHER_SLOTS", 2)
    counts, (run, params) = [], LATER[name]
    for times in TIMES:
        ctx = Context(Workspace(tmp_path / str(times)).ensure())
        corpus = Corpus(ctx, {"web": documents(PARTS * times)})
        before = corpus.through_exact()
        with counted(monkeypatch) as found:
            made = run(ctx, params, corpus.documents, before, range_rows=128)
        assert made.stats.get("edits", made.stats.get("removed")) >= PARTS * times // 4
        counts.append(found)
    require_linear(counts)


@pytest.mark.exhaustive
def test_held_out_and_protected_text_cost_no_more_per_part_where_there_are_more_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tree, "MOST_RUNS", 4)
    monkeypatch.setattr(run_tree, "LEVEL_FAN", 4)
    given = ProtectedSet(path="quiz.jsonl")
    counts = []
    for times in TIMES:
        ctx = Context(Workspace(tmp_path / str(times)).ensure())
        corpus = Corpus(ctx, {"web": documents(PARTS * times)}, holdout_params=Holdout(fraction=0.3), range_rows=64)
        near = corpus.through_exact()
        item = json.dumps({"text": " ".join(f"w0-{i}" for i in range(40))})
        (ctx.workspace.input / given.path).write_text(item)
        read = {"quiz": protected.read_set(ctx, "quiz", given)}
        with counted(monkeypatch) as found:
            corpus.holdout = holdout.run(ctx, corpus.holdout_params, corpus.documents, near)
            contamination.run(ctx, corpus.contamination_params, corpus.documents, near, corpus.holdout)
            protected.run(ctx, Protected(sets={"quiz": given}), corpus.documents, near, corpus.holdout, read)
        assert corpus.holdout.stats["held_out"] >= PARTS * times // 4
        counts.append(found)
    require_linear(counts)


def test_repeats_of_a_snapshot_cost_no_more_per_part_where_there_are_more_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tree, "MOST_RUNS", 4)
    monkeypatch.setattr(clusters, "GATHER_SLOTS", 2)
    counts = []
    for times in TIMES:
        ctx = Context(Workspace(tmp_path / str(times)).ensure())
        # Every second part is one that came before, but for one document.
        parts = [[Doc(f"{(part // 2) * 8 + i if i else -part}") for i in range(8)] for part in range(PARTS * times)]
        made = Corpus(ctx, {"web": parts}).documents["web"].parts
        rejects = write_batches(ctx.store, "rejects.parquet", REJECT_SCHEMA, [], stats=NO_REJECTS)
        with counted(monkeypatch) as found:
            kept = drop_repeats(ctx, "web", [(part.model_copy(update=STATS), rejects) for part in made], range_rows=64)
        assert [part.rows for part, _ in kept] == [8, 1] * (PARTS * times // 2)
        assert [part.stats["rejects"].get(SEEN_BEFORE, 0) for _, part in kept] == [0, 7] * (PARTS * times // 2)
        counts.append(found)
    require_linear(counts)


@pytest.mark.parametrize("here", [0, 1 << 30])
def test_an_inventory_reads_what_is_much_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_workers: LocalEngine, here: int
) -> None:
    """This process lists and remembers; it opens no file of a source that is larger than `HERE_BYTES`."""
    for number in range(40):
        (tmp_path / f"{number:02d}.jsonl").write_text(f'{{"text": "{number}"}}\n' * 50)
    monkeypatch.setattr(listing, "HERE_BYTES", here)
    monkeypatch.setattr(listing, "BATCH_FILES", 8)
    opened: list[str] = []
    original = listing.open_stream
    monkeypatch.setattr(listing, "open_stream", lambda fs, *given: opened.append(given[0]) or original(fs, *given))
    found = listing.inventory(
        str(tmp_path), tmp_path, cutter=partial(cutter, "jsonl", piece_bytes=200), spread=two_workers.map
    )
    assert [one.sha256 for one in found] == [
        hashlib.sha256((tmp_path / f"{number:02d}.jsonl").read_bytes()).hexdigest() for number in range(40)
    ]
    assert all(len(one.pieces) > 1 for one in found)
    assert len(opened) == (40 if here else 0)
