"""Costs against the number of parts, at 1, 2, 4 and 8 times as many: files opened, files written, look-ups in the step
cache, digests that keys are made of, bytes of tasks. A cost that grows with the square of the parts shows here."""

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import InlineEngine
from plinth.corpus.dedup import clusters, run_merge
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.records import Step
from plinth.storage.steps import StepCache
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from tests.plinth.corpus.conftest import Corpus, Doc

TIMES = (1, 2, 4, 8)
#: Parts at the least size: above every limit below, so that no cost hides under one.
PARTS = 16
MOST_SLOPE = 1.1


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
    print(slopes, counts)
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
