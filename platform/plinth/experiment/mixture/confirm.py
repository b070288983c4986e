"""The confirmation of a proposal: its mixture and the prior at equal tokens, with seeds that the swarm did not have.

The swarm's runs chose the proposal, so they cannot confirm it; the arms made here can. Gains are bits per byte of the
prior less those of the proposal, paired by seed and document (`effects`), at the size that the proposal is for.

    holds          the whole interval of the gain lies above 0
    not confirmed  it includes 0, or a run has no scores
    refuted        the whole interval lies below 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from plinth.evaluation.statistics import DEGENERATE, DOCUMENTS_ONLY
from plinth.experiment.effects import ARM, BASE, WHOLE, Effect
from plinth.experiment.mixture.swarm import PRIOR, one_phase
from plinth.records import Frozen

#: The arm that is trained on the proposed mixture.
PROPOSED: Final = "proposed"
HOLDS: Final = "holds"
NOT_CONFIRMED: Final = "not confirmed"
REFUTED: Final = "refuted"
Status = Literal["holds", "not confirmed", "refuted"]


class ConfirmationQuestion(Frozen):
    """Arms of an experiment that are a proposal and its prior; `plinth experiment propose --confirm` writes it."""

    experiment: str = Field(min_length=1, description="Name of the swarm's experiment.")
    answer: str = Field(description="Digest of its effects: the proposal is theirs.")
    seeds: tuple[int, ...] = Field(min_length=1, description="Of the swarm; the confirmation may use none of them.")
    prior: Mapping[str, float] = Field(min_length=2, description="Shares by stream that the proposal must beat.")
    shares: Mapping[str, float] = Field(min_length=2, description="Proposed shares by stream.")
    gain: float = Field(allow_inf_nan=False, description="Bits per byte less than the prior, as foretold.")
    low: float = Field(allow_inf_nan=False, description="Lower end of its 95% interval.")
    high: float = Field(allow_inf_nan=False, description="Upper end of it.")

    @model_validator(mode="after")
    def _alike(self) -> ConfirmationQuestion:
        if set(self.prior) != set(self.shares):
            raise ValueError("shares: expected the streams of the prior")
        return self

    def arms(self) -> dict[str, dict[str, Any]]:
        """The prior, and the proposal."""
        return {name: {"mixture": one_phase(of)} for name, of in ((PRIOR, self.prior), (PROPOSED, self.shares))}

    def base(self) -> str:
        """The arm that the other is compared with."""
        return PRIOR


class ConfirmationOutcome(Frozen):
    """Whether a proposal holds in new runs.

    Args:
        status, reason: in words.
        size: of the runs.
        gain, low, high: bits per byte less than the prior, with its 95% interval; None where no pair has scores.
        smallest: the gain that four of five such experiments would have found.
        seeds, documents: of the pairs.
        trained: shares that the proposal's runs really trained on.
    """

    status: Status
    reason: str
    size: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float | None = None
    seeds: tuple[int, ...] = ()
    documents: int = 0
    trained: Mapping[str, float] = Field(default_factory=dict)


def confirmed(
    question: ConfirmationQuestion, effects: Sequence[Effect], size: str, trained: Mapping[str, float]
) -> ConfirmationOutcome:
    """What the runs of a confirmation say.

    Args:
        effects: of the experiment (`effects.effects`).
        size: the one that the proposal is for.
        trained: shares that its runs really trained on; empty where none finished.
    """
    line = next(one for one in effects if (one.arm, one.size, one.slice) == (PROPOSED, size, WHOLE))
    known: dict[str, Any] = {"size": size, "seeds": line.seeds, "documents": line.documents, "trained": trained}
    gap = line.difference
    if gap is None:
        return ConfirmationOutcome(status=NOT_CONFIRMED, reason=line.finding, **known)
    gain, low, high = 0.0 - gap.value, 0.0 - gap.high, 0.0 - gap.low
    status, why = _decided(line)
    found = f"{gain:+.3g} bits per byte gained over the prior (95%: {low:+.3g} to {high:+.3g})"
    reason = f"{why}{found}; foretold {question.gain:+.3g} ({question.low:+.3g} to {question.high:+.3g})"
    return ConfirmationOutcome(
        status=status, reason=reason, gain=gain, low=low, high=high, smallest=line.smallest, **known
    )


def _decided(line: Effect) -> tuple[Status, str]:
    """The status, and what is said of it before the gain. A run without scores may be what the proposal does."""
    assert line.difference is not None
    if line.lacking:
        return NOT_CONFIRMED, f"not every run has scores ({'; '.join(line.lacking)}): "
    if line.better == ARM:
        return HOLDS, ""
    if line.better == BASE:
        return REFUTED, "the prior is better: "
    if DOCUMENTS_ONLY in line.difference.flags:
        return NOT_CONFIRMED, "training noise is not known from one seed: "
    if DEGENERATE in line.difference.flags:
        return NOT_CONFIRMED, "nothing varies, or too few documents: "
    seen = "" if line.smallest is None else f", and {line.smallest:.2g} would have been seen"
    return NOT_CONFIRMED, f"the interval of its gain includes 0{seen}: "
