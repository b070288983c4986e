"""Rules that end a run early. A rule that is not set does not apply."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, OneValue, internal


class Plateau(OneValue):
    """Losses that no longer fall: the improvement still to be expected, at its most hopeful, is too small."""

    window_tokens: int = Field(
        ge=1, description="Tokens over which the slope is fitted; the next so many must promise 0.005 nats."
    )
    min_improvement: float = internal(
        0.005,
        gt=0,
        description="Nats (of slices: bits per byte) that the next window should bring; judged by the upper "
        "confidence bound.",
    )
    confidence: float = internal(0.95, gt=0.5, lt=1, description="One-sided, of the slope.")
    slices: tuple[str, ...] = internal(
        (), description="Evaluated slices that must all be flat too; empty: of all that can be judged, none may fall."
    )


class Regression(OneValue):
    """A probe that the run has unlearnt: worse than at its best, beyond noise."""

    bits_per_byte: float = Field(
        gt=0,
        description="The last three looks at a probe are worse than its best three by more than so many bits per byte, "
        "and by six standard errors on top. Probes within their noise are not judged.",
    )


class Stopping(Frozen):
    """Rules that end a run, whichever comes first."""

    tokens: int | None = internal(None, ge=1, description="Budget in tokens trained, those trained again included.")
    seconds: float | None = Field(None, gt=0, description="Budget in seconds of training, over all attempts.")
    money: float | None = Field(None, gt=0, description="Budget in the currency of `price_per_rank_hour`.")
    price_per_rank_hour: float = Field(0.0, ge=0, description="Price of one rank for an hour.")
    epochs: float | None = Field(
        None,
        gt=0,
        exclude_if=lambda given: given is None,
        description="Times that any bucket may have been read: the run ends where the most repeated one reaches it. "
        "Up to four times text is worth nearly what new text is (Muennighoff et al., arXiv:2305.16264).",
    )
    plateau: Plateau | None = Field(None, description="Losses have stopped falling.")
    regression: Regression | None = Field(None, description="A probe has become worse.")
    # Rules of 0.3 that no recipe can set: in the dump, so that runs which were begun before go on.
    max_epochs: None = internal(None, description="None.")
    when: Literal["any"] = internal("any", description="Whichever rule holds first.")
    min_tokens: Literal[0] = internal(0, description="From the beginning.")
    every_steps: int = internal(10, ge=1, description="Steps between two evaluations of the rules.")

    @model_validator(mode="after")
    def _priced(self) -> Stopping:
        if self.money is not None and not self.price_per_rank_hour:
            raise ValueError("money needs price_per_rank_hour")
        return self

    @property
    def asked(self) -> bool:
        """Whether any rule is set."""
        rules = (self.tokens, self.seconds, self.money, self.epochs, self.plateau, self.regression)
        return any(rule is not None for rule in rules)
