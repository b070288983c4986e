"""From the statistics of each evaluation asset, as the asset made them, to a section of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from plinth.report.evaluation.data import Measure, MeasureGroup, Section, TextTable

Stats = Mapping[str, Any]

BITS = "bits per byte"


def measure(name: str, found: Stats, value: str = "value", **more: Any) -> Measure:
    """A measure out of the fields of an estimate, which every statistic of an evaluation carries."""
    note = ", ".join(found.get("flags", ()))
    fields = {"low": found["low"], "high": found["high"], "n": found["n"], "seed": found.get("seed"), "note": note}
    return Measure(name=name, value=found[value], **fields | more)


def slices(stats: Stats) -> Section:
    """Bits per byte by slice, of every axis, with gzip as the reference that everybody knows."""
    axes = {"bucket": stats["slices"]} | stats["axes"]
    groups = [_slices("all held-out text, then by bucket", {"all": stats["overall"]} | axes.pop("bucket"))]
    groups += [_slices(f"by {axis}", rows) for axis, rows in axes.items() if len(rows) > 1]
    return Section(
        key="slices",
        title="Held-out text",
        lead="Bits of the model over bytes of text: comparable between tokenizers. Intervals resample documents.",
        groups=tuple(groups),
        tables=tuple(_items(stats.get("protected", {}))),
    )


def _slices(title: str, rows: Mapping[str, Stats]) -> MeasureGroup:
    measures = (measure(name, row, "model", reference=row["gzip"]) for name, row in rows.items())
    return MeasureGroup(title=title, unit=BITS, better="lower", reference_name="gzip -9", measures=tuple(measures))


def _items(protected: Mapping[str, Mapping[str, Stats]]) -> Iterable[TextTable]:
    """Items of protected sets by whether training text held them."""
    rows = [
        (name, status, f"{row['items']:,}", f"{row['model']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}")
        for name, found in protected.items()
        for status, row in found.items()
    ]
    if rows:
        yield TextTable(
            title="Protected sets, by whether training text held the item",
            header=("set", "status", "items", BITS, "95% interval"),
            rows=tuple(rows),
        )


def tasks(name: str, stats: Stats) -> Section:
    """Every metric of the tasks of a set."""
    groups = []
    for metric in sorted({metric for facts in stats["tasks"].values() for metric in facts["metrics"]}):
        measures = [
            measure(task, facts["metrics"][metric])
            for task, facts in stats["tasks"].items()
            if metric in facts["metrics"]
        ]
        better = "lower" if metric in LOWER_IS_BETTER else "higher"
        groups.append(MeasureGroup(title=metric, unit=metric, better=better, measures=tuple(measures)))
    damaged = f" {stats['damaged']:,} damaged items were left out." if stats["damaged"] else ""
    return Section(
        key=f"tasks-{name}",
        title=f"Tasks: {name}",
        lead=f"Tasks of lm-evaluation-harness, from files of this workspace; intervals are over items.{damaged}",
        groups=tuple(groups),
    )


LOWER_IS_BETTER = ("bits_per_byte", "byte_perplexity", "word_perplexity", "perplexity", "ter", "brier_score")
