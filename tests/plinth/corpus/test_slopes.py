"""Costs against the number of parts, at 1, 2, 4 and 8 times as many: files opened, files written, look-ups in the step
cache, digests that keys are made of, bytes of tasks. A cost that grows with the square of the parts shows here."""

import hashlib
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import InlineEngine, LocalEngine
from plinth.corpus.dedup import clusters, run_merge
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.corpus.documents.repeats import drop_repeats
from plinth.corpus.sources.cuts import cutter
from plinth.corpus.sources.record import SEEN_BEFORE
from plinth.records import REJECT_SCHEMA, Step
from plinth.storage import listing
from plinth.storage.parts import write_batches
from plinth.storage.steps import StepCache
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from tests.plinth.corpus.conftest import Corpus, Doc

TIMES = (1, 2, 4, 8)
#: Parts at the least size: above every limit below, so that no cost hides under one.
PARTS = 8
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
    """Of the logarithm of a count over the logarithm of the size."""
    return float(np.polyfit(np.log(TIMES), np.log([one[label] for one in counts]), 1)[0])


def require_linear(counts: list[Counter[str]]) -> None:
    slopes = {label: round(slope(counts, label), 2) for label in counts[0]}
    assert all(value <= MOST_SLOPE for value in slopes.values()), (slopes, counts)


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
        made.append([Doc(" ".join(words), f"{part}-{i}") for i, words in enumerate(texts)])
    return made


def test_deduplication_costs_no_more_per_part_where_there_are_more_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_merge, "MOST_RUNS", 4)
    monkeypatch.setattr(run_merge, "FAN", 4)
    monkeypatch.setattr(clusters, "GATHER_SLOTS", 2)
    monkeypatch.setattr(minhash, "PARTITION_ROWS", (8, 8))
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


def test_repeats_of_a_snapshot_cost_no_more_per_part_where_there_are_more_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_merge, "MOST_RUNS", 4)
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
def test_an_inventory_reads_what_is_much_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: int) -> None:
    """This process lists and remembers; it opens no file of a source that is larger than `HERE_BYTES`."""
    for number in range(40):
        (tmp_path / f"{number:02d}.jsonl").write_text(f'{{"text": "{number}"}}\n' * 50)
    monkeypatch.setattr(listing, "HERE_BYTES", here)
    monkeypatch.setattr(listing, "BATCH_FILES", 8)
    opened: list[str] = []
    original = listing.open_stream
    monkeypatch.setattr(listing, "open_stream", lambda fs, *given: opened.append(given[0]) or original(fs, *given))
    with LocalEngine(2) as engine:
        found = listing.inventory(
            str(tmp_path), tmp_path, cutter=partial(cutter, "jsonl", piece_bytes=200), spread=engine.map
        )
    assert [one.sha256 for one in found] == [
        hashlib.sha256((tmp_path / f"{number:02d}.jsonl").read_bytes()).hexdigest() for number in range(40)
    ]
    assert all(len(one.pieces) > 1 for one in found)
    assert len(opened) == (40 if here else 0)
