"""Verdict on a source: buy, do not buy, or not decided, by intervals that are corrected for multiple comparisons.

A use is a size of the experiment: training from new weights, or annealing. The gain of a use is the bits per byte of
the base arm minus the bits per byte of the arm with the source. The interval of the gain covers seeds and documents at
the level 1 - 5% / uses (Bonferroni).

    buy          for some use the whole interval is above the minimum gain, and no other measure got worse
    do not buy   for every use the whole interval is at or below the minimum gain; or the sample has too little new text
    not decided  all other cases; the verdict then states the gain that such an experiment detects with 80% probability

A source without any gain is bought in at most 5% of experiments, for any number of uses. Each use has one two-sided
test, and only half of the test's errors lead to a purchase. In 400 simulated experiments with two uses and three seeds,
a source without gain was bought in 0.5% if documents vary most, and in 1% if training runs vary most.

*Changes*: probes, memorization, toxicity and personal data of both arms are paired by item and seed
(`evaluation.comparison.pairs`). Items are summed by sampling unit, such as a prompt or a template. The interval covers
seeds and these units; p-values are Holm-corrected over all measures and uses. If a measure got worse, a person has to
weigh it, so the verdict is not decided.

*Prices*: an effective token costs P / (N rho_parse rho_quality (1 - r_dup)), where P is the price and N the number of
tokens in all text of the source. A gain of one bit per byte costs P / gain. Both prices fall as the amount rises, so
the upper end of an amount gives the lower end of its price. Padding (r_pad) belongs to a run and is not included.

    K  seeds
    C  clusters
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.evaluation import statistics
from plinth.evaluation.comparison.pairs import Pairs, reader
from plinth.evaluation.statistics import DEGENERATE, DOCUMENTS_ONLY, Estimate
from plinth.records import Frozen, Manifest
from plinth.report.page import StateTile
from plinth.storage.store import Store
from plinth_jobs.index_tiles import AddedTile, page_link, some
from plinth_lab.experiments.effects import ArmScores, by_run, lacking, require_same_text
from plinth_lab.source_value.question import WITH, WITHOUT, SourceQuestion


class PriceRange(Frozen):
    """Price with its interval. If the amount could be 0, the price has no upper bound, and the value is None."""

    value: float | None
    low: float | None
    high: float | None


class TokenPrice(Frozen):
    """Effective tokens of a whole source, with the factors of D_eff and the price.

    Args:
        nominal_tokens: tokens in all text of the source, including text that does not parse.
        rho_parse, rho_quality, r_dup: factors of D_eff.
        tokens, low, high: effective tokens with their interval.
        per_token: price of one effective token.
    """

    nominal_tokens: float
    rho_parse: float
    rho_quality: float
    r_dup: float
    tokens: float
    low: float
    high: float
    per_token: PriceRange


def ranged(price: float, value: float, low: float, high: float) -> PriceRange:
    """Return the price per unit if `price` buys `value` units, with its range for `low` to `high` units.

    If the amount is 0 or less, there is no price.
    """
    cheap, middle, dear = (price / one if one > 0 else None for one in (high, value, low))
    return PriceRange(value=middle, low=cheap, high=dear)


def of_gain(price: float, gain: Estimate | None) -> PriceRange | None:
    """Return the price of a gain of one bit per byte, or None if the interval of the gain includes 0."""
    if gain is None or not gain.excludes() or gain.value <= 0:
        return None
    return ranged(price, gain.value, gain.low, gain.high)


def of_tokens(price: float, found: Mapping[str, Any]) -> TokenPrice:
    """Return the price of an effective token, from the results of a sample (`assessment.assess`)."""
    factors, tokens = found["effective"]["factors"], found["effective"]["tokens"]
    ends = {name: float(tokens.get(name, 0.0)) for name in ("value", "low", "high")}
    return TokenPrice(
        **{name: factors[name] for name in ("nominal_tokens", "rho_parse", "rho_quality", "r_dup")},
        tokens=ends["value"], low=ends["low"], high=ends["high"], per_token=ranged(price, **ends),
    )  # fmt: skip


def amount(money: float) -> str:
    """Format an amount of money: four significant digits, or a whole number from 1,000 on."""
    return f"{money:,.0f}" if money >= 1000 else f"{money:,.4g}"


def priced(price: PriceRange | None, currency: str, scale: float = 1.0) -> str:
    """Format a price with its interval in words. If the amount could be 0, the result is `no bound`."""
    if price is None:
        return "–"
    ends = (price.value, price.low, price.high)
    if not any(ends):
        return "no bound" if price.value is None else f"0 {currency}"
    value, low, high = ("no bound" if one is None else amount(one * scale) for one in ends)
    return f"{value} {currency} ({low} to {high})"


#: Assets that measure a checkpoint, where a recipe asks for them.
MEASURED = ("probes", "fairness", "memorisation/canaries", "memorisation/extraction", "pii/outputs")
ALPHA: Final = 0.05
#: Columns [K, C] of both arms, and weights [C].
Table = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


class MeasuredPair(NamedTuple):
    """Measurements of both arms at one use of the source with one seed, by asset."""

    use: str
    seed: int
    with_source: Mapping[str, Manifest]
    without_source: Mapping[str, Manifest]


class SourceChange(Frozen):
    """Difference of a measure between the arm with the source and the arm without it.

    `worse` is True if the arm with the source is significantly worse, by the corrected p-value.
    """

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
    """Return all changes of measures with corrected p-values, and the reasons why other measures are missing."""
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
    """Add the paired values of an asset for every seed to `measures`. If there are none, return the reasons."""
    both = [one for one in own if asset in one.with_source and asset in one.without_source]
    if not both:
        return [f"{asset}: not enabled in the recipe"] if own else []
    read, found = reader(asset), list[Pairs]()
    assert read is not None
    try:
        for one in both:
            found += read(store, one.with_source[asset], one.without_source[asset])
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
    """Return the values of both arms by seed and cluster, and the cluster weights. Only items that all seeds share are
    used."""
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
    """Return cluster, weight and both values of each item. Items that occur several times are numbered."""
    found: dict[tuple[str, int], tuple[str, float, float, float]] = {}
    counts: dict[str, int] = {}
    columns = ("item", "cluster", "weight", "a", "b")
    for item, cluster, weight, a, b in zip(*(pairs.rows[name].to_pylist() for name in columns), strict=True):
        counts[item] = counts.get(item, 0) + 1
        found[item, counts[item]] = (cluster, weight if pairs.ratio else 1.0, a, b)
    return found


def corrected(lines: Sequence[SourceChange]) -> list[SourceChange]:
    """Return the changes with Holm-corrected p-values. `better` and `worse` are set for the arm with the source.

    The correction covers all changes that can be tested.
    """
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


Answer = Literal["buy", "do not buy", "not decided"]
BUY: Final = "buy"
DO_NOT_BUY: Final = "do not buy"
NOT_DECIDED: Final = "not decided"
#: Documents without which no interval has a width.
FEWEST: Final = 2


class SourceGain(Frozen):
    """Gain in bits per byte at one use of the source, positive if the source helps, or None if no pair of runs has
    scores.

    `smallest` is the gain that an experiment of this kind detects with a probability of 80%. `per_bit` is the price of
    a gain of one bit per byte, if the interval excludes 0. `lacking` names runs without scores.
    """

    use: str
    seeds: tuple[int, ...] = ()
    documents: int = 0
    with_source: float | None = None
    without_source: float | None = None
    gain: Estimate | None = None
    smallest: float | None = None
    per_bit: PriceRange | None = None
    lacking: tuple[str, ...] = ()

    @property
    def claims(self) -> bool:
        """True if the interval supports a claim: it covers seeds and documents, and its width is above 0."""
        return self.gain is not None and not {DEGENERATE, DOCUMENTS_ONLY} & set(self.gain.flags)


class SourceVerdict(Frozen):
    """Verdict on a source, with its evidence.

    Args:
        verdict, reason: result, and its explanation in words.
        price, currency, least_gain, share: values from the question; `share` is by use.
        level: confidence level for the interval of each gain.
        gains: gain by use.
        changes: changes of probes, memorization, toxicity and personal data; `unmeasured` lists missing measures with
            reasons.
        tokens: price of an effective token.
    """

    verdict: Answer
    reason: str
    price: float
    currency: str
    least_gain: float
    share: Mapping[str, float]
    level: float
    gains: tuple[SourceGain, ...]
    changes: tuple[SourceChange, ...] = ()
    unmeasured: tuple[str, ...] = ()
    tokens: TokenPrice


def verdict(
    question: SourceQuestion,
    sizes: Sequence[str],
    sample: Mapping[str, Any],
    scores: Sequence[ArmScores],
    changes: Sequence[SourceChange] = (),
    unmeasured: Sequence[str] = (),
) -> SourceVerdict:
    """Return the verdict on a source, from its sample and the scores of the runs.

    Args:
        sizes: sizes of the experiment, which are the uses.
        sample: stats of the sample: `assessment.assess`, and `refusal` if nothing was trained.
        scores: scores of all runs, including failed runs.
        changes, unmeasured: results of `changes`.

    Raises:
        IntegrityError: runs were scored on different text.
    """
    require_same_text(scores)
    level, runs = 1 - ALPHA / len(sizes), by_run(scores)
    gains = tuple(_gain(question.price, use, runs.get(use, {}), level) for use in sizes)
    answer, reason = _decided(gains, question.least_gain, sample["refusal"], [one for one in changes if one.worse])
    return SourceVerdict(
        verdict=answer, reason=reason, price=question.price, currency=question.currency,
        least_gain=question.least_gain, share={use: question.share_of(use) for use in sizes}, level=level, gains=gains,
        changes=tuple(changes), unmeasured=tuple(unmeasured), tokens=of_tokens(question.price, sample),
    )  # fmt: skip


def _gain(price: float, use: str, arms: Mapping[str, Mapping[int, ArmScores]], level: float) -> SourceGain:
    ours, theirs = arms.get(WITH, {}), arms.get(WITHOUT, {})
    without = tuple(lacking(WITH, WITHOUT, ours, theirs))
    pairs = [at for at in sorted(set(ours) & set(theirs)) if not (ours[at].trouble or theirs[at].trouble)]
    if not pairs:
        return SourceGain(use=use, lacking=without)
    new, old = (np.stack([runs[at].bits for at in pairs]) for runs in (ours, theirs))
    below = ours[pairs[0]].bytes
    total = len(pairs) * float(below.sum())
    gain = statistics.crossed_difference(old, new, below, level=level)
    return SourceGain(
        use=use, seeds=tuple(pairs), documents=len(below), with_source=float(new.sum()) / total,
        without_source=float(old.sum()) / total, gain=gain, smallest=gain.smallest_effect(),
        per_bit=of_gain(price, gain) if DOCUMENTS_ONLY not in gain.flags else None, lacking=without,
    )  # fmt: skip


def _decided(
    gains: Sequence[SourceGain], least: float, refused: str, worse: Sequence[SourceChange]
) -> tuple[Answer, str]:
    if refused:
        return DO_NOT_BUY, refused
    known = [one for one in gains if one.claims and one.gain is not None]
    above = [f"{one.use}: {_said(one)}" for one in known if one.gain and one.gain.low > least]
    if above and worse:
        got = ", ".join(f"{one.measure} ({one.use})" for one in worse)
        return NOT_DECIDED, f"the source helps ({'; '.join(above)}), but a person must weigh what got worse: {got}"
    if above:
        return BUY, "; ".join(above)
    if len(known) == len(gains) and all(one.gain and one.gain.high <= least for one in known):
        listed = "; ".join(f"{one.use}: {_said(one)}" for one in known)
        return DO_NOT_BUY, f"no use gains more than {least:g} bits per byte: {listed}"
    return NOT_DECIDED, "; ".join(f"{one.use}: {_open(one, least)}" for one in gains)


def _said(one: SourceGain) -> str:
    gap = one.gain
    assert gap is not None
    return f"{gap.value:+.3g} bits per byte ({100 * gap.level:.3g}%: {gap.low:+.3g} to {gap.high:+.3g})"


def _open(one: SourceGain, least: float) -> str:
    """Return the reason why the runs at one use do not decide the question."""
    if one.gain is None:
        return "not measured: " + ("; ".join(one.lacking) or "no run")
    if one.documents < FEWEST:
        return f"only {one.documents} test documents are left, because some run may have trained on the others"
    if not one.claims:
        return "too few seeds: training noise cannot be estimated from one pair of runs"
    seen = "" if one.smallest is None else f"; minimum detectable effect {one.smallest:.2g}"
    held = f"at or below {least:g}" if one.gain.high <= least else f"the interval includes {least:g}"
    return f"{_said(one)}, {held}{seen}"


def _tile(ctx: Context) -> StateTile:
    """Return the tile of the index page with the verdicts on sources that were evaluated by training."""
    from plinth_lab.experiments.arms import PREFIX

    published = [ref for ref in ctx.refs.all(PREFIX) if ref.asset.endswith("/effects")]
    stats = {ref.asset.split("/")[1]: ctx.refs.load(ref.digest).stats for ref in published}
    found = {name: str(own["value"]["verdict"]) for name, own in stats.items() if "value" in own}
    if not found:
        return StateTile(label="Source values", value="none", note="plinth corpus source value PATH")
    undecided = sorted(name for name, verdict in found.items() if verdict == NOT_DECIDED)
    shown = undecided[0] if undecided else sorted(found)[-1]
    return StateTile(
        label="Source values",
        value=f"{len(found) - len(undecided)} of {len(found)} decided",
        note=some([f"{name}: {verdict}" for name, verdict in sorted(found.items())]),
        standing="attention" if undecided else "good",
        href=page_link(ctx, f"experiment-{shown}.html"),
    )


TILE = AddedTile("source_values", _tile)
