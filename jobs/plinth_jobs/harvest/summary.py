"""Bounds of a harvest, and its summary."""

from __future__ import annotations

from collections.abc import Mapping

from plinth.records import Frozen

MB = 10**6


class Caps(Frozen):
    """Bounds in bytes of plain text or HTML per bucket, and per file of code and manuals."""

    web: int = 9 * MB
    code: int = 8 * MB
    prose: int = 8 * MB
    manuals: int = 3 * MB
    file: int = 200_000


class Count(Frozen):
    """Documents and their bytes."""

    documents: int = 0
    bytes: int = 0


class BucketSummary(Frozen):
    """One bucket's harvest. `licences` counts by SPDX expression; `note` is for people."""

    documents: int
    bytes: int
    files: int
    licences: Mapping[str, Count]
    note: str = ""


class HarvestSummary(Frozen):
    """All buckets. `fresh` is false when an earlier harvest was kept and nothing was written."""

    buckets: Mapping[str, BucketSummary]
    fresh: bool = True
