"""What else a source changes: probes, memorisation, toxicity, personal data, as the evaluation of checkpoints has them.

Every measure of both arms is paired item by item and seed by seed (`evaluation.comparison.readers`); items are summed
by what was sampled, as a prompt or a template. The interval is over seeds and over these; p is corrected by Holm over
all measures of all uses.

K  seeds
C  clusters
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.evaluation import statistics
from plinth.evaluation.comparison import readers
from plinth.evaluation.comparison.pairs import Pairs
from plinth.evaluation.statistics import DEGENERATE, DOCUMENTS_ONLY, Estimate
from plinth.records import Frozen, Manifest
from plinth.storage.store import Store

#: Assets that measure a checkpoint, where a recipe asks for them.
MEASURED = ("probes", "fairness", "memorisation/canaries", "memorisation/extraction", "pii/outputs")
ALPHA = 0.05
#: Columns [K, C] of both arms, and weights [C].
Table = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


class MeasuredPair(NamedTuple):
    """Both arms of a use with a seed, as measured, by asset."""

    use: str
    seed: int
    with_source: Mapping[str, Manifest]
    without_source: Mapping[str, Manifest]


class SourceChange(Frozen):
    """A measure with the source less that without it. `worse` says that the arm with it is, by its corrected p."""

    use: str
    kind: str
    measure: str
    fewer_is_better: bool
    seeds: int
    items: int
    change: Estimate
    adjusted: float = 1.0
    worse: bool = False
    better: bool = False
    smallest: float | None = None


def changes(store: Store, pairs: Sequence[MeasuredPair]) -> tuple[list[SourceChange], list[str]]:
    """All changes, corrected, and what could not be measured, with why."""
    found: list[SourceChange] = []
    problems: list[str] = []
    for use in dict.fromkeys(one.use for one in pairs):
        own = [one for one in pairs if one.use == use]
        measures: dict[tuple[str, str], list[Pairs]] = {}
        for asset in MEASURED:
            problems += _read(store, asset, own, measures)
        found += [line for measured in measures.values() if (line := _line(use, measured))]
    return corrected(found), list(dict.fromkeys(problems))


def _read(
    store: Store, asset: str, own: Sequence[MeasuredPair], measures: dict[tuple[str, str], list[Pairs]]
) -> list[str]:
    """Pairs of an asset of every seed, into `measures`; why there are none, in words."""
    both = [one for one in own if asset in one.with_source and asset in one.without_source]
    if not both:
        return [f"{asset}: the recipe does not ask for it"] if own else []
    reader, found = readers.reader(asset), list[Pairs]()
    assert reader is not None
    try:
        for one in both:
            found += reader(store, one.with_source[asset], one.without_source[asset])
    except IntegrityError as error:
        return [f"{asset}, {both[0].use}: {error.what}"]
    for pairs in found:
        measures.setdefault((pairs.kind, pairs.measure), []).append(pairs)
    return []


def _line(use: str, measured: Sequence[Pairs]) -> SourceChange | None:
    a, b, weights = table(measured)
    if not weights.sum() > 0:
        return None
    first = measured[0]
    return SourceChange(
        use=use, kind=first.kind, measure=first.measure, fewer_is_better=first.fewer_is_better, seeds=len(a),
        items=a.shape[1], change=statistics.crossed_difference(a, b, weights),
    )  # fmt: skip


def table(measured: Sequence[Pairs]) -> Table:
    """Values of both arms by seed and cluster, of items that every seed has."""
    rows = [_rows(one) for one in measured]
    common = sorted(set(rows[0]).intersection(*rows[1:]))
    names = {rows[0][item][0]: None for item in common}
    at = {name: place for place, name in enumerate(names)}
    a, b = (np.zeros((len(rows), len(at))) for _ in range(2))
    weights = np.zeros(len(at))
    for item in common:
        place = at[rows[0][item][0]]
        weights[place] += rows[0][item][1]
        for seed, own in enumerate(rows):
            a[seed, place] += own[item][2]
            b[seed, place] += own[item][3]
    return a, b, weights


def _rows(pairs: Pairs) -> dict[tuple[str, int], tuple[str, float, float, float]]:
    """Cluster, weight and both values of each item; the n-th of an item that occurs again is another."""
    found: dict[tuple[str, int], tuple[str, float, float, float]] = {}
    counts: dict[str, int] = {}
    columns = ("item", "cluster", "weight", "a", "b")
    for item, cluster, weight, a, b in zip(*(pairs.rows[name].to_pylist() for name in columns), strict=True):
        counts[item] = counts.get(item, 0) + 1
        found[item, counts[item]] = (cluster, weight if pairs.ratio else 1.0, a, b)
    return found


def corrected(lines: Sequence[SourceChange]) -> list[SourceChange]:
    """Lines with Holm's p over all that can be tested, and which arm is better by it."""
    found = list(lines)
    family = [at for at, one in enumerate(found) if not {DEGENERATE, DOCUMENTS_ONLY} & set(one.change.flags)]
    if not family:
        return found
    raw = [found[at].change.p for at in family]
    adjusted = statistics.holm([1.0 if p is None else p for p in raw]).tolist()
    for at, p in zip(family, adjusted, strict=True):
        line = found[at]
        significant = line.change.excludes() and p < ALPHA
        worse = (line.change.value > 0) == line.fewer_is_better
        found[at] = line.model_copy(
            update={"adjusted": p, "worse": significant and worse, "better": significant and not worse,
                    "smallest": line.change.smallest_effect(tests=len(family))}
        )  # fmt: skip
    return found
