"""Held-out documents that a model has not been scored on, apart by whether the run that made it held them out."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from plinth.records import Manifest
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store

#: Documents of a bucket that one look scores, of the reference and of later ones each; those of the smallest ids.
MOST = 400
#: Bytes of a document that are scored.
CUT_BYTES = 2**15


class NewDocument(NamedTuple):
    """A document to score. `text` may be the beginning of a longer one; `known`: its run held it out."""

    id: bytes
    bucket: str
    uri: str
    snapshot: str
    text: str
    known: bool


def ids(store: Store, curated: Mapping[str, Manifest]) -> frozenset[bytes]:
    """Ids of all held-out documents of some curated text."""
    parts = (part for made in curated.values() for part in made.named("heldout-"))
    return frozenset(
        id_ for part in parts for batch in iter_batches(store, part, ["id"]) for id_ in batch[0].to_pylist()
    )


def choose(
    store: Store, curated: Mapping[str, Manifest], own: frozenset[bytes], scored: frozenset[bytes], most: int = MOST
) -> list[NewDocument]:
    """Held-out documents, buckets by name, those of the reference first, by id.

    The reference is taken once, by the first look: later looks have later documents alone.

    Args:
        own: ids that the run of the model held out.
        scored: ids that earlier looks scored; empty: this is the first look.
    """
    found = []
    for bucket in sorted(curated):
        kinds = (True, False) if not scored else (False,)
        for known in kinds:
            rows = (one for one in _rows(store, bucket, curated[bucket], own) if one.known == known)
            found += heapq.nsmallest(most, (one for one in rows if one.id not in scored), key=lambda one: one.id)
    return found


def _rows(store: Store, bucket: str, curated: Manifest, own: frozenset[bytes]) -> Iterator[NewDocument]:
    for part in curated.named("heldout-"):
        for batch in iter_batches(store, part, ["id", "uri", "snapshot", "text"]):
            for row in batch.to_pylist():
                text = row["text"].encode()[:CUT_BYTES].decode(errors="ignore")
                if text:
                    yield NewDocument(row["id"], bucket, row["uri"], row["snapshot"], text, row["id"] in own)
