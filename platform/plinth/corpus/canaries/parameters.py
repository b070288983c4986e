"""How many canaries a recipe plants, and how often each."""

from __future__ import annotations

from pydantic import Field, model_validator

from plinth.records import Frozen, internal

#: The bucket that planted copies are shards and sequences of; no recipe's bucket may have its name.
BUCKET = "canaries"

#: Tokens of a planted document, end-of-text included: a divisor of every row length between these, near the last.
SHORTEST, LONGEST, USUAL = 12, 48, 16

#: References for each canary, at least: all canaries are compared with the same references, whose own scatter adds
#: a share canaries / references to the variance of the sum of exposures.
LEAST_REFERENCES = 16


class Canaries(Frozen):
    """Generated texts that measure memorisation; half of them, by coin, enter the run."""

    count: int = Field(128, ge=8, le=4096, description="Canaries, each in or out by a coin of its own.")
    seed: int = internal(1, description="Of texts and coins.")
    repetitions: tuple[int, ...] = internal(
        (1, 4, 16, 64), min_length=1, description="How often a canary is planted; the groups are equally large."
    )
    references: int = internal(4096, ge=128, description="Texts of the same making that never enter.")

    @model_validator(mode="after")
    def _comparable(self) -> Canaries:
        if self.count % len(self.repetitions):
            raise ValueError(f"count {self.count} does not divide into {len(self.repetitions)} groups")
        if self.references < LEAST_REFERENCES * self.count:
            most = self.references // LEAST_REFERENCES
            raise ValueError(f"count {self.count} is more than {most}, a sixteenth of {self.references} references")
        return self


def document_tokens(unit: int) -> int | None:
    """Tokens of a planted document, so that none is cut where rows have a multiple of `unit` tokens; None: no divisor
    of `unit` is suitable."""
    found = [size for size in range(SHORTEST, LONGEST + 1) if unit % size == 0]
    return min(found, key=lambda size: (abs(size - USUAL), size), default=None)
