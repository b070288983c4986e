"""Stored documents against the lists of illegal content: for lists that grow after the gate.

The same lists and the same matching as the gate of the documents stage (`plinth.corpus.illegal`), but for the
bytes of the record as it came, which are not stored. A policy drops `illegal.hit`; to take the text out of
the store as well, see docs/illegal-content.md.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.illegal.lists import read
from plinth.corpus.illegal.match import ListHit, Matcher, media_of
from plinth.corpus.illegal.parameters import Matching
from plinth.records import internal

SCHEMA = pa.schema(
    [
        pa.field("sha256_hit", pa.bool_(), nullable=False),
        pa.field("simhash_distance", pa.int16()),  # in bits; null where no listed hash is near enough
        pa.field("phash_hit", pa.bool_(), nullable=False),
        pa.field("keyword_hits", pa.int32(), nullable=False),  # different keywords, from `min_keywords` on
        pa.field("domain_hit", pa.bool_(), nullable=False),
        pa.field("list", pa.string()),  # the file of the first entry that hits
        pa.field("hit", pa.bool_(), nullable=False),
    ]
)


class IllegalParams(Matching):
    """Lists and bounds."""

    disguised: bool = internal(False, description="Whether keywords are found obfuscated, too (`h3ll0`, `h.e.l.l.o`).")
    lists: str = internal("illegal", description="Name of the lists in `corpus.lists`.")


def prepare(params: IllegalParams, files: Files) -> Matcher:
    """Read the lists.

    Raises:
        SourceError: a file that is no list, a line of the wrong form, or no entry at all.
    """
    key = f"lists/{params.lists}"
    return Matcher(read(files[key], key, params), params)


def annotate(batch: pa.RecordBatch, matcher: Matcher) -> pa.RecordBatch:
    """The hits of each document."""
    media = media_of(batch.column("extra").to_pylist())
    found = matcher.texts(batch.column("text"), batch.column("uri").to_pylist(), media)
    return pa.RecordBatch.from_pylist([_row(hits) for hits in found], schema=SCHEMA)


def _row(hits: tuple[ListHit, ...]) -> dict[str, Any]:
    kinds = [hit.kind for hit in hits]
    return {
        "sha256_hit": "sha256_text" in kinds or "sha256_media" in kinds,
        "simhash_distance": next((hit.distance for hit in hits if hit.kind == "simhash"), None),
        "phash_hit": "phash" in kinds,
        "keyword_hits": kinds.count("keyword"),
        "domain_hit": "domain" in kinds,
        "list": hits[0].entry.file if hits else None,
        "hit": bool(hits),
    }


def _resources(params: Any) -> tuple[str, ...]:
    return (f"lists/{params.lists}",)


ANNOTATOR = Annotator(
    name="illegal",
    version="2",
    description="What your lists of illegal content say of a document: digests, near hashes, keywords, domains.",
    source="SimHash after Charikar 2002, near hashes after Manku et al. 2007. The lists are yours.",
    params=IllegalParams,
    schema=SCHEMA,
    reads=("text", "uri", "extra"),
    annotate=annotate,
    resources=_resources,
    prepare=prepare,
)
