"""The verdict on a source: buy, do not buy, or not decided, by intervals that are corrected for what was looked at.

A use is a size of the experiment: the arms from new weights, the arms that anneal. Its gain is the bits per byte of the
base less those of the arm with the source, with an interval over seeds and documents at 1 - 5% / uses (Bonferroni).

    buy          at some use the whole interval lies above the least gain, and nothing else got worse
    do not buy   at every use the whole interval lies at or below it; or the sample showed that too little is new
    not decided  all else; the smallest gain that four of five such experiments would have seen stands beside it

A source that gains nothing is bought in at most 5% of experiments, however many uses: one two-sided test of each, of
which half of the errors are on this side. Of 400 simulated experiments at two uses with three seeds it was bought in
0.5% where documents vary most, and in 1% where trainings do. What got worse (`changes`) a person has to weigh: the
verdict is then open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from plinth.evaluation import statistics
from plinth.evaluation.statistics import DEGENERATE, DOCUMENTS_ONLY, Estimate
from plinth.experiment.effects import by_run, lacking, require_same_text
from plinth.experiment.scores import ArmScores
from plinth.experiment.value.changes import SourceChange
from plinth.experiment.value.price import PriceRange, TokenPrice, of_gain, of_tokens
from plinth.experiment.value.question import WITH, WITHOUT, SourceQuestion
from plinth.records import Frozen

ALPHA: Final = 0.05
Answer = Literal["buy", "do not buy", "not decided"]
BUY: Final = "buy"
DO_NOT_BUY: Final = "do not buy"
NOT_DECIDED: Final = "not decided"
#: Documents without which no interval has a width.
FEWEST: Final = 2


class SourceGain(Frozen):
    """Bits per byte gained at a use, positive where the source helps; None where no pair of runs has scores.

    `smallest` is the gain that four of five such experiments would have found; `per_bit` the price of a bit per byte,
    where the interval excludes 0; `lacking` names runs without scores.
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
        """Whether a claim follows from the interval: it is of other seeds and other documents, and has a width."""
        return self.gain is not None and not {DEGENERATE, DOCUMENTS_ONLY} & set(self.gain.flags)


class SourceVerdict(Frozen):
    """The answer, and all that it rests on.

    Args:
        verdict, reason: in words.
        price, currency, least_gain, share: as asked, the share by use.
        level: of the interval of each gain.
        gains: by use.
        changes: of probes, memorisation, toxicity and personal data; `unmeasured` says what is not among them and why.
        tokens: the price of an effective token.
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
    """The verdict from what the sample showed and what the runs came to.

    Args:
        sizes: of the experiment: the uses.
        sample: stats of the sample: `value.assess`, and `refusal` where nothing was trained.
        scores: of all runs, those that failed too.
        changes, unmeasured: of `changes.changes`.

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
        return NOT_DECIDED, f"it gains ({'; '.join(above)}), and this got worse, which a person weighs: {got}"
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
    """Why a use decides nothing."""
    if one.gain is None:
        return "not measured: " + ("; ".join(one.lacking) or "no run")
    if one.documents < FEWEST:
        return f"{one.documents} documents of the test text are left: of the others the text of some run may hold parts"
    if not one.claims:
        return "seeds too few: training noise is not known from one pair of runs"
    seen = "" if one.smallest is None else f"; {one.smallest:.2g} would have been seen"
    held = f"at or below {least:g}" if one.gain.high <= least else f"the interval holds {least:g}"
    return f"{_said(one)}, {held}{seen}"
