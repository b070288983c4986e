"""Tokens of curated parts on their way into shards: kept in staging, and no longer than the shards are cut.

Even shards can only be cut when all parts are counted, so a part's tokens are written once for the way and once into
the shards; the first copy goes as soon as no shard needs it. When the cut changes (text was added), the tokens come
back out of the shards that were published last, at the speed of a copy; where those have gone the text is encoded
again. Either way the bytes are those whose SHA-256 was recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Blob, Manifest
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store, hash_stream
from plinth.tokens.reading.reader import ShardReader, open_streams


@dataclass(frozen=True)
class Staged:
    """A part's tokens, documents in order, each closed by end-of-text.

    Args:
        bucket: of the part; two buckets never share a file.
        blob: what the file holds, whether or not it is there.
    """

    bucket: str
    blob: Blob

    def path(self, store: Store) -> Path:
        """Where the tokens lie while they are needed."""
        return store.root / "staging" / f"tokens-{self.bucket}-{self.blob.sha256}.bin"

    def there(self, store: Store) -> bool:
        """Whether the file is there with its recorded length."""
        path = self.path(store)
        return path.exists() and path.stat().st_size == self.blob.bytes

    def open_path(self, store: Store) -> Path:
        """The path for reading.

        Raises:
            MissingError: the tokens are not there.
        """
        if not self.there(store):
            raise MissingError(
                f"the tokens of a part of {self.bucket} left staging while they were needed",
                expected=str(self.path(store)),
                remedy="run the same command again: they are made again",
            )
        return self.path(store)

    def drop(self, store: Store) -> None:
        """Remove the file."""
        self.path(store).unlink(missing_ok=True)


@contextmanager
def writing(store: Store, bucket: str) -> Iterator[tuple[IO[bytes], list[Staged]]]:
    """A stream to write tokens to; the list has what they became once the block has ended well."""
    made: list[Staged] = []
    with store.staging(".bin") as path:
        with named_failures(path), path.open("wb") as stream:
            yield stream, made
        with path.open("rb") as read:
            made.append(Staged(bucket, hash_stream(read)))
        os.replace(path, made[0].path(store))


@dataclass(frozen=True)
class Kept:
    """Published shards that hold a part's tokens, by the file of their manifest, and the number the part has there."""

    shards: str
    part: int


def kept(ctx: Context, asset: str, tokenizer: str, dtype: str) -> dict[str, Kept]:
    """Parts of curated text (SHA-256) whose tokens the published shards of an asset hold; none where nothing fits."""
    ref = ctx.refs.ref(asset)
    if ref is None:
        return {}
    try:
        shards = ctx.refs.load(ref.digest)
        curated = ctx.refs.load(shards.inputs[asset.rsplit("/", 1)[0] + "/curated"])
    except (KeyError, MissingError, StorageError):
        return {}
    whole = all(ctx.store.has(part.blob) for part in shards.parts)
    if not whole or (shards.stats.get("tokenizer"), shards.stats.get("dtype")) != (tokenizer, dtype):
        return {}
    path = str(ctx.refs.manifests / f"{ref.digest}.json")
    return {part.blob.sha256: Kept(path, number) for number, part in enumerate(curated.named("part-"))}


def restore(store: Store, staged: Staged, held: Kept) -> bool:
    """Bring a part's tokens back out of published shards; False where they are not what was recorded."""
    documents = []
    for reader in _readers(store.root, held.shards).values():
        documents += [(span.row, reader, span) for span in reader.documents_of_part(held.part)]
    try:
        with writing(store, staged.bucket) as (out, made):
            for _, reader, span in sorted(documents, key=lambda found: found[0]):
                out.write(np.ascontiguousarray(reader.read(span.start, span.tokens)).tobytes())
    except IntegrityError:
        return False
    if made[0] != staged:
        made[0].drop(store)
        return False
    return True


@lru_cache(maxsize=1)
def _readers(store_root: Path, path: str) -> Mapping[str, ShardReader]:
    shards = Manifest.model_validate_json(Path(path).read_bytes())
    return open_streams(Store(store_root), [shards])
