"""Digests of the blocks of shards, so that a span of a shard in a bucket is proved without the rest of it.

    shard   | block 0 | block 1 | block 2 | …     `BLOCK_BYTES` each, the last one shorter
    list    | SHA-256 | SHA-256 | SHA-256 | …     32 bytes each, 0.4% of the shard

The list of a shard is made from the whole shard, in the pass that compares the shard's own SHA-256; its blob is in a
manifest that a run names by digest. Made once per shard, for runs that read by spans; shards of any age have one then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.errors import IntegrityError, MissingError
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.store import Store, require_unchanged
from plinth.tokens.shards.mapped import map_file
from plinth.tokens.shards.streams import streams_of

ASSET = "run/blocks"

#: A row of 4,096 tokens of 16 bits: a span is read with half a block more than it has, on average, at either end.
BLOCK_BYTES = 8192

DIGEST_BYTES = 32
BLOCKS = Step(name="tokens.shards.blocks", version="1", params={"block_bytes": BLOCK_BYTES, "digest": "sha256"})


def prepare(ctx: Context, shards: Mapping[str, Manifest]) -> Manifest:
    """The block digests of every shard of these shard sets, a part each, named by the shard's SHA-256.

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
    """The shards of every stream of a shard set."""
    return [part.blob for stream in streams_of(shards) for part in shards.named(f"{stream.folder}shard-")]


class BlockDigests:
    """The block digests of shards; a shard's list is mapped when one of its spans is first compared.

    Args:
        store: where the lists lie.
        listed: what `prepare` made.
    """

    def __init__(self, store: Store, listed: Manifest) -> None:
        self._store, self._parts = store, {part.name: part for part in listed.parts}
        self._lists: dict[str, NDArray[np.uint8]] = {}

    def require(self, blobs: Iterable[Blob]) -> None:
        """Refuse shards without a list.

        Raises:
            MissingError: of one of them nothing is listed.
        """
        for blob in blobs:
            if blob.sha256 not in self._parts:
                raise unproved(f"shard {blob.sha256}")

    def widened(self, blob: Blob, first: int, stop: int) -> tuple[int, int]:
        """The whole blocks that bytes `first` to `stop` of a shard lie in."""
        return first // BLOCK_BYTES * BLOCK_BYTES, min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, blob.bytes)

    def compare(self, blob: Blob, first: int, data: bytes, where: str) -> None:
        """Compare whole blocks of a shard, from byte `first` on, with their digests.

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
                    f"bytes {first + at} to {stop} of {where} are not those that were written",
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
    """The refusal of spans that nothing proves."""
    return MissingError(
        f"{what} cannot be read by spans: it has no list of block digests",
        remedy="submit the run again, which makes the list, or set training.reading.fetch: shard",
    )


def _listed(store: Store, blob: Blob) -> tuple[Part, ...]:
    """The list of one shard, whose own SHA-256 is compared in the same pass."""
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
