"""Reader for a stream of a shard set: spans of tokens from mapped files, and digests that verify fetched spans."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.errors import IntegrityError, MissingError
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.store import Store, require_unchanged
from plinth.tokens.shards.index import DocumentIndex, map_file
from plinth.tokens.shards.parameters import Stream, stream_of, streams_of

# Read a stream of a shard set: spans of tokens from mapped files; its documents are in `index`.
#
# Opening reads the manifest only; a shard is mapped when a span first touches it, and the first reader on a machine
# compares its digest (`storage.verified`).

Tokens = NDArray[np.unsignedinteger]


class ShardReader:
    """Reader of one token stream of a bucket.

    Args:
        store: store that has the shards.
        shards: manifest of a `{bucket}/shards` asset.
        stream: name of the stream; may be omitted if the bucket has only one.

    Raises:
        MissingError: the stream does not exist, or the bucket has several and none is named.
        MissingError, IntegrityError: a shard is absent, truncated or changed; raised when the shard is first read.
    """

    #: True if shards are mapped files; otherwise spans are fetched, and `gather` fetches many at once.
    mapped = True

    def __init__(self, store: Store, shards: Manifest, stream: str | None = None) -> None:
        self.stream = _stream_named(shards, stream)
        self.bucket = self.stream.bucket
        self.tokens: int = self.stream.tokens
        self.documents_count: int = self.stream.documents
        self.end_of_text: int = shards.stats["end_of_text"]
        self.dtype = np.dtype(shards.stats["dtype"])
        self._store = store
        self.shards = shards.named(f"{self.stream.folder}shard-")
        self.index = DocumentIndex(store, shards.named(f"{self.stream.folder}index-"))
        self._starts = [int(part.stats["start"]) for part in self.shards]
        self._maps: dict[int, Tokens] = {}
        total = sum(int(part.stats["tokens"]) for part in self.shards)
        if total != self.tokens:
            raise IntegrityError(
                f"the shards of {self.stream.name} do not have the recorded number of tokens in total",
                found=f"{total} tokens",
                expected=f"{self.tokens} tokens",
            )

    @property
    def shard_starts(self) -> tuple[int, ...]:
        """Position in the stream at which each shard begins."""
        return tuple(self._starts)

    def read(self, start: int, count: int) -> Tokens:
        """Return `count` tokens of the stream, beginning at `start`. If all tokens are in one shard, the result is a
        view.

        Raises:
            ValueError: the span is not inside the stream.
        """
        if start < 0 or count < 0 or start + count > self.tokens:
            raise ValueError(f"tokens {start} to {start + count} of {self.stream.name}, which has {self.tokens} tokens")
        return self._span(start, count) if count else np.empty(0, self.dtype)

    def gather(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Tokens, NDArray[np.int64]]:
        """Return several spans of the stream, joined in one array, and the start of each span in it."""
        spans = (self._span(start, count) for start, count in zip(starts.tolist(), counts.tolist(), strict=True))
        return np.concatenate([np.empty(0, self.dtype), *spans]), np.cumsum(counts) - counts

    def shard(self, number: int) -> Tokens:
        """Map a shard. The digest of the shard is compared when the shard is first read."""
        tokens = self._maps.get(number)
        if tokens is None:
            path = self._store.open_path(self.shards[number].blob)
            tokens = self._maps.setdefault(number, map_file(path).view(self.dtype))  # threads keep one of them
        return tokens

    def index_batches(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the starts and lengths of all documents in stream order, at most `BATCH_DOCUMENTS` at a time."""
        return ((own.starts, own.tokens) for own in self.index.batches())

    def _span(self, start: int, count: int) -> Tokens:
        shard = bisect_right(self._starts, start) - 1
        at = start - self._starts[shard]
        tokens = self.shard(shard)[at : at + count]
        if len(tokens) == count:
            return tokens
        return np.concatenate([tokens, self._span(start + len(tokens), count - len(tokens))])


def open_streams(store: Store, shards: Mapping[str, Manifest] | Iterable[Manifest]) -> dict[str, ShardReader]:
    """Return a reader for every stream of these shard sets, by the stream's name."""
    manifests = shards.values() if isinstance(shards, Mapping) else shards
    return {stream.name: ShardReader(store, made, stream.name) for made in manifests for stream in streams_of(made)}


def _stream_named(shards: Manifest, name: str | None) -> Stream:
    if name is not None:
        return stream_of(shards, name)
    every = streams_of(shards)
    if len(every) != 1:
        raise MissingError(
            f"{shards.asset} has {len(every)} streams, but no stream is named",
            expected=", ".join(one.name for one in every[:5]) + (", …" if len(every) > 5 else ""),
            remedy="pass the name of a stream, or open all with `open_streams`",
        )
    return every[0]


# Digests of the blocks of shards, so that a span of a shard in a bucket is proved without the rest of it.
#
#     shard   | block 0 | block 1 | block 2 | …     `BLOCK_BYTES` each, the last one shorter
#     list    | SHA-256 | SHA-256 | SHA-256 | …     32 bytes each, 0.4% of the shard
#
# The list of a shard is made from the whole shard, in the pass that compares the shard's own SHA-256; its blob is in a
# manifest that a run names by digest. Made once per shard, for runs that read by spans; shards of any age have one
# then.

ASSET = "run/blocks"

#: A row of 4,096 tokens of 16 bits: a span is read with half a block more than it has, on average, at either end.
BLOCK_BYTES = 8192

DIGEST_BYTES = 32
BLOCKS = Step(name="tokens.shards.blocks", version="1", params={"block_bytes": BLOCK_BYTES, "digest": "sha256"})


def prepare(ctx: Context, shards: Mapping[str, Manifest]) -> Manifest:
    """Write the block digests of every shard of these shard sets. Each shard has one part, named by the shard's
    SHA-256.

    Raises:
        MissingError, IntegrityError: a shard is absent, or has changed.
    """
    blobs = {blob.sha256: blob for made in shards.values() for blob in shard_blobs(made)}
    items = [Item((digest,), blob) for digest, blob in blobs.items()]
    listed = run_items(ctx, BLOCKS, _listed, items, label="digests of spans")
    parts = [part.model_copy(update={"name": digest}) for digest, (part,) in zip(blobs, listed, strict=True)]
    made = manifest(ASSET, BLOCKS, dict(shards), parts)
    ctx.refs.save(made)
    return made


def shard_blobs(shards: Manifest) -> list[Blob]:
    """Return the blobs of all shards of a shard set, stream by stream."""
    return [part.blob for stream in streams_of(shards) for part in shards.named(f"{stream.folder}shard-")]


class BlockDigests:
    """Block digests of shards. The list of a shard is mapped when its first span is compared.

    Args:
        store: store that has the lists.
        listed: manifest that `prepare` returned.
    """

    def __init__(self, store: Store, listed: Manifest) -> None:
        self._store, self._parts = store, {part.name: part for part in listed.parts}
        self._lists: dict[str, NDArray[np.uint8]] = {}

    def require(self, blobs: Iterable[Blob]) -> None:
        """Raise an error unless every shard has a list of block digests.

        Raises:
            MissingError: a shard has no list.
        """
        for blob in blobs:
            if blob.sha256 not in self._parts:
                raise unproved(f"shard {blob.sha256}")

    def widened(self, blob: Blob, first: int, stop: int) -> tuple[int, int]:
        """Return the byte range of whole blocks that contains bytes `first` to `stop` of a shard."""
        return first // BLOCK_BYTES * BLOCK_BYTES, min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, blob.bytes)

    def compare(self, blob: Blob, first: int, data: bytes, where: str) -> None:
        """Compare whole blocks of a shard with their digests. The data begin at byte `first` of the shard.

        Raises:
            IntegrityError: a block has other bytes than were written.
        """
        listed, view = self._list(blob), memoryview(data)
        for at in range(0, len(data), BLOCK_BYTES):
            found = hashlib.sha256(view[at : at + BLOCK_BYTES]).digest()
            expected = listed[(first + at) // BLOCK_BYTES].tobytes()
            if found != expected:
                stop = first + min(at + BLOCK_BYTES, len(data))
                raise IntegrityError(
                    f"bytes {first + at} to {stop} of {where} differ from those that were written",
                    found=f"SHA-256 {found.hex()}",
                    expected=f"SHA-256 {expected.hex()}, of shard {blob.sha256}",
                    remedy="push or export the shards again; nothing was trained on these bytes",
                )

    def _list(self, blob: Blob) -> NDArray[np.uint8]:
        if blob.sha256 not in self._lists:
            data = map_file(self._store.open_path(self._parts[blob.sha256].blob))
            self._lists[blob.sha256] = data.reshape(-1, DIGEST_BYTES)
        return self._lists[blob.sha256]


def unproved(what: str) -> MissingError:
    """Return the error for shards that cannot be read by spans, because they have no block digests."""
    return MissingError(
        f"{what} cannot be read by spans: it has no list of block digests",
        remedy="submit the run again, which creates the list, or set training.reading.fetch: shard",
    )


def _listed(store: Store, blob: Blob) -> tuple[Part, ...]:
    """Write the block digests of one shard, and verify the shard's own SHA-256 in the same pass."""
    digests, rest = bytearray(), b""

    def take(chunk: bytes) -> None:
        nonlocal rest
        data = memoryview(rest + chunk)
        whole = len(data) // BLOCK_BYTES * BLOCK_BYTES
        for at in range(0, whole, BLOCK_BYTES):
            digests.extend(hashlib.sha256(data[at : at + BLOCK_BYTES]).digest())
        rest = bytes(data[whole:])

    require_unchanged(store.located(blob), blob, take)
    if rest:
        digests.extend(hashlib.sha256(rest).digest())
    return (Part(name="blocks", blob=store.put_bytes(bytes(digests)), rows=len(digests) // DIGEST_BYTES),)
