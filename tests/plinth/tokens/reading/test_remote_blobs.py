from __future__ import annotations

import hashlib
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.launch.parameters import Launch
from plinth.records import Blob, Manifest, Part
from plinth.storage import store
from plinth.storage.blob_cache import CachedStore, RemoteBlobs
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order
from plinth.tokens.reading.loader import Loader, prefetched
from plinth.tokens.reading.shard_sources import (
    THREADS,
    ShardSource,
    SpanReader,
    first_touches,
    open_shards,
    proved_batches,
    shards_ahead,
)
from plinth.tokens.shards.parameters import Reading
from plinth.tokens.shards.reader import BLOCK_BYTES, ShardReader, open_streams, prepare
from plinth.training import data, preparation
from plinth.training.data import open_batches
from plinth.training.parameters.run import Training
from tests.ranks import run_ranks
from tests.s3_server import Bucket, bad_line, serving

GLOBAL, STEPS = 16, 12


class Pushed:
    """Shards of two buckets in a workspace, and on an S3 server: as a store's remote and by names."""

    def __init__(self, ctx: Context, made: SimpleNamespace, bucket: Bucket) -> None:
        self.ctx, self.bucket = ctx, bucket
        texts = {"web": [made.texts(1, 120)], "code": [made.texts(2, 60)]}
        _, _, self.shards = made.pipeline(ctx, texts, tokens_per_shard=700)
        phases = (Phase(name="main", fraction=1.0, weights={"web": 2, "code": 1}),)
        params = Mixture(sequence_tokens=24, total_tokens=24 * 600, phases=phases, block_sequences=10)
        self.mixture = mixture.run(ctx, params, self.shards)
        for manifest in (*self.shards.values(), self.mixture):
            ctx.refs.save(manifest)
        self.blocks = prepare(ctx, self.shards)
        for made_ in self.shards.values():
            for part in made_.parts:
                content = ctx.store.read_bytes(part.blob)
                bucket.put(f"store/files/md5/{part.blob.md5[:2]}/{part.blob.md5[2:]}", content)  # as `dvc push` does
                bucket.put(f"names/{made_.asset}/{part.name}", content)

    @property
    def shard_bytes(self) -> int:
        return sum(part.blob.bytes for made in self.shards.values() for part in made.named("shard-"))

    def reading(self, root: Path, **more: Any) -> Reading:
        return Reading(**{"remote": self.bucket.uri("store"), "cache": str(root / "cache"), **more})

    def open(self, root: Path, **more: Any) -> ShardSource:
        return open_shards(self.ctx.store, self.shards.values(), self.reading(root, **more), self.blocks)

    def loader(self, readers: Any, rank: int = 0, world: int = 1) -> Loader:
        places = {"rank": rank, "world": world, "prefetch": 0}
        return Loader(Order(self.mixture), readers, global_batch=GLOBAL, micro_batch=4, **places)

    def expected(self, step: int) -> np.ndarray:
        return self.loader(open_streams(self.ctx.store, self.shards)).batch(step).tokens

    def one(self) -> Blob:
        return self.shards["web"].named("shard-")[0].blob


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, made: SimpleNamespace) -> Iterator[Pushed]:
    with serving() as bucket:
        yield Pushed(Context(Workspace(tmp_path_factory.mktemp("pushed")).ensure()), made, bucket)


@pytest.mark.parametrize("layout", ["store", "names"])
def test_whole_shards_come_once_and_are_the_same(pushed: Pushed, tmp_path: Path, layout: str) -> None:
    root = pushed.bucket.uri("store" if layout == "store" else "names")
    for round_ in range(2):
        opened = pushed.open(tmp_path, fetch="shard", remote=root, layout=layout)
        loader = pushed.loader(opened.readers)
        for step in (0, 3, loader.steps - 1, *range(5, 12)):
            assert np.array_equal(loader.batch(step).tokens, pushed.expected(step))
        assert isinstance(opened.store, CachedStore)
        traffic = opened.store.traffic
        assert (traffic.bytes == pushed.shard_bytes and traffic.wait_s > 0) if round_ == 0 else traffic.bytes == 0
    assert opened.store.held_bytes() == pushed.shard_bytes
    assert not list((tmp_path / "cache" / "filling").iterdir())
    local = ShardReader(pushed.ctx.store, pushed.shards["web"])
    first, stop = np.array([0]), np.array([500])
    spans = opened.readers["web"].index.within(first, stop)[1].records()
    assert spans == local.index.within(first, stop)[1].records() != []


def _rank(local: Store, readings: list[Reading], shards: list[Manifest], *made: Manifest) -> dict[str, dict[str, Any]]:
    """The first steps of a rank, whole shards and spans: what it read and what that cost."""
    rank, (mixed, listed) = int(os.environ["RANK"]), made
    found: dict[str, dict[str, Any]] = {}
    for reading in readings:
        opened = open_shards(local, shards, reading, listed)
        loader = Loader(
            Order(mixed), opened.readers, global_batch=GLOBAL, micro_batch=4, rank=rank, world=4, prefetch=2
        )
        tokens, rows = [], []
        for share in prefetched(proved_batches(loader, 0, STEPS, 2), 2):
            tokens.append(share.tokens)
            for reader, _, pieces in loader.pieces(share.step):
                rows += [(reader.stream.name, start) for start in pieces.starts.tolist()]
        assert isinstance(opened.store, CachedStore)
        found[reading.fetch] = {"tokens": np.stack(tokens), "rows": rows, "bytes": opened.store.traffic.bytes}
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_no_rank_reads_what_another_reads(pushed: Pushed, tmp_path: Path) -> None:
    readings = [pushed.reading(tmp_path, fetch=fetch) for fetch in ("shard", "span")]
    made = (list(pushed.shards.values()), pushed.mixture, pushed.blocks)
    ranks = run_ranks(4, _rank, pushed.ctx.store, readings, *made)
    for fetch in ("shard", "span"):
        for step in range(STEPS):
            together = np.concatenate([rank[fetch]["tokens"][step] for rank in ranks])
            assert np.array_equal(together, pushed.expected(step))
        rows = [row for rank in ranks for row in rank[fetch]["rows"]]
        assert len(set(rows)) == len(rows) == STEPS * GLOBAL  # within an epoch no sequence comes twice
    # One node's ranks bring each shard once between them; by spans, the blocks of their rows: here whole, small shards.
    assert sum(rank["shard"]["bytes"] for rank in ranks) == pushed.shard_bytes
    sizes = {one.stream.name: one for one in open_streams(pushed.ctx.store, pushed.shards).values()}
    touched = 0
    for name, start in (row for rank in ranks for row in rank["span"]["rows"]):
        reader = sizes[name]
        shards = {bisect_right(reader.shard_starts, at) - 1 for at in (start, start + 24)}
        touched += sum(reader.shards[shard].blob.bytes for shard in shards)
    assert sum(rank["span"]["bytes"] for rank in ranks) == touched


def test_the_cache_keeps_its_bound_and_what_is_in_use(pushed: Pushed, tmp_path: Path) -> None:
    blobs = [part.blob for part in pushed.shards["web"].named("shard-")]
    limit = 3 * blobs[0].bytes
    remote = RemoteBlobs(pushed.bucket.uri("store"))
    for blob in blobs:  # a process each time: what it had open is free again
        store = CachedStore(tmp_path, remote, limit)
        assert store.open_path(blob).read_bytes() == pushed.ctx.store.read_bytes(blob)
        assert store.held_bytes() <= limit
        store._lease._stream.close()
    assert remote.traffic.evicted == len(blobs) - 3
    assert not store.has(blobs[0])
    assert all(store.has(blob) for blob in blobs[-3:])
    last = CachedStore(tmp_path, remote, limit)
    last.open_path(blobs[-3])  # the oldest is used again, so the next oldest goes
    last.open_path(blobs[0])
    assert last.has(blobs[-3])
    assert not last.has(blobs[-2])
    last.open_path(blobs[1])
    with pytest.raises(StorageError, match="too small") as refused:
        last.open_path(blobs[2])
    assert "reading.fetch: span" in str(refused.value)
    assert all(last.has(blob) for blob in (blobs[-3], blobs[0], blobs[1]))


def test_auto_reads_by_spans_what_does_not_fit(pushed: Pushed, tmp_path: Path) -> None:
    total = sum(made.bytes for made in pushed.shards.values())
    assert not pushed.reading(tmp_path, cache_bytes=2 * total).by_spans(total)
    assert pushed.reading(tmp_path, cache_bytes=2 * total - 1).by_spans(total)
    assert not Reading(fetch="span").by_spans(total)  # there is no remote
    opened = pushed.open(tmp_path, cache_bytes=total)
    assert all(isinstance(reader, SpanReader) for reader in opened.readers.values())
    reader, here = opened.readers["web"], ShardReader(pushed.ctx.store, pushed.shards["web"])
    assert np.array_equal(reader.read(690, 900), here.read(690, 900))  # over three shards
    assert reader.read(5, 0).size == 0


def test_what_was_changed_on_the_remote_is_not_kept(pushed: Pushed, tmp_path: Path) -> None:
    blob = pushed.one()
    data = bytearray(pushed.ctx.store.read_bytes(blob))
    data[7] ^= 1
    pushed.bucket.put(f"bad/files/md5/{blob.md5[:2]}/{blob.md5[2:]}", bytes(data))
    store = CachedStore(tmp_path, RemoteBlobs(pushed.bucket.uri("bad")), 10**9)
    with pytest.raises(IntegrityError, match="wrong bytes"):
        store.open_path(blob)
    assert store.held_bytes() == 0
    pushed.bucket.put(f"bad/files/md5/{blob.md5[:2]}/{blob.md5[2:]}", bytes(data[:100]))
    with pytest.raises(StorageError, match="cannot read"):
        CachedStore(tmp_path, RemoteBlobs(pushed.bucket.uri("bad"), backoff_s=0.0), 10**9).open_path(blob)
    with pytest.raises(MissingError, match="there is no s3://"):
        CachedStore(tmp_path, RemoteBlobs(pushed.bucket.uri("none")), 10**9).open_path(blob)


def test_a_span_is_compared_with_the_digests_of_its_blocks(ctx: Context, tmp_path: Path) -> None:
    """Blocks that lie whole or partly in a span; a flipped byte in any of them is named before a token is returned."""
    size = BLOCK_BYTES
    tokens = np.random.default_rng(1).integers(0, 60_000, 5 * size // 4).astype("<u2")  # two blocks and a half
    facts = {"start": 0, "tokens": len(tokens)}
    part = Part(name="shard-00000.bin", blob=ctx.store.put_bytes(tokens.tobytes()), stats=facts)
    stats = {"documents": 1, "tokens": len(tokens), "end_of_text": 0, "dtype": "<u2"}
    made = Manifest(asset="web/shards", step="s", version="1", params={}, inputs={}, parts=(part,), stats=stats)
    listed = prepare(ctx, {"web": made})
    (row,) = listed.parts
    digests = ctx.store.read_bytes(row.blob)
    data = tokens.tobytes()
    assert digests == b"".join(hashlib.sha256(data[at : at + size]).digest() for at in range(0, len(data), size))

    remote = tmp_path / "remote" / "files" / "md5" / part.blob.md5[:2] / part.blob.md5[2:]
    remote.parent.mkdir(parents=True)
    remote.write_bytes(data)
    reading = Reading(remote=str(tmp_path / "remote"), cache=str(tmp_path / "cache"), fetch="span")
    reader = open_shards(ctx.store, [made], reading, listed).readers["web"]
    for start, count in ((0, 1), (size // 2 - 3, 5), (17, len(tokens) - 17), (len(tokens) - 1, 1)):
        assert np.array_equal(reader.read(start, count), tokens[start : start + count])
    for at in (0, size - 1, 2 * size, len(data) - 1):
        flipped = bytearray(data)
        flipped[at] ^= 4
        remote.write_bytes(bytes(flipped))
        block = at // size
        name = f"bytes {block * size} to {min(len(data), (block + 1) * size)} of .*{part.blob.md5[2:]} differ from "
        with pytest.raises(IntegrityError, match=name):
            reader.read(block * size // 2 + 8, 3)  # another token of that block
        elsewhere = (block + 1) % 3 * size // 2
        assert np.array_equal(reader.read(elsewhere, 2), tokens[elsewhere : elsewhere + 2])


def test_spans_without_digests_are_refused_by_name(pushed: Pushed, tmp_path: Path) -> None:
    reading, sets = pushed.reading(tmp_path, fetch="span"), list(pushed.shards.values())
    with pytest.raises(MissingError, match="no list of block digests"):
        open_shards(pushed.ctx.store, sets, reading)
    without = pushed.blocks.model_copy(update={"parts": pushed.blocks.parts[1:]})
    with pytest.raises(MissingError, match=f"shard {pushed.blocks.parts[0].name} cannot be read by spans"):
        open_shards(pushed.ctx.store, sets, reading, without)


def test_a_bad_line_is_tried_again(pushed: Pushed, tmp_path: Path) -> None:
    blob = pushed.one()
    with bad_line(pushed.bucket.endpoint, after_bytes=600, failures=3) as line:
        remote = RemoteBlobs(pushed.bucket.uri("store"), backoff_s=0.01)
        path = CachedStore(tmp_path, remote, 10**9).open_path(blob)
        assert path.read_bytes() == pushed.ctx.store.read_bytes(blob)
        assert line.cuts == 3
        assert remote.traffic.retries >= 1  # the driver may have asked again itself, once


def test_when_s3_is_down_it_is_said_after_bounded_tries(pushed: Pushed, tmp_path: Path) -> None:
    with bad_line(pushed.bucket.endpoint, after_bytes=0, failures=10**6):
        remote = RemoteBlobs(pushed.bucket.uri("store"), attempts=3, backoff_s=0.01)
        store = CachedStore(tmp_path, remote, 10**9)
        opened = ShardSource(store, open_streams(store, pushed.shards))
        loader = pushed.loader(opened.readers)
        with pytest.raises(StorageError, match="cannot read s3://") as down:
            next(proved_batches(loader, 0, STEPS, 2))
        assert "within 3 attempts" in str(down.value)
        _await_fetchers()
    assert store.held_bytes() == 0


def test_shards_are_fetched_in_the_order_of_need(pushed: Pushed, tmp_path: Path) -> None:
    opened = pushed.open(tmp_path, fetch="shard")
    loader = pushed.loader(opened.readers, rank=1, world=2)
    touched = [touch for step in first_touches(loader, 4, loader.steps) for touch in step]
    wanted = [touch.reader.shards[touch.number].blob for touch in touched]
    assert len({blob.md5 for blob in wanted}) == len(wanted) > 3
    store = opened.store
    assert isinstance(store, CachedStore)
    loader.batch(4)
    read = {path.parent.name + path.name for path in store.files.glob("??/*")}
    assert read == {blob.md5 for blob in wanted[: len(read)]}  # what the first step touched is what comes first
    with shards_ahead(loader, 4, loader.steps, 2):
        _await_fetchers()
    assert all(store.has(blob) for blob in wanted)
    before = store.traffic.bytes
    for step in range(4, loader.steps):
        loader.batch(step)
    assert store.traffic.bytes == before


def test_a_run_reads_the_same_batches_from_anywhere(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, examine, threads = pushed.ctx, data.examined, set()

    def examined(*given: Any) -> Any:
        threads.add(threading.current_thread().name)
        return examine(*given)

    monkeypatch.setattr(data, "examined", examined)
    tokens = Manifest(
        asset="tokenizer",
        step="s",
        version="1",
        params={},
        inputs={},
        parts=(),
        stats={"vocab_size": 320, "end_of_text": 0},
    )
    configs = [
        preparation.prepare(
            ctx,
            "read",
            Training(global_batch_sequences=GLOBAL, launch=Launch(ranks=1), reading=reading),
            pushed.mixture,
            pushed.shards,
            tokens,
        )
        for reading in (Reading(), pushed.reading(tmp_path, fetch="shard"), pushed.reading(tmp_path, fetch="span"))
    ]
    assert len({one.run_id for one in configs}) == 1  # the location of the data is not part of the identity
    here, *remote = [[batch.expanded().tokens for batch in islice(open_batches(one, 0)(5), 4)] for one in configs]
    assert np.array_equal(here[0].reshape(GLOBAL, -1), pushed.expected(4))
    for there in remote:
        assert all(np.array_equal(*pair) for pair in zip(here, there, strict=True))
    first = next(iter(pushed.shards.values())).parts[0].blob
    assert threads == {"loader"}  # fingerprint and screening, where batches are made
    assert store.known(ctx.store.path(first), first)  # what was read in place was compared with its digest


def _await_fetchers() -> None:
    for thread in threading.enumerate():
        if thread.name == THREADS:
            thread.join(30)
