"""Keys of weights: a bucket, a stream of a bucket, or every stream with certain values.

    web                          all of the bucket
    web/language=de              its German streams, whatever else they are
    web/language=de,tier=high    and of those the best
    language=de                  the German streams of every bucket
    *                            everything
    web/other                    values too rare in `web` for a stream of their own

A stream takes the weight of the most precise key that names it: the one with the most values, then the one that
names the bucket.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

EVERYTHING = "*"
#: Label of the stream of rare values; see `tokens.shards.streams`.
REST = "other"


@dataclass(frozen=True)
class Selector:
    """A parsed key. `bucket` is None for every bucket."""

    text: str
    bucket: str | None
    values: Mapping[str, str] = field(default_factory=dict)
    rest: bool = False

    @property
    def precision(self) -> tuple[int, int]:
        """More is more precise."""
        return len(self.values) + self.rest, self.bucket is not None

    def names(self, bucket: str, label: str, values: Mapping[str, str]) -> bool:
        """Whether it names the stream of this bucket, label and values."""
        if self.bucket not in (None, bucket) or (self.rest and label != REST):
            return False
        return all(values.get(axis) == value for axis, value in self.values.items())


@lru_cache(maxsize=4096)
def parse(text: str) -> Selector:
    """Parse a key of the recipe.

    Raises:
        ValueError: it is none of the forms above.
    """
    if text == EVERYTHING:
        return Selector(text, None)
    bucket, slash, label = text.partition("/")
    if not slash and "=" in text:
        bucket, label = "", text
    if label == REST:
        return Selector(text, bucket or None, rest=True)
    pairs = [pair.partition("=") for pair in label.split(",")] if label else []
    if (not bucket and not pairs) or (slash and not label) or not all(axis and value for axis, _, value in pairs):
        raise ValueError(f"{text!r} is neither a bucket, nor `bucket/axis=value,…`, nor `axis=value,…`")
    return Selector(text, bucket or None, {axis: unquote(value) for axis, _, value in pairs})


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` or the known names, for messages about unknown names."""
    have = sorted(known)
    near = difflib.get_close_matches(name, have, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else f"; have: {', '.join(have) or 'none'}"


def problems(text: str, buckets: Iterable[str], axes: Iterable[str]) -> Iterator[str]:
    """Errors of a key that the recipe alone shows; values are known once there are shards."""
    try:
        key = parse(text)
    except ValueError as error:
        yield str(error)
        return
    buckets, axes = sorted(buckets), sorted(axes)
    if key.bucket is not None and key.bucket not in buckets:
        yield f"no bucket {key.bucket!r}{nearest(key.bucket, buckets)}"
    for axis in key.values:
        if axis not in axes:
            yield f"shards.axes has no axis {axis!r}{nearest(axis, axes)}"
