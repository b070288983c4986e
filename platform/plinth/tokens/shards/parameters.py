"""Parameters of shards and of their reading, and the streams that result from the recipe's axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote, unquote

from pydantic import Field, field_validator

from plinth.errors import MissingError
from plinth.records import Frozen, Manifest, internal

#: Axes by name, and the sidecar's column that has their value; None where it is a column of the document.
AXES: dict[str, str | None] = {
    "language": "language.label",
    "tier": "quality_classifier.tier",
    "band": "perplexity.band",
    "function": "domain.label",
    "domain": None,
    "source": None,
    "licence": None,
    "snapshot": None,
    "mime": None,
    "length": None,
    "copies": None,
}


class Shards(Frozen):
    """Binary token shards of even size with a document index."""

    tokens_per_shard: int = Field(64 * 2**20, gt=0, description="Approximate number of tokens per shard file.")
    axes: tuple[str, ...] = Field(
        (),
        description="Split a bucket into streams by these axes, which a mixture can then weigh: "
        f"{', '.join(f'`{axis}`' for axis in AXES)}, or `annotator.column` for any text or boolean column. "
        "`length` is the document's number of tokens, rounded up to a power of two; `copies` is the size of its "
        "duplicate cluster, rounded down to a power of two.",
    )
    min_stream_tokens: int = Field(
        0, ge=0, description="Minimum tokens per stream; smaller streams are merged into the bucket's stream `other`."
    )

    @field_validator("axes")
    @classmethod
    def _known(cls, axes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(axes)) < len(axes):
            raise ValueError("duplicate axis")
        strange = [axis for axis in axes if axis not in AXES and axis.count(".") != 1]
        if strange:
            raise ValueError(f"no axis {strange[0]!r}; have: {', '.join(AXES)}, or `annotator.column`")
        return axes

    def identity(self) -> dict[str, Any]:
        """Return the parameters that the shards depend on, as plain data.

        If there are no axes, the keys of axes are left out, so that shards made before axes existed keep their
        identity.
        """
        return self.model_dump(mode="json", exclude=set() if self.axes else {"axes", "min_stream_tokens"})


class Reading(Frozen):
    """Location of the shards that a job reads, and its cache. These parameters are not part of any identity."""

    remote: str | None = Field(
        None,
        description="`s3://bucket/prefix` or a folder to which the shards were pushed or exported. By default, shards "
        "are read from the workspace's store.",
    )
    layout: Literal["store", "names"] = Field(
        "store",
        description="File layout of the remote: `store` as pushed by `plinth` and DVC, `names` with files named like "
        "the parts.",
    )
    fetch: Literal["auto", "shard", "span"] = internal(
        "auto",
        description="`shard` fetches whole shards into the cache; `span` fetches only the blocks with a rank's rows. "
        "Both verify SHA-256. `auto` fetches whole shards if all fit into half the cache.",
    )
    cache: str | None = Field(
        None, description="Cache folder, shared by the processes of a node; by default, `cache` in the workspace."
    )
    cache_bytes: int = Field(256 * 2**30, gt=0, description="Maximum size of the cache, in bytes.")
    ahead: int = internal(
        4, ge=0, description="Number of shards to verify in parallel before their steps; if 0, verify when reading."
    )

    def by_spans(self, shards_bytes: int) -> bool:
        """Return True if shards of this total size are fetched from the remote by spans, rather than as whole files."""
        if self.remote is None or self.fetch != "auto":
            return self.remote is not None and self.fetch == "span"
        return 2 * shards_bytes > self.cache_bytes


# Streams of a shard set: a bucket's documents by the values of the recipe's axes.
#
# A shard set without axes has one stream, named as its bucket (`web`). With axes it has one for every combination of
# values that is large enough, `web/language=en,tier=high`, and `web/other` for rare values. A mixture
# weighs streams, and an order counts their sequences. The parts of a stream are `{label}/shard-*` and `{label}/index-*`
# of the manifest, or `shard-*` and `index-*` where there is only one.

OTHER = "other"
#: The value of a document without a value of the axis.
UNKNOWN = "unknown"

_PAIR = re.compile(r"([a-z0-9_.]+)=(.+)")
#: Letters, digits and these stay readable in a name; `/`, `,`, `=` and the rest are written as `%2F`.
_PLAIN = "+-._@"


@dataclass(frozen=True)
class Stream:
    """Stream of a shard set.

    Args:
        name: `bucket` or `bucket/label`.
        bucket: name of the bucket.
        label: part of the name after the bucket; empty if the bucket is one stream.
        values: value of every axis; empty if the bucket is one stream, and for `other`.
        tokens: number of tokens, including end-of-text.
    """

    name: str
    bucket: str
    label: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    documents: int = 0

    @property
    def folder(self) -> str:
        """Prefix of the names of the stream's parts."""
        return f"{self.label}/" if self.label else ""


def label_of(values: Mapping[str, str | None]) -> str:
    """Return the label `axis=value,…` in the order of the axes. An absent or empty value is written `unknown`."""
    return ",".join(f"{axis}={quote(value or UNKNOWN, safe=_PLAIN)}" for axis, value in values.items())


def name_of(bucket: str, label: str = "") -> str:
    """Return the name of a bucket's stream."""
    return f"{bucket}/{label}" if label else bucket


@lru_cache(maxsize=4096)
def parse(name: str) -> Stream:
    """Return the bucket, label and values of a stream's name. Its token count is 0, because only the manifest has
    counts.

    Raises:
        ValueError: the name is not that of a stream.
    """
    bucket, _, label = name.partition("/")
    if not bucket or (name != bucket and not label):
        raise ValueError(f"{name!r} is not a valid name of a stream")
    if label in ("", OTHER):
        return Stream(name, bucket, label)
    pairs = [_PAIR.fullmatch(pair) for pair in label.split(",")]
    if not all(pairs):
        raise ValueError(f"{name!r} is not a valid name of a stream: {label!r} is not `axis=value,…`")
    return Stream(name, bucket, label, {pair[1]: unquote(pair[2]) for pair in pairs if pair})


def streams_of(shards: Manifest) -> tuple[Stream, ...]:
    """Return the streams of a `{bucket}/shards` manifest with their counts, in order of name.

    Every manifest has at least one stream.
    """
    bucket = shards.asset.rsplit("/", 1)[0]
    labels: Mapping[str, Mapping[str, int]] | None = shards.stats.get("streams")
    if labels is None:
        labels = {"": shards.stats}
    return tuple(_counted(name_of(bucket, label), labels[label]) for label in sorted(labels))


def stream_of(shards: Manifest, name: str) -> Stream:
    """Return one stream of a manifest with its counts.

    Raises:
        MissingError: the manifest has no such stream.
    """
    every = {stream.name: stream for stream in streams_of(shards)}
    if name not in every:
        raise MissingError(
            f"{shards.asset} has no stream {name}",
            expected=", ".join(every),
            remedy="check `shards.axes` and `shards.min_stream_tokens` in the recipe",
        )
    return every[name]


def streams_of_all(shards: Mapping[str, Manifest] | Iterable[Manifest]) -> tuple[Stream, ...]:
    """Return the streams of several shard sets, in order of name."""
    manifests: Sequence[Manifest] = list(shards.values() if isinstance(shards, Mapping) else shards)
    return tuple(sorted((one for made in manifests for one in streams_of(made)), key=lambda stream: stream.name))


def _counted(name: str, stats: Mapping[str, int]) -> Stream:
    named = parse(name)
    counts = (int(stats.get(key, 0)) for key in ("tokens", "documents"))
    return Stream(named.name, named.bucket, named.label, named.values, *counts)
