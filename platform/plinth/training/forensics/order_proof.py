"""Proof of order and data for an external trainer: the conclusion from the replay of sampled steps, without torch.

The trainer reports the loss of the step after a checkpoint. Plinth's model computes the loss of the listed batch with
the checkpoint's parameters, and the losses of shuffled batches, drawn from the sequences of this and other steps. The
largest difference between reported and replayed losses is the tolerance, and a permutation test measures its power:

    chance = product over the steps of the share of batches, the listed one included, within the tolerance

A trainer that reads another order or other documents, or reports other losses, is as far from the listed batch as from
a shuffled one: its chance is at most 0.001 in one of a thousand runs. The replay finds mistakes. It does not prove the
updates, the order within a step, or the steps between the sampled ones, and a few exchanged sequences can be within the
tolerance. A trainer that means to deceive can report the listed loss and train on something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from pydantic import Field

from plinth.records import Frozen
from plinth.text import counted

CLAIM: Final = "the trainer's losses of the sampled steps are those of the listed batches with the committed parameters"

#: Highest chance at which a replay proves order and data, unless the gate policy sets another limit.
MAX_CHANCE: Final = 1e-3


class SampledStep(Frozen):
    """A replayed step. Losses are means over the scored targets of a batch, in nats per token.

    Attributes:
        step: the replayed step; its parameters are those of the checkpoint after step - 1.
        reported: loss on the run's timeline.
        replayed: loss of the listed batch.
        shuffled: losses of shuffled batches.
    """

    step: int
    reported: float
    replayed: float
    shuffled: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Difference between the reported loss and the loss of the listed batch."""
        return abs(self.reported - self.replayed)

    @property
    def shuffled_differences(self) -> tuple[float, ...]:
        """Differences between the reported loss and the losses of shuffled batches."""
        return tuple(abs(self.reported - loss) for loss in self.shuffled)

    def chance(self, tolerance: float) -> float:
        """Return the share of batches, the listed one included, whose difference is within a tolerance."""
        within = sum(difference <= tolerance for difference in self.shuffled_differences)
        return (1 + within) / (1 + len(self.shuffled))


class OrderProof(Frozen):
    """Conclusion of a replay of sampled steps."""

    steps: int = Field(0, description="Number of replayed steps.")
    difference: float = Field(0.0, description="Largest difference between a reported and a replayed loss.")
    shuffled: float = Field(0.0, description="Median difference between a reported loss and that of a shuffled batch.")
    chance: float = Field(1.0, description="Probability that shuffled batches differ by no more in every step.")
    fault: str = Field("", description="Reason why no step was replayed, or why the evidence cannot be used.")

    def holds(self, max_chance: float = MAX_CHANCE, min_steps: int = 1) -> bool:
        """Return True if enough steps were replayed, and a shuffled order is improbable."""
        return not self.fault and self.steps >= min_steps and self.chance <= max_chance

    @property
    def in_words(self) -> str:
        """The conclusion as text."""
        if self.fault:
            return f"order and data: not replayed, {self.fault}"
        return (
            f"order and data: {counted(self.steps, 'step')} replayed, losses differ by at most {self.difference:.2g}; "
            f"those of a shuffled batch differ by {self.shuffled:.2g} (chance that all are as near: {self.chance:.2g})"
        )


def concluded(samples: tuple[SampledStep, ...]) -> OrderProof:
    """Return the conclusion from replayed steps. At least one is needed."""
    tolerance = max(one.difference for one in samples)
    return OrderProof(
        steps=len(samples),
        difference=tolerance,
        shuffled=median(difference for one in samples for difference in one.shuffled_differences),
        chance=math.prod(one.chance(tolerance) for one in samples),
    )


def evidence(samples: tuple[SampledStep, ...], parameters_sha256: str, fault: str = "") -> dict[str, Any]:
    """Return the content of `resume.json` for a run of an external trainer.

    Args:
        parameters_sha256: digest of the parameters of the run's last checkpoint.
        fault: reason why no step was replayed.
    """
    return {
        "claim": CLAIM,
        "bit_exact": False,  # of a resumed run, which is not compared
        "compared_steps": 0,
        "parameters_sha256": parameters_sha256,
        "fault": fault,
        "samples": [one.model_dump(mode="json") for one in samples],
    }


def order_proof(found: Mapping[str, Any], parameters_sha256: str | None = None) -> OrderProof:
    """Recompute the conclusion from the evidence.

    Args:
        parameters_sha256: digest of the checkpoint's parameters, if the evidence must belong to this checkpoint.
    """
    try:
        if fault := str(found["fault"]):
            return OrderProof(fault=fault)
        samples = tuple(SampledStep.model_validate(row) for row in found["samples"])
        if parameters_sha256 not in (None, found["parameters_sha256"]):
            return OrderProof(fault="the evidence belongs to another checkpoint")
    except (KeyError, TypeError, ValueError) as error:
        return OrderProof(fault=f"the evidence lists no replay: {error!r}")
    numbers = [number for one in samples for number in (one.reported, one.replayed, *one.shuffled)]
    if not samples or not all(one.shuffled for one in samples) or not all(map(math.isfinite, numbers)):
        return OrderProof(fault="the evidence lists no step with finite losses and shuffled batches")
    if len({one.step for one in samples}) < len(samples):
        return OrderProof(fault="the evidence lists a step twice")
    return concluded(samples)
