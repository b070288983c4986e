"""Streams of a shard set: a bucket's documents by the values of the recipe's axes.

A shard set without axes has one stream, named as its bucket (`web`). With axes it has one for every combination of
values that is large enough, `web/language=en,tier=high`, and `web/other` for rare values. A mixture
weighs streams, and an order counts their sequences. The parts of a stream are `{label}/shard-*` and `{label}/index-*`
of the manifest, or `shard-*` and `index-*` where there is only one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, unquote

from plinth.errors import MissingError
from plinth.records import Manifest

OTHER = "other"
#: The value of a document without a value of the axis.
UNKNOWN = "unknown"

_PAIR = re.compile(r"([a-z0-9_.]+)=(.+)")
#: Letters, digits and these stay readable in a name; `/`, `,`, `=` and the rest are written as `%2F`.
_PLAIN = "+-._@"


@dataclass(frozen=True)
class Stream:
    """One stream of a shard set.

    Args:
        name: `bucket` or `bucket/label`.
        bucket: the bucket.
        label: what follows the bucket in the name; empty where the bucket is one stream.
        values: value of every axis; empty where the bucket is one stream, and for `other`.
        tokens: end-of-text included.
    """

    name: str
    bucket: str
    label: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    documents: int = 0

    @property
    def folder(self) -> str:
        """Prefix of the names of its parts."""
        return f"{self.label}/" if self.label else ""


def label_of(values: Mapping[str, str | None]) -> str:
    """`axis=value,…` in the order of the axes; a value that is absent or empty is `unknown`."""
    return ",".join(f"{axis}={quote(value or UNKNOWN, safe=_PLAIN)}" for axis, value in values.items())


def name_of(bucket: str, label: str = "") -> str:
    """A stream's name."""
    return f"{bucket}/{label}" if label else bucket


@lru_cache(maxsize=4096)
def parse(name: str) -> Stream:
    """Bucket, label and values of a stream's name; counts, which only the manifest has, are 0.

    Raises:
        ValueError: the name is not one of a stream.
    """
    bucket, _, label = name.partition("/")
    if not bucket or (name != bucket and not label):
        raise ValueError(f"{name!r} is not the name of a stream")
    if label in ("", OTHER):
        return Stream(name, bucket, label)
    pairs = [_PAIR.fullmatch(pair) for pair in label.split(",")]
    if not all(pairs):
        raise ValueError(f"{name!r} is not the name of a stream: {label!r} is not `axis=value,…`")
    return Stream(name, bucket, label, {pair[1]: unquote(pair[2]) for pair in pairs if pair})


def streams_of(shards: Manifest) -> tuple[Stream, ...]:
    """The streams of a `{bucket}/shards` manifest with their counts, in order of name; at least one."""
    bucket = shards.asset.rsplit("/", 1)[0]
    labels: Mapping[str, Mapping[str, int]] | None = shards.stats.get("streams")
    if labels is None:
        labels = {"": shards.stats}
    return tuple(_counted(name_of(bucket, label), labels[label]) for label in sorted(labels))


def stream_of(shards: Manifest, name: str) -> Stream:
    """One stream of a manifest with its counts.

    Raises:
        MissingError: the manifest has no such stream.
    """
    every = {stream.name: stream for stream in streams_of(shards)}
    if name not in every:
        raise MissingError(
            f"{shards.asset} has no stream {name}",
            expected=", ".join(every),
            remedy="see `shards.axes` and `shards.min_stream_tokens` of the recipe",
        )
    return every[name]


def streams_of_all(shards: Mapping[str, Manifest] | Iterable[Manifest]) -> tuple[Stream, ...]:
    """The streams of several shard sets, in order of name."""
    manifests: Sequence[Manifest] = list(shards.values() if isinstance(shards, Mapping) else shards)
    return tuple(sorted((one for made in manifests for one in streams_of(made)), key=lambda stream: stream.name))


def _counted(name: str, stats: Mapping[str, int]) -> Stream:
    named = parse(name)
    counts = (int(stats.get(key, 0)) for key in ("tokens", "documents"))
    return Stream(named.name, named.bucket, named.label, named.values, *counts)
