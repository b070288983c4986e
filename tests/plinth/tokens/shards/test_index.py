from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.tokens.shards import index
from plinth.tokens.shards.index import DocumentIndex, write_index


def _part(ctx: Context, number: int, start: int, lengths: np.ndarray) -> Part:
    count = len(lengths)
    ids = pa.array([bytes([number]) + row.to_bytes(15, "big") for row in range(count)], pa.binary(16))
    columns = (
        start + np.cumsum(lengths) - lengths,
        lengths,
        np.full(count, number, "<i4"),
        np.arange(count, dtype="<i4"),
    )
    stats = {"start": start, "tokens": int(lengths.sum()), "parts": [number, number]}
    return write_index(ctx.store, f"index-{number:05d}.arrow", [ids, *map(pa.array, columns)], stats)


def _skewed() -> list[np.ndarray]:
    """Lengths by part: heavy tails, and ten thousand of one token before a few that are huge."""
    random = np.random.default_rng(0)
    made = [(random.pareto(0.7, rows) * 3).astype(np.int64) % 100_000 + 1 for rows in (3, 5000, 1, 20_000, 700)]
    made[3][:15_000] = 1
    made[3][-3:] = 10**9
    return made


@pytest.mark.exhaustive
def test_search_finds_what_a_plain_search_of_all_finds(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BATCH_DOCUMENTS", 900)
    lengths = _skewed()
    every = np.concatenate(lengths)
    starts = np.cumsum(every) - every
    firsts = np.cumsum([0, *(int(own.sum()) for own in lengths)])
    parts = [_part(ctx, i, int(firsts[i]), own) for i, own in enumerate(lengths)]
    found, random, total = DocumentIndex(ctx.store, parts), np.random.default_rng(1), int(firsts[-1])
    edges = np.concatenate([starts[random.integers(0, len(starts), 500)], firsts[:-1]])
    begins = np.concatenate([random.integers(0, total - 1, 300), edges, np.maximum(edges - 1, 0), [total - 1]])
    stops = np.minimum(begins + random.integers(1, 9000, len(begins)), total)
    owners, spans = found.within(begins, stops)
    low, high = np.searchsorted(starts, begins, side="right") - 1, np.searchsorted(starts, stops, side="left")
    assert np.array_equal(np.bincount(owners, minlength=len(begins)), high - low)
    expected = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
    assert np.array_equal(spans.starts, starts[expected])
    assert np.array_equal(spans.tokens, every[expected])
    numbers = np.searchsorted(firsts, starts[expected], side="right") - 1
    assert np.array_equal(spans.parts, numbers)
    assert [record.id for record in spans.records()[:50]] == [
        (bytes([part]) + row.to_bytes(15, "big")).hex()
        for part, row in zip(spans.parts[:50], spans.rows.tolist(), strict=False)
    ]
    assert np.array_equal(np.concatenate([own.tokens for own in found.batches()]), every)


def test_mapped_files_hold_no_descriptor_and_end_with_their_arrays(ctx: Context) -> None:
    import os

    parts = [_part(ctx, number, 0, np.array([5, 6])) for number in range(40)]
    before = len(os.listdir("/proc/self/fd"))
    opened = [index.open_part(ctx.store, part) for part in parts]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [int(own.parts[1]) for own in opened] == list(range(40))
    held = opened[7].tokens
    del opened
    assert held.tolist() == [5, 6]
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 1


def test_what_is_no_index_is_refused(ctx: Context) -> None:
    part = _part(ctx, 0, 0, np.array([5, 6]))
    plain = part.model_copy(update={"stats": {"start": 0, "tokens": 11, "parts": [0, 0]}})
    for read in (lambda own: own.part(0), lambda own: own.within(np.array([0]), np.array([1]))):
        with pytest.raises(IntegrityError, match="not an index of documents"):
            read(DocumentIndex(ctx.store, [plain]))
    other = ctx.store.put_bytes(b"PAR1" + bytes(2000))
    with pytest.raises(IntegrityError, match="not an index of documents"):
        index.open_part(ctx.store, part.model_copy(update={"blob": other}))
    short = part.model_copy(update={"rows": 10**6, "stats": {**part.stats, "tokens": 10**9}})
    with pytest.raises(IntegrityError, match="does not have the rows of the recorded index"):
        DocumentIndex(ctx.store, [short]).within(np.array([10**8]), np.array([10**8 + 1]))
    assert index.map_file("/dev/null").size == 0
