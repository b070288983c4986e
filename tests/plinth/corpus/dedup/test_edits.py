"""Code shared by the later stages: statistics by reason, cuts on characters, and resuming after a crash."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.compute.engine import InlineEngine, LocalEngine
from plinth.corpus.curate import apply_edits
from plinth.corpus.dedup import edits, lines, semantic, substring
from plinth.corpus.dedup.parameters import LineParameters, Remainder, Semantic, Substring
from plinth.records import Manifest
from plinth.storage.workspace import Workspace

LOOSE = {"min_words": 0, "min_share": 0.0}
STAGES: dict[str, Callable[[Any], Manifest]] = {
    "lines": lambda c: lines.run(
        c.ctx, LineParameters(min_characters=20, **LOOSE), c.documents, c.exact, range_rows=40
    ),
    "substring": lambda c: substring.run(c.ctx, Substring(min_tokens=8, **LOOSE), c.documents, c.exact, range_rows=400),
    "semantic": lambda c: semantic.run(
        c.ctx, Semantic(buckets=("a", "b"), threshold=0.6, min_words=5), c.documents, c.exact, range_rows=40
    ),
}


def corpus(tiny: Any) -> Any:
    """Documents of lines that repeat, with letters of all widths."""
    rng = random.Random(4)
    pool = [
        " ".join(rng.choice(["naïve", "日本", "😀x", "плохо", "word"]) + str(rng.randrange(50)) for _ in range(9))
        for _ in range(25)
    ]
    docs = [tiny.Doc("\n".join(rng.choice(pool) for _ in range(8)) + f"\n{n}", str(n)) for n in range(24)]
    made = tiny.corpus({"a": [docs[:9], docs[9:14]], "b": [docs[14:]]})
    made.through_exact()
    return made


class Crashing(InlineEngine):
    """Does one task at each call, then dies."""

    def __init__(self) -> None:
        self.done = 0

    def map(self, fn: Any, tasks: Sequence[Any], *, done: Any = None, **limits: Any) -> Iterator[Any]:
        for index, task in enumerate(tasks):
            result = fn(task)
            self.done += 1
            done(index, result)
            if index + 1 < len(tasks):
                raise KeyboardInterrupt
            yield result


class Counting(InlineEngine):
    """Counts tasks."""

    def __init__(self) -> None:
        self.done = 0

    def map(self, fn: Any, tasks: Sequence[Any], **options: Any) -> Iterator[Any]:
        self.done += len(tasks)
        yield from super().map(fn, tasks, **options)


@pytest.mark.parametrize("stage", STAGES)
def test_a_crash_costs_only_the_task_it_was_on(tiny: Any, tmp_path: Path, stage: str) -> None:
    whole = corpus(tiny)
    counting = whole.ctx.engine = Counting()
    expected = STAGES[stage](whole)
    other = corpus(type(tiny)(Context(Workspace(tmp_path / "other").ensure())))
    crashing = other.ctx.engine = Crashing()
    for _ in range(counting.done + 1):
        try:
            made = STAGES[stage](other)
            break
        except KeyboardInterrupt:
            continue
    assert made.digest == expected.digest
    assert crashing.done == counting.done


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_bytes_with_two_workers(tiny: Any, tmp_path: Path, two_workers: LocalEngine, stage: str) -> None:
    two = corpus(type(tiny)(Context(Workspace(tmp_path / "two").ensure(), engine=two_workers)))
    assert STAGES[stage](two).digest == STAGES[stage](corpus(tiny)).digest


@pytest.mark.parametrize("stage", ["lines", "substring"])
def test_cuts_are_on_characters_and_counted_to_the_byte(tiny: Any, stage: str) -> None:
    made = corpus(tiny)
    sidecar = STAGES[stage](made)
    rows = made.rows(sidecar)
    removed = 0
    for doc in (doc for parts in made.buckets.values() for docs in parts for doc in docs):
        row = rows[doc.id]
        left = apply_edits(doc.text, row["edits"])
        assert row["text_bytes"] == len(doc.text.encode())
        assert row["removed_bytes"] == row["text_bytes"] - len(left.encode())
        removed += row["removed_bytes"]
        assert set(left.split()) <= set(doc.text.split())  # whole words
    stats = sidecar.stats
    assert stats["removed_bytes"] == sum(stats["span_bytes"].values()) == removed > 0
    assert stats["edits"] == sum(stats["spans"].values())
    for name in edits.STATS:
        assert stats[name] == sum(bucket[name] for bucket in stats["buckets"].values())


def test_too_little() -> None:
    params = Remainder(min_words=10, min_share=0.5)
    edited = np.array([True, True, True, False])
    words, left, size = np.array([9, 10, 10, 0]), np.array([50, 50, 49, 0]), np.array([100, 100, 100, 100])
    assert edits.too_little(params, edited, words, left, size).tolist() == [True, False, True, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_groups_of_equal_keys_are_stable_though_halves_collide(pairs: list[tuple[int, int]]) -> None:
    key, low = (np.array(column, dtype=np.uint64) for column in (zip(*pairs, strict=True) if pairs else ([], [])))
    order, starts = edits.equal_keys(key, low)
    assert sorted(order.tolist()) == list(range(len(pairs)))
    groups = [order[a:b].tolist() for a, b in pairwise(starts)]
    assert all(group == sorted(group) and len({pairs[i] for i in group}) == 1 for group in groups)
    assert len(groups) == len(set(pairs))
