"""Output of a harvest: file choice within a size limit, writing of files that differ, and a summary."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plinth.records import Frozen
from plinth.storage.atomic import named_failures

MB = 10**6


class Caps(Frozen):
    """Size limits of a harvest: bytes of plain text or HTML per bucket, and bytes per file of code and manuals."""

    web: int = 9 * MB
    code: int = 8 * MB
    prose: int = 8 * MB
    manuals: int = 3 * MB
    file: int = 200_000


class Count(Frozen):
    """Number of documents and their total bytes."""

    documents: int = 0
    bytes: int = 0


class BucketSummary(Frozen):
    """Summary of the harvest of one bucket. `licences` has the number of documents by SPDX expression; `note` is shown
    to the user."""

    documents: int
    bytes: int
    files: int
    licences: Mapping[str, Count]
    note: str = ""


class HarvestSummary(Frozen):
    """Summary of all buckets. `fresh` is False if an earlier harvest was kept and nothing was written."""

    buckets: Mapping[str, BucketSummary]
    fresh: bool = True


@dataclass
class Output:
    """Files of one bucket under `root` by relative name, with document counts by license.

    Args:
        counted: function that is called after each document with the number of documents so far.
    """

    root: Path
    counted: Callable[[int], None] = lambda documents: None
    note: str = ""
    files: dict[str, int] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)

    def count(self, licence: str, size: int) -> None:
        """Count one document of `size` bytes under its license."""
        pair = self.counts.setdefault(licence, [0, 0])
        pair[0] += 1
        pair[1] += size
        self.counted(sum(documents for documents, _ in self.counts.values()))

    def write(self, name: str, data: bytes) -> None:
        """Write a file, unless a file with these bytes is already there."""
        path = self.root / name
        self.files[name] = len(data)
        with named_failures(path):
            if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def summary(self) -> BucketSummary:
        """Return the numbers of documents, bytes and files in this bucket."""
        licences = {name: Count(documents=n, bytes=size) for name, (n, size) in sorted(self.counts.items())}
        return BucketSummary(
            documents=sum(count.documents for count in licences.values()),
            bytes=sum(count.bytes for count in licences.values()),
            files=len(self.files),
            licences=licences,
            note=self.note,
        )


def draw(name: str) -> int:
    """Return a number that depends only on a name. The number decides the order of the candidate names and the output
    file of each name."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8], "big")


def take(sizes: Mapping[str, int], bound: int) -> list[str]:
    """Choose names in the order of their hash while the sum of their sizes is within the limit. Return the chosen
    names, sorted."""
    taken, held = [], 0
    for name in sorted(sizes, key=draw):
        if held + sizes[name] <= bound:
            taken.append(name)
            held += sizes[name]
    return sorted(taken)


def level(totals: Iterable[int], bound: int) -> int:
    """Return the largest share L for which the sum of min(total, L) over all totals is within the limit."""
    left, waiting = bound, sorted(totals)
    for index, total in enumerate(waiting):
        share = left // (len(waiting) - index)
        if total > share:
            return share
        left -= total
    return max(waiting, default=0)


def gzipped(data: bytes) -> bytes:
    """Compress data without a timestamp in the gzip header, so that equal input gives equal output."""
    return gzip.compress(data, compresslevel=6, mtime=0)


def shares(names: Iterable[str], count: int) -> Iterator[tuple[int, list[str]]]:
    """Assign names to `count` files by hash, so that a new name changes only the file to which it is assigned."""
    dealt: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(names):
        dealt[draw(name) % count].append(name)
    return ((index, group) for index, group in enumerate(dealt) if group)
