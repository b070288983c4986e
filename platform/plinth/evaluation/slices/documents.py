"""Chooses the held-out documents to measure: per bucket, by smallest id, up to a number of bytes.

Ids are hashes, so the smallest are a sample without bias that does not depend on the order of parts. The
last document is cut at a character, so that a bucket gives exactly what the recipe asks for, if it has it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plinth.errors import StageError
from plinth.records import Manifest
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store


@dataclass(frozen=True)
class Document:
    """A held-out document as all models see it. `text` may be the beginning of a longer one."""

    id: bytes
    bucket: str
    text: str

    @property
    def data(self) -> bytes:
        """The bytes that bits are counted over."""
        return self.text.encode()


def choose_documents(store: Store, curated: Mapping[str, Manifest], max_bytes: int) -> list[Document]:
    """Held-out documents of every bucket, buckets by name, documents by id.

    Raises:
        StageError: a bucket has no held-out text.
    """
    chosen: list[Document] = []
    for bucket in sorted(curated):
        own = list(_of_bucket(store, bucket, curated[bucket], max_bytes))
        if not own:
            raise StageError(
                f"bucket {bucket} has no held-out text",
                found=f"{len(curated[bucket].named('heldout-'))} held-out parts without text",
                expected="at least one document",
                remedy="raise corpus.holdout.fraction in the recipe",
            )
        chosen += own
    return chosen


def _of_bucket(store: Store, bucket: str, curated: Manifest, max_bytes: int) -> Iterator[Document]:
    left = max_bytes
    for id_, text in _smallest(store, curated, max_bytes):
        data = text.encode()
        cut = data[:left].decode(errors="ignore") if len(data) > left else text
        left -= len(cut.encode())
        if cut:
            yield Document(id_, bucket, cut)
        if len(cut) < len(text):
            return


def _smallest(store: Store, curated: Manifest, max_bytes: int) -> list[tuple[bytes, str]]:
    """Documents by id until they fill the slice; memory is the slice and one row group."""
    kept: list[tuple[int, bytes, str]] = []  # a heap with the largest id on top
    held = 0
    for part in curated.named("heldout-"):
        for batch in iter_batches(store, part, ["id", "text"]):
            for id_, text in zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True):
                heapq.heappush(kept, (-int.from_bytes(id_, "big"), id_, text))
                held += len(text.encode())
                while held - len(kept[0][2].encode()) >= max_bytes:
                    held -= len(heapq.heappop(kept)[2].encode())
    return [(id_, text) for _, id_, text in sorted(kept, reverse=True)]
