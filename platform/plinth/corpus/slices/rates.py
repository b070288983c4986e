"""Bounds for the gates to measure, and the rates of each gate by slice: recall, false positives and over-removal, with
intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from plinth.records import Frozen, internal


class GateSlices(Frozen):
    """Measurement of one gate on labeled documents. Limits apply to all documents together and to every sufficiently
    large slice.

    Recall and false positives are shares of documents; over-removal is the share of the bytes of good text.
    """

    removes: str | None = Field(
        None,
        description="Expression over annotation columns that is true for documents that the gate removes. By default, "
        "the rules of `policy` that read a column of the gate's annotator.",
    )
    policy: str = Field(
        "default",
        description="Name of the policy that contains the gate's rules; used if `removes` is not set.",
    )
    documents_per_slice: int = internal(
        200, ge=0, description="Number of documents to generate per label and slice, if `lists` is empty."
    )
    seed: int = internal(7, ge=0, description="Seed for generating documents.")
    lists: tuple[str, ...] = Field(
        (), description="Your labeled sets in `corpus.lists`: JSONL with `text`, `label` (good, bad) and `slice`."
    )
    reviews: bool = internal(
        True,
        description="If true, also measure on documents that reviewers labeled (`reviews/` in the workspace).",
    )
    min_documents: int = internal(
        30,
        ge=1,
        description="Minimum number of documents per label for the limits to apply to a slice; smaller slices are "
        "only reported.",
    )
    min_recall: float = Field(0.0, ge=0, le=1, description="Minimum share of bad documents that the gate removes.")
    max_false_positive: float = Field(
        0.05, ge=0, le=1, description="Maximum share of good documents that the gate removes."
    )
    max_over_removal: float = Field(
        1.0, ge=0, le=1, description="Maximum share of the bytes of good text that the gate removes."
    )


#: Normal quantile of a two-sided 95% interval.
Z = 1.959964
ALL = "all"


@dataclass(frozen=True)
class LabelledOutcome:
    """Outcome of a gate for one labeled document."""

    slice: str
    bad: bool
    removed: bool
    bytes: int


def wilson(hits: float, trials: float, z: float = Z) -> tuple[float, float]:
    """Return the Wilson interval for the share `hits / trials` (Wilson 1927). The interval is valid even for few
    trials, and for shares of 0 and 1. The numbers are fractions if outcomes have weights.

    Raises:
        ValueError: there is less than one trial.
    """
    if trials < 1:
        raise ValueError("an interval needs trials")
    share, square = hits / trials, z * z / trials
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    # The ends are exact where the share is: rounding must not cut them off.
    return (max(0.0, middle - half) if hits else 0.0), (min(1.0, middle + half) if hits < trials else 1.0)


def by_slice(outcomes: Iterable[LabelledOutcome]) -> dict[str, dict[str, Any]]:
    """Return the rates of a gate on all documents (`all`) and on every slice, sorted by name.

    Returns:
        Numbers of documents: `good`, `bad`, `removed_good`, `removed_bad`. Bytes: `good_bytes`, `removed_good_bytes`.
        `recall` and `false_positive` are shares of documents, with `_low` and `_high` of their intervals.
        `over_removal` is the share of bytes of good text. Shares are None if the divisor is 0.
    """
    counts: dict[str, dict[str, int]] = {}
    for one in outcomes:
        for name in (ALL, one.slice):
            _add(counts.setdefault(name, dict.fromkeys(_COUNTS, 0)), one)
    names = [ALL, *sorted(set(counts) - {ALL})] if counts else []
    return {name: counts[name] | _rates(counts[name]) for name in names}


_COUNTS = ("good", "bad", "good_bytes", "removed_good", "removed_bad", "removed_good_bytes")


def _add(counts: dict[str, int], one: LabelledOutcome) -> None:
    kind = "bad" if one.bad else "good"
    counts[kind] += 1
    counts[f"removed_{kind}"] += one.removed
    if not one.bad:
        counts["good_bytes"] += one.bytes
        counts["removed_good_bytes"] += one.bytes * one.removed


def _rates(n: dict[str, int]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for name, hits, trials in (
        ("recall", n["removed_bad"], n["bad"]),
        ("false_positive", n["removed_good"], n["good"]),
    ):
        low, high = wilson(hits, trials) if trials else (None, None)
        out[name] = _rounded(hits / trials) if trials else None
        out |= {f"{name}_low": _rounded(low), f"{name}_high": _rounded(high)}
    out["over_removal"] = _rounded(n["removed_good_bytes"] / n["good_bytes"]) if n["good_bytes"] else None
    return out


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


#: Columns of `table`.
HEADER = ("slice", "good", "bad", "recall (95%)", "false positives (95%)", "over-removal")


def table(stats: Mapping[str, Any]) -> list[list[Any]]:
    """Return the rows of a table of rates with the columns `HEADER`, from the statistics of `slices/{gate}`."""
    return [
        [
            name,
            row["good"],
            row["bad"],
            _with_interval(row, "recall"),
            _with_interval(row, "false_positive"),
            percent(row["over_removal"]),
        ]
        for name, row in stats["slices"].items()
    ]


def percent(share: float | None) -> str:
    """Format a share as a percentage with one decimal, or as a dash if it is None."""
    return "-" if share is None else f"{share:.1%}"


def _with_interval(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "-" if low is None else f"{percent(row[name])} ({100 * low:.1f}-{100 * high:.1f})"
