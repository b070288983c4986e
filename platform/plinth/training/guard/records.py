"""The records of the guard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from plinth.records import Frozen

Rule = Literal[
    "nonfinite", "loss_spike", "gradient_spike", "layer_gradient", "activations", "plateau", "throughput",
    "duplicate_ngrams", "top_ngram", "entropy", "streams",
]  # fmt: skip

#: Actions from the mildest to the hardest; when several rules demand one at a step, the hardest is taken.
ACTIONS = ("warn", "skip", "lower_lr", "rollback", "stop")


class Finding(Frozen):
    """A rule that found a step suspicious.

    Attributes:
        value, threshold: of the step; of a rule of screening, shares of its rows.
        bound: of a row, where a rule judges rows.
    """

    rule: Rule
    value: float
    threshold: float
    layer: str | None = None
    bound: float | None = None


class TrainedStep(Frozen):
    """One trained step, as all ranks saw it.

    Attributes:
        vetoed: whether the update was not made.
        screened: the rules of screening that found its batch suspicious.
        gradients, activations: of each layer, when they were measured.
    """

    step: int
    loss: float
    grad_norm: float
    vetoed: bool = False
    screened: tuple[Finding, ...] = ()
    gradients: Mapping[str, float] | None = None
    activations: Mapping[str, float] | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Limits(Frozen):
    """A step whose loss or gradient norm is above its limit is suspicious. Infinite: not judged yet.

    Attributes:
        rows: that may break a bound of screening.
    """

    loss: float = math.inf
    grad_norm: float = math.inf
    rows: float = math.inf


class Intervention(Frozen):
    """An act of the guard, as the timeline has it.

    Attributes:
        step: at which it was decided.
        first, last: the steps concerned; a rollback leaves them out.
        factor: of the learning rate from `last` on.
        bound: of a row, where a rule judges rows.
        number: of the run's interventions of this action, from 1.
        reason: why a harder action was taken than that of the rule.
    """

    step: int
    rule: Rule
    action: Literal["warn", "skip", "lower_lr", "rollback", "stop"]
    value: float
    threshold: float
    first: int
    last: int
    number: int = 1
    factor: float = 1.0
    layer: str | None = None
    bound: float | None = None
    reason: str = ""

    def event(self) -> dict[str, Any]:
        """The fields of its event."""
        return self.model_dump(mode="json", exclude={"first", "last"}) | {"window": [self.first, self.last]}

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Intervention:
        """The intervention of an event; numbers that JSON cannot hold are text there."""
        first, last = event["window"]
        fields = {name: event[name] for name in cls.model_fields if name in event}
        return cls(
            **{**fields, "value": float(event["value"]), "threshold": float(event["threshold"])}, first=first, last=last
        )
