"""Rules of the guard and their interventions; rules that end a run early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from plinth.records import Frozen, OneValue, internal

# Rules of the guard and their interventions. Part of identity: an intervention changes the weights.

Action = Literal["off", "warn", "skip", "lower_lr", "rollback", "stop"]

#: Descriptions that several rules share.
_ACTION = "off, warn, skip (the update is not made), lower_lr, rollback (and leave the data out), or stop."
_CONFIRMATIONS = "Suspicious steps in a row before anything is done."


class GuardRule(OneValue):
    """An intervention, and the number of consecutive suspicious steps before it."""

    action: Action = Field("warn", description=_ACTION)
    confirmations: int = internal(1, ge=1, description=_CONFIRMATIONS)


class Nonfinite(GuardRule):
    """The loss or the gradient is NaN or infinite. The update of such a step is always skipped, whatever the action."""

    action: Action = Field("rollback", description=_ACTION)


class LossSpike(GuardRule):
    """The loss is far above its recent level."""

    action: Action = Field("rollback", description=_ACTION)
    confirmations: int = internal(2, ge=1, description=_CONFIRMATIONS)
    sigmas: float = internal(
        6.0, gt=0, description="Robust standard deviations above the recent level (OLMo-core's step skipper: 6)."
    )
    min_rise: float = internal(0.2, ge=0, description="Nats above the level below which nothing is a spike.")


class GradientSpike(GuardRule):
    """The global gradient norm is far above its recent level."""

    action: Action = Field("warn", description=_ACTION)
    confirmations: int = internal(2, ge=1, description=_CONFIRMATIONS)
    sigmas: float = internal(6.0, gt=0, description="Robust standard deviations above the recent level (OLMo-core: 6).")
    min_ratio: float = internal(3.0, ge=1, description="Times the level below which nothing is a spike.")


class LateRule(GuardRule):
    """A rule that judges after the update."""

    @model_validator(mode="after")
    def _too_late(self) -> LateRule:
        if self.action == "skip":
            raise ValueError("action 'skip': this rule sees a step after its update; warn, lower_lr, rollback or stop")
        return self


class LayerRule(LateRule):
    """A statistic of one layer grows out of its own range. Measured every `telemetry.layers_every` steps."""

    confirmations: int = internal(2, ge=1, description=_CONFIRMATIONS + " Counted in measurements.")
    ratio: float = internal(10.0, gt=1, description="Times the layer's recent level.")


class PlateauRule(LateRule):
    """Rule of 0.3 that recipes cannot set (`training.stopping.plateau` ends a run). It stays in the dump, so that runs
    of 0.3 can be resumed.
    """

    action: Literal["off"] = Field("off", description=_ACTION)
    steps: Literal[1000] = internal(1000, description="Of the rule that was.")
    min_improvement: float = internal(0.001, ge=0, description="Of the rule that was.")


class Throughput(GuardRule):
    """Steps are much slower than before. Wall-clock time decides, so it may only warn or stop."""

    confirmations: int = internal(10, ge=1, description=_CONFIRMATIONS)
    ratio: float = internal(0.5, gt=0, lt=1, description="Share of the recent level of tokens per second.")

    @model_validator(mode="after")
    def _changes_nothing(self) -> Throughput:
        if self.action not in ("off", "warn", "stop"):
            raise ValueError(f"throughput.action {self.action!r}: a clock must not decide what is learnt; warn or stop")
        return self


class BatchScreening(Frozen):
    """Rules over the rows of a batch, the sequences of the mixture, judged before its update."""

    action: Literal["warn", "skip", "stop"] = Field(
        "skip", description="warn, skip (the update is not made), or stop, of a batch with too many such rows."
    )
    rows: float = Field(0.25, ge=0, lt=1, description="Share of a batch's rows that may break one of these bounds.")
    duplicate_ngrams: float | None = Field(
        None, ge=0, le=1, description="Share of a row's 8-grams that came before in the row, at most."
    )
    top_ngram: float | None = Field(
        None, ge=0, le=1, description="Share of a row's 4-grams that are the commonest one, at most."
    )
    entropy: float | None = Field(None, ge=0, description="Bits per token of a row's tokens, at least.")
    streams: tuple[str, ...] = Field(
        (),
        description="Streams whose rows count, by name or pattern: `web/language=fr`, `web/*`.",
    )

    @field_validator("streams", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        """Return a recipe's list, which is no longer JSON after the guard's own validator."""
        return tuple(given) if isinstance(given, list) else given

    @model_validator(mode="after")
    def _bounds_something(self) -> BatchScreening:
        if self.duplicate_ngrams is None and self.top_ngram is None and self.entropy is None and not self.streams:
            raise ValueError("screening judges nothing: give duplicate_ngrams, top_ngram, entropy or streams")
        return self


class GuardParameters(Frozen):
    """Watches every step; skips, rolls back, lowers the learning rate or stops, within bounds."""

    enabled: bool = Field(True, description="Without it a loss that is not finite ends the run.")
    window_steps: int = Field(
        128,
        ge=8,
        description="Steps that the rolling statistics cover (OLMo-core: 128); a quarter of them are seen before "
        "anything is judged.",
    )
    min_steps: int = internal(32, ge=4, description="Steps seen before rolling statistics judge (ZClip: 25).")
    nonfinite: Nonfinite = Nonfinite()
    loss_spike: LossSpike = LossSpike()
    gradient_spike: GradientSpike = GradientSpike()
    layer_gradient: LayerRule = internal(LayerRule(), description="Gradient norm of a layer.")
    activations: LayerRule = internal(LayerRule(), description="Activations of a layer.")
    plateau: PlateauRule = internal(PlateauRule(), description="Off.")
    throughput: Throughput = internal(Throughput(), description="Steps take much longer than they did.")
    screening: BatchScreening | None = Field(
        None, description="Bounds of the text of a batch, judged before its update; by default none."
    )
    skip_before: int = internal(0, ge=0, description="Steps before the first suspicious one that are left out as well.")
    skip_after: int = Field(
        0, ge=0, description="Steps after the last suspicious one that are left out as well (PaLM left out 200 to 500)."
    )
    lr_factor: float = internal(0.5, gt=0, le=1, description="Factor of the learning rate under lower_lr.")
    lr_steps: int = internal(0, ge=0, description="Steps that it stays lower; 0 is to the end.")
    rollback_lr_factor: float = internal(1.0, gt=0, le=1, description="Also lower the learning rate after a rollback.")
    max_rollbacks: int = Field(8, ge=0, description="One more stops the run.")
    max_skipped_updates: int = internal(
        16, ge=0, description="Updates not made among the last `window_steps`; one more stops the run."
    )
    max_lowered: int = internal(4, ge=0, description="How often the learning rate is lowered; one more stops the run.")

    def rule(self, name: str) -> GuardRule:
        """Return the policy of a rule, including screening rules."""
        own: GuardRule | None = getattr(self, name, None)
        return own or GuardRule(action="off" if self.screening is None else self.screening.action)

    @model_validator(mode="before")
    @classmethod
    def _quarter(cls, given: Any) -> Any:
        window = given.get("window_steps") if isinstance(given, Mapping) else None
        return {"min_steps": max(4, window // 4), **given} if isinstance(window, int) else given

    @model_validator(mode="after")
    def _window_holds(self) -> GuardParameters:
        if self.min_steps > self.window_steps:
            raise ValueError(f"min_steps {self.min_steps} is more than window_steps {self.window_steps}")
        return self


# Rules that end a run early. A rule that is not set does not apply.

class Plateau(OneValue):
    """Losses have stopped falling: even the upper bound of the expected improvement is too small."""

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
    """A probe has regressed: worse than its best, beyond noise."""

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
        """True if any rule is set."""
        rules = (self.tokens, self.seconds, self.money, self.epochs, self.plateau, self.regression)
        return any(rule is not None for rule in rules)
