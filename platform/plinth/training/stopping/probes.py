"""What probes say about the end of a run. A probe whose signal is within its noise says nothing.

    regression       the run has unlearnt something: stop
    no_improvement   part of the plateau: no probe is known to be getting better still

Does not belong here: noise and signal-to-noise ratio (validation.probe_curves, evaluation.probes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from plinth.evaluation.statistics import slope
from plinth.training.parameters.stopping import Plateau, Regression
from plinth.training.stopping.rule_state import RuleState
from plinth.training.validation.probe_curves import ProbeLook, value

#: Looks that are averaged: the last ones, and the best ones in a row before them.
AVERAGED = 3

#: Looks at a probe before it is judged, at least.
FEWEST = 8

#: Looks before the averaged ones that noise is taken over.
WINDOW = 32

#: Standard errors by which a regression must exceed its bound. So many, because the best of all earlier means is lower
#: than the curve, and a run is judged at every look: of flat curves of 100 looks about 1 in 20 are stopped where the
#: bound is 0, and fewer than 1 in 100 where it is one standard deviation (simulated in the tests).
ERRORS = 6.0


def regression(rule: Regression, name: str, looks: Sequence[ProbeLook]) -> RuleState:
    """Holds when the last looks are worse than the best, by the bound and beyond noise."""
    rule_name, before = f"regression of {name}", looks[:-AVERAGED]
    if len(looks) < FEWEST:
        return RuleState(rule_name, False, None, rule.bits_per_byte, f"{rule_name}: too little seen to judge")
    if not value(before).decides:  # before what is judged: what was unlearnt has no signal left
        return RuleState(rule_name, False, None, rule.bits_per_byte, f"{rule_name}: its signal is within its noise")
    scores = [look.score for look in looks]
    means = [math.fsum(scores[n : n + AVERAGED]) / AVERAGED for n in range(len(scores) - AVERAGED + 1)]
    error = _deviation(scores[:-AVERAGED][-WINDOW:]) * math.sqrt(2 / AVERAGED)
    worse = means[-1] - min(means[:-AVERAGED]) - ERRORS * error
    reason = f"{rule_name}: at least {worse:.3g} bits per byte worse than at its best, allowed {rule.bits_per_byte:g}"
    return RuleState(rule_name, worse > rule.bits_per_byte, worse, rule.bits_per_byte, reason)


def no_improvement(rule: Plateau, name: str, looks: Sequence[ProbeLook]) -> RuleState | None:
    """Holds unless the probe is known to gain more over another window than the rule asks of the loss; None where it
    cannot be judged.

    Losses must be shown to be flat; a probe, of which there are few looks, must be shown not to be: it may keep a run
    going and never ends one.
    """
    rule_name, end = f"plateau of probe {name}", looks[-1].tokens if looks else 0
    window = [look for look in looks if look.tokens > end - rule.window_tokens]
    bound = rule.min_improvement
    if len(window) < 4 or not value(looks).decides:
        return None
    fit = slope([one.tokens for one in window], [one.score for one in window], level=2 * rule.confidence - 1)
    known = -fit.high * rule.window_tokens
    reason = f"{rule_name}: at least {known:.3g} bits per byte more in {rule.window_tokens:,} tokens, asked {bound:g}"
    return RuleState(rule_name, known < bound, known, bound, reason)


def _deviation(scores: Sequence[float]) -> float:
    """Standard deviation about a curve that bends slowly, from second differences, whose variance is six times it."""
    bends = [a - 2 * b + c for a, b, c in zip(scores, scores[1:], scores[2:], strict=False)]
    return math.sqrt(math.fsum(bend**2 for bend in bends) / (6 * len(bends)))
