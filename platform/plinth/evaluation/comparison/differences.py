"""Paired differences with their intervals, and what may be said of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from plinth.evaluation import statistics
from plinth.evaluation.comparison.pairs import Pairs, largest_slices
from plinth.evaluation.statistics import Estimate
from plinth.records import Frozen

WHOLE = "all"
LEVEL = 0.95
#: Slices shown of each axis, the largest.
MOST_SLICES = 20
#: Draws for the interval of one model alone, which decides nothing.
_DRAWS_ALONE = 1_000

A, B, NONE = "a", "b", ""

#: A label as "below", numbers and text.
_LABEL = re.compile(r"<|\d+(?:\.\d+)?|[^<\d]+")


class Difference(Frozen):
    """One line of a comparison: a measure on all its items, or on a slice of them.

    `adjusted` is p by Holm over all lines of its kind and sort: wholes of a kind, slices of a kind. `better` is `a`,
    `b`, or empty where the difference could be none; then `smallest` is the effect that would have been found in four
    of five such comparisons, at the level that Holm leaves for this line; None where no effect would have been.
    `clean` is the difference without the `seen` items, which training text held or nearly held.
    """

    kind: str
    measure: str
    slice: str
    fewer_is_better: bool
    a: Estimate
    b: Estimate
    difference: Estimate
    adjusted: float
    better: str
    smallest: float | None
    seen: int = 0
    clean: Estimate | None = None
    clean_better: str = NONE


def in_order(stats: Mapping[str, Any]) -> list[Difference]:
    """The lines of a comparison's stats as people read them: of each measure the whole, then slices by `label_key`."""
    found = map(Difference.model_validate, stats["lines"])
    return [
        line
        for _, own in groupby(found, key=lambda line: (line.kind, line.measure))
        for line in sorted(own, key=lambda line: (line.slice != WHOLE, label_key(line.slice)))
    ]


def label_key(label: str) -> list[tuple[int, float, str]]:
    """For sorting: numbers in a label by their value, `< 1 KiB` before `1 to 4 KiB`, and `16` after `4`."""
    return [
        (0, 0.0, "") if piece == "<" else (1, float(piece), "") if piece[0].isdigit() else (2, 0.0, piece)
        for piece in _LABEL.findall(label)
    ]


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """Lines with p corrected for all lines of their kind, what may be said of them, and what could have been seen."""
    lines = list(found)
    families: dict[tuple[str, bool], list[int]] = {}
    for i, line in enumerate(lines):
        families.setdefault((line.kind, line.slice == WHOLE), []).append(i)
    for members in families.values():
        adjusted = statistics.holm([lines[i].adjusted for i in members])
        verdicts = [
            better(lines[i].difference, lines[i].fewer_is_better, p)
            for i, p in zip(members, adjusted.tolist(), strict=True)
        ]
        others = max(1, verdicts.count(NONE))  # Holm tests what is not found at alpha over the number not found
        for i, p, verdict in zip(members, adjusted.tolist(), verdicts, strict=True):
            smallest = lines[i].difference.smallest_effect(tests=others)
            lines[i] = lines[i].model_copy(update={"adjusted": p, "better": verdict, "smallest": smallest})
    return lines


def better(difference: Estimate, fewer_is_better: bool, p: float | None = None) -> str:
    """The better model, or empty: the interval holds 0, or p does not rule "none" out."""
    p = difference.p if p is None else p
    if not difference.excludes() or p is None or p >= 1 - LEVEL:
        return NONE
    return A if (difference.value < 0) == fewer_is_better else B


def left_out(pairs: Pairs) -> int:
    """Slices that have no line, being small."""
    return largest_slices(pairs, MOST_SLICES)[1]


def of_measure(pairs: Pairs, seed: int) -> Iterator[Difference]:
    """The line of all pairs, then those of the largest slices; not corrected yet. None where nothing has a pair."""
    if not pairs.rows.num_rows:
        return
    yield _line(pairs, WHOLE, seed)
    for label, rows in largest_slices(pairs, MOST_SLICES)[0].items():
        kept = np.zeros(pairs.rows.num_rows, dtype=np.bool_)
        kept[rows] = True
        yield _line(pairs.where(kept), label, seed)


def _line(pairs: Pairs, label: str, seed: int) -> Difference:
    seen = pairs.seen()
    gap = _gap(pairs, seed)
    clean = _gap(pairs.where(~seen), seed) if seen.any() and not seen.all() else None
    return Difference(
        kind=pairs.kind,
        measure=pairs.measure,
        slice=label,
        fewer_is_better=pairs.fewer_is_better,
        a=_alone(pairs, "a", seed),
        b=_alone(pairs, "b", seed),
        difference=gap,
        adjusted=1.0 if gap.p is None else gap.p,
        better=NONE,
        smallest=None,
        seen=int(seen.sum()),
        clean=clean,
        clean_better=better(clean, pairs.fewer_is_better) if clean else NONE,
    )


def _gap(pairs: Pairs, seed: int) -> Estimate:
    a, b, clusters = pairs.column("a"), pairs.column("b"), pairs.clusters()
    if pairs.ratio:
        return statistics.ratio_difference(a, b, pairs.column("weight"), clusters, seed=seed, level=LEVEL)
    return statistics.paired_difference(a, b, clusters, level=LEVEL)


def _alone(pairs: Pairs, side: str, seed: int) -> Estimate:
    values, clusters = pairs.column(side), pairs.clusters()
    if pairs.ratio:
        weight = pairs.column("weight")
        return statistics.ratio(values, weight, clusters, seed=seed, draws=_DRAWS_ALONE, level=LEVEL)
    return statistics.mean(values, clusters, level=LEVEL)


def finding(line: Difference) -> str:
    """Return the finding of a line in words, without its minimum detectable effect."""
    if line.better != NONE:
        return f"{line.better.upper()} is better"
    if line.smallest is None:
        return "unknown: no variance, or too few items"
    return "not significant after correction" if line.difference.excludes() else "no significant difference"


def said(line: Difference) -> str:
    """Return the finding of a line; "no significant difference" always names the minimum detectable effect."""
    if line.better != NONE or line.smallest is None:
        return finding(line)
    return f"{finding(line)}; minimum detectable effect {line.smallest:.2g}"
