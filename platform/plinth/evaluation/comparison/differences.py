"""Paired differences between two models, with intervals, corrections and explanations."""

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
#: Number of slices shown per axis, largest first.
MOST_SLICES = 20
#: Number of bootstrap draws for the interval of a single model. No decision uses that interval.
_DRAWS_ALONE = 1_000

A, B, NONE = "a", "b", ""

#: A label as text, numbers and text; "below" marks an upper bound.
_LABEL = re.compile(r"<|\d+(?:\.\d+)?|[^<\d]+")


class Difference(Frozen):
    """One line of a comparison: a measure on all of its items, or on one slice of the items.

    `adjusted` is the p-value after Holm's correction. Each kind of measure is corrected separately, and so are totals
    and slices. `better` is `a`, `b`, or empty if the difference is not significant. `smallest` is the minimum
    detectable effect (80% power at the level that Holm's correction leaves for this line), or None if no effect is
    detectable. `seen` is the number of contaminated items, and `clean` is the difference without these items.
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
    """Return the lines of a comparison in display order: for each measure the total, then the slices by `label_key`."""
    found = map(Difference.model_validate, stats["lines"])
    return [
        line
        for _, own in groupby(found, key=lambda line: (line.kind, line.measure))
        for line in sorted(own, key=lambda line: (line.slice != WHOLE, label_key(line.slice)))
    ]


def label_key(label: str) -> list[tuple[int, float, str]]:
    """Return a sort key for slice labels that orders the numbers in them by value: `< 1 KiB` comes before `1 to 4 KiB`,
    and `4` before `16`."""
    return [
        (0, 0.0, "") if piece == "<" else (1, float(piece), "") if piece[0].isdigit() else (2, 0.0, piece)
        for piece in _LABEL.findall(label)
    ]


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """Return comparison lines with Holm-corrected p-values, the better model, and the minimum detectable effect."""
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
        others = max(1, verdicts.count(NONE))  # Holm tests the hypotheses not rejected at alpha over their number
        for i, p, verdict in zip(members, adjusted.tolist(), verdicts, strict=True):
            smallest = lines[i].difference.smallest_effect(tests=others)
            lines[i] = lines[i].model_copy(update={"adjusted": p, "better": verdict, "smallest": smallest})
    return lines


def better(difference: Estimate, fewer_is_better: bool, p: float | None = None) -> str:
    """Return the better model, `a` or `b`; an empty string if the interval includes 0 or the p-value is not
    significant."""
    p = difference.p if p is None else p
    if not difference.excludes() or p is None or p >= 1 - LEVEL:
        return NONE
    return A if (difference.value < 0) == fewer_is_better else B


def omitted_slices(pairs: Pairs) -> int:
    """Return the number of slices that have no comparison line. Only the largest slices of each axis have lines."""
    return largest_slices(pairs, MOST_SLICES)[1]


def of_measure(pairs: Pairs, seed: int) -> Iterator[Difference]:
    """Yield the comparison lines of one measure before Holm's correction: first for all pairs, then for the largest
    slices.

    Yields nothing if there are no pairs.
    """
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
    """Return the result of a comparison line in words, without its minimum detectable effect."""
    if line.better != NONE:
        return f"{line.better.upper()} is better"
    if line.smallest is None:
        return "unknown: no variance, or too few items"
    return "not significant after correction" if line.difference.excludes() else "no significant difference"


def result_text(line: Difference) -> str:
    """Return the result of a comparison line in words. "No significant difference" is always followed by the minimum
    detectable effect."""
    if line.better != NONE or line.smallest is None:
        return finding(line)
    return f"{finding(line)}; minimum detectable effect {line.smallest:.2g}"


# Reasons why the model that predicts held-out text better can be worse on a task, from the comparison alone.
#
# tokenizer      losses per token under different vocabularies are not comparable; bits per byte are
# distribution   the loss is lower on some slices only; the task may resemble the others
# contamination  the difference is gone or reversed without items in training text
# noise          the minimum detectable effect of the task

#: Answers count as unlike held-out text if their bits per byte exceed those of held-out text by this factor.
_UNLIKE = 2.0
#: Kinds that measure ability; the others measure loss.
ABILITIES = ("probes", "tasks", "proxies")


class Explanation(Frozen):
    """Explanation of a difference between two models, with numbers. `sort` is `tokenizer`, `distribution`,
    `contamination` or `unexplained`."""

    measure: str
    sort: str
    text: str


def reasons(
    lines: Sequence[Difference], same_tokenizer: bool, losses: tuple[float | None, float | None]
) -> list[Explanation]:
    """Explain the result of each measure whose better model has more bits per byte on held-out text.

    Args:
        lines: lines of the comparison.
        same_tokenizer: True if both models have the same tokenizer.
        losses: final training losses in nats per token; None if a loss is unknown.
    """
    loss = next((one for one in lines if one.kind == "slices" and one.slice == WHOLE), None)
    if loss is None:
        return []
    found = list(_per_token(loss, same_tokenizer, losses))
    for line in lines:
        against = line.better != NONE and loss.better != NONE and line.better != loss.better
        if line.kind in ABILITIES and line.slice == WHOLE and against:
            said = [*_contamination(line), *_distribution(line, lines, loss), *_tokenizer(line, same_tokenizer)]
            found += said or [Explanation(measure=line.measure, sort="unexplained", text=_unexplained(line, loss))]
    return found


def _per_token(loss: Difference, same: bool, losses: tuple[float | None, float | None]) -> Iterator[Explanation]:
    """Explain why the model with the lower training loss has more bits per byte."""
    a, b = losses
    if a is None or b is None or loss.better == NONE or a == b or (a < b) == (loss.better == "a"):
        return
    because = (
        "tokens of another vocabulary hold another amount of text" if not same else "it was taken on other batches"
    )
    sort = "tokenizer" if not same else "distribution"
    text = f"{_other(loss.better)} has the lower training loss ({min(a, b):.3f} against {max(a, b):.3f} nats per token)"
    yield Explanation(measure=loss.measure, sort=sort, text=f"{text} and more bits per byte: {because}.")


def _contamination(line: Difference) -> Iterator[Explanation]:
    if line.clean is None or line.clean_better == line.better:
        return
    became = "is gone" if line.clean_better == NONE else "is reversed"
    text = (
        f"Without {line.seen} items that training text held, the difference {became}: "
        f"{line.clean.value:+.4g} ({line.clean.low:+.4g} to {line.clean.high:+.4g})."
    )
    yield Explanation(measure=line.measure, sort="contamination", text=text)


def _distribution(line: Difference, lines: Sequence[Difference], loss: Difference) -> Iterator[Explanation]:
    """Name the held-out slices on which the model that is better at the task has fewer bits per byte."""
    own = [one for one in lines if one.kind == "slices" and one.slice != WHOLE and one.better == line.better]
    if own:
        named = ", ".join(f"{one.slice} ({one.difference.value:+.3f})" for one in own[:4])
        text = f"{_model(loss.better)} has fewer bits per byte on the whole, {_model(line.better)} on {named}."
        yield Explanation(measure=line.measure, sort="distribution", text=text)

    if line.fewer_is_better and min(line.a.value, line.b.value) > _UNLIKE * max(loss.a.value, loss.b.value):
        text = (
            f"Its answers are unlike the held-out text: {line.a.value:.3g} and {line.b.value:.3g} bits per byte "
            f"against {loss.a.value:.3g} and {loss.b.value:.3g}. A closer fit to one can be a worse fit to the other."
        )
        yield Explanation(measure=line.measure, sort="distribution", text=text)


def _tokenizer(line: Difference, same: bool) -> Iterator[Explanation]:
    if not same:
        text = (
            "The tokenizers differ: short answers begin at other boundaries, which bits over whole documents even out."
        )
        yield Explanation(measure=line.measure, sort="tokenizer", text=text)


def _unexplained(line: Difference, loss: Difference) -> str:
    return (
        f"{_model(loss.better)} predicts held-out text better, {_model(line.better)} does better here; no slice, "
        "contaminated item or tokenizer of this comparison says why."
    )


def joined(reasons: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Group explanations that have the same text. Return each group as its measures, and the text followed by its
    sort."""
    found: dict[str, list[str]] = {}
    for one in reasons:
        found.setdefault(f"{one['text']} ({one['sort']})", []).append(one["measure"])
    return [(", ".join(measures), text) for text, measures in found.items()]


def _model(side: str) -> str:
    return side.upper()


def _other(side: str) -> str:
    return "B" if side == "a" else "A"
