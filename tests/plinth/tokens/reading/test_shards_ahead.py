"""Shards are proved before the steps that read them, once, and never by the thread that makes batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plinth import private
from plinth.compute.context import Context
from plinth.errors import IntegrityError, StorageError
from plinth.records import Blob
from plinth.storage import store
from plinth.storage.workspace import Workspace
from plinth.tokens import packing
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order
from plinth.tokens.packing_layout import BestFit
from plinth.tokens.reading.loader import Loader, prefetched
from plinth.tokens.reading.shard_sources import THREADS, ShardsAhead, Touch, first_touches, proved_batches
from plinth.tokens.shards.reader import ShardReader, open_streams

GLOBAL = 2


class Corpus:
    """Many small shards of two buckets, each compared again by every `private` folder."""

    def __init__(self, ctx: Context, made: SimpleNamespace) -> None:
        self.ctx = ctx
        texts = {"web": [made.texts(1, 120)], "code": [made.texts(2, 60)]}
        _, _, self.shards = made.pipeline(ctx, texts, tokens_per_shard=300)
        phases = (Phase(name="main", fraction=1.0, weights={"web": 2, "code": 1}),)
        params = Mixture(sequence_tokens=24, total_tokens=24 * 100, phases=phases, block_sequences=10)
        self.mixture = mixture.run(ctx, params, self.shards)

    def readers(self) -> dict[str, ShardReader]:
        return open_streams(self.ctx.store, self.shards)

    def loader(self) -> Loader:
        return Loader(Order(self.mixture), self.readers(), global_batch=GLOBAL, micro_batch=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, made: SimpleNamespace) -> Corpus:
    return Corpus(Context(Workspace(tmp_path_factory.mktemp("corpus")).ensure()), made)


@pytest.fixture
def hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record what is compared from now on, in a memory of this test alone: thread, and MD5 of the blob."""
    monkeypatch.setenv(private.VARIABLE, str(tmp_path / "private"))
    found: list[tuple[str, str]] = []
    compare = store.require_unchanged

    def counted(path: Path, blob: Blob, *more: Any, **named: Any) -> None:
        found.append((threading.current_thread().name, blob.md5))
        compare(path, blob, *more, **named)

    monkeypatch.setattr(store, "require_unchanged", counted)
    return found


def _rows(loader: Loader, first: int = 0, threads: int = 2) -> np.ndarray:
    proved = proved_batches(loader, first, loader.steps, threads)
    return np.concatenate([share.tokens for share in prefetched(proved, 2)])


@pytest.mark.parametrize("first", [0, 17])
def test_no_shard_is_hashed_where_batches_are_made_and_none_twice(
    corpus: Corpus, hashed: list[tuple[str, str]], first: int
) -> None:
    alone = corpus.loader()
    touched = [touch for step in first_touches(alone, first, alone.steps) for touch in step]
    rows = _rows(corpus.loader(), first)
    assert {thread for thread, _ in hashed} == {THREADS}
    assert Counter(md5 for _, md5 in hashed) == Counter(each.reader.shards[each.number].blob.md5 for each in touched)
    hashed.clear()
    expected = np.concatenate([alone.batch(step).tokens for step in range(first, alone.steps)])
    assert np.array_equal(rows, expected)
    assert np.array_equal(_rows(corpus.loader(), first), expected)  # a further attempt: the machine remembers
    assert hashed == []


def test_without_threads_the_reader_compares_what_it_reads(corpus: Corpus, hashed: list[tuple[str, str]]) -> None:
    _rows(corpus.loader(), threads=0)
    assert {thread for thread, _ in hashed} == {"loader"}


def test_the_first_touches_of_every_step_by_hand(corpus: Corpus) -> None:
    loader = corpus.loader()
    planned = list(first_touches(loader, 3, loader.steps))
    seen: set[tuple[str, int]] = set()
    for step, found in enumerate(planned, 3):
        now = set()
        for reader, _, pieces in loader.pieces(step):
            bounds = [*reader.shard_starts, reader.tokens]
            for start, tokens in zip(pieces.starts.tolist(), pieces.tokens.tolist(), strict=True):
                now |= {(reader.stream.name, n) for n in range(len(bounds) - 1)
                        if bounds[n] < start + tokens and start < bounds[n + 1]}  # fmt: skip
        assert {(touch.reader.stream.name, touch.number) for touch in found} == now - seen
        seen |= now
    assert len(seen) > 10
    assert sum(map(bool, planned)) > 3


def test_a_damaged_shard_stops_the_step_that_reads_it(
    corpus: Corpus, hashed: list[tuple[str, str]], made: SimpleNamespace, tmp_path: Path
) -> None:
    own = Corpus(Context(Workspace(tmp_path / "damaged").ensure()), made)
    loader = own.loader()
    touches = list(first_touches(loader, 0, loader.steps))
    step = max(step for step, found in enumerate(touches) if found)  # the last shard that a step is the first to touch
    blob = touches[step][0].reader.shards[touches[step][0].number].blob
    path = own.ctx.store.path(blob)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    alone = corpus.loader()
    expected = [alone.batch(step).tokens for step in range(loader.steps)]
    hashed.clear()
    read: list[int] = []

    def train() -> None:
        for share in prefetched(proved_batches(loader, 0, loader.steps, 2), 2):
            read.append(share.step)
            assert np.array_equal(share.tokens, expected[share.step])

    with pytest.raises(IntegrityError, match="has changed since it was written") as refused:
        train()
    assert blob.md5[2:] in str(refused.value)
    assert read == list(range(step)) != []
    assert [md5 for _, md5 in hashed].count(blob.md5) == 1


class Shard:
    """A stream whose shards fail in the threads that come ahead, and not when they are read."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def shard(self, number: int) -> np.ndarray:
        self.tried.append(number)
        raise StorageError("no answer")


def test_what_could_not_be_fetched_ahead_is_left_to_the_reader() -> None:
    reader: Any = Shard()
    ahead = ShardsAhead(iter([[Touch(reader, 0)], [Touch(reader, 1)]]), 5, 1)
    for step in range(5, 9):
        ahead.require(step)
    ahead.close()
    assert reader.tried == [0, 1]


def test_the_lead_is_bounded() -> None:
    planned: list[int] = []
    reached = threading.Semaphore(0)

    def touches() -> Iterator[list[Touch]]:
        for step in range(100):
            planned.append(step)
            reached.release()
            yield []

    ahead = ShardsAhead(touches(), 0, 1, lead=8)
    for step in range(60):
        ahead.require(step)
        assert planned[-1] <= step + 8
        while len(planned) < step + 8:  # and it is used
            assert reached.acquire(timeout=10)
        assert planned[-1] <= step + 8
    ahead.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_packed_index_is_opened_ahead_too(
    corpus: Corpus,
    ctx: Context,
    hashed: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
) -> None:
    """Also what only the other rank reads: the scored targets of a step are counted over all ranks."""
    index = {name: packing.run(corpus.ctx, name, 24, made) for name, made in corpus.shards.items()}
    phases = (Phase(name="main", fraction=1.0, weights={"web": 1, "code": 1}),)
    params = Mixture(sequence_tokens=24, total_tokens=24 * 60, packing="best-fit", phases=phases)
    order = Order(mixture.run(ctx, params, corpus.shards, index))
    monkeypatch.setenv(private.VARIABLE, str(tmp_path / "forgotten"))
    hashed.clear()
    store, places = corpus.ctx.store, {"global_batch": 2, "micro_batch": 1, "rank": rank, "world": 2}
    layouts, readers = {name: BestFit(store, made, name) for name, made in index.items()}, corpus.readers()
    loader = Loader(order, readers, layouts, **places)
    windows = {part.blob.md5 for made in index.values() for part in made.parts}
    mixed = next(step for step in range(loader.steps) if len(set(order.step_window(step, 2).streams.tolist())) == 2)
    next(first_touches(loader, mixed, loader.steps))
    assert windows == {md5 for _, md5 in hashed}
    monkeypatch.setenv(private.VARIABLE, str(tmp_path / "forgotten again"))
    hashed.clear()
    layouts = {name: BestFit(store, made, name) for name, made in index.items()}
    rows = _rows(Loader(order, readers, layouts, **places))
    assert windows <= {md5 for _, md5 in hashed}
    assert {thread for thread, _ in hashed} == {THREADS}
    plain = Loader(order, readers, layouts, **places)
    assert np.array_equal(rows, np.concatenate([share.tokens for share in plain.batches()]))
