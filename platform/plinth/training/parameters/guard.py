"""Parameters of the guard's rules, their interventions, and the stopping rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from plinth.records import Frozen, OneValue, internal

# Rules of the guard and their interventions. Part of identity: an intervention changes the weights.

Action = Literal["off", "warn", "skip", "lower_lr", "rollback", "stop"]

#: Descriptions shared by several rules.
_ACTION = "Action of the rule: off, warn, skip (skip the update), lower_lr, rollback (and skip the data), or stop."
_CONFIRMATIONS = "Number of consecutive suspicious steps that trigger the action."


class GuardRule(OneValue):
    """Action of a rule, and the number of consecutive suspicious steps that trigger it."""

    action: Action = Field("warn", description=_ACTION)
    confirmations: int = internal(1, ge=1, description=_CONFIRMATIONS)


class Nonfinite(GuardRule):
    """Rule for a loss or gradient that is NaN or infinite. The update of such a step is always skipped, whatever the
    action."""

    action: Action = Field("rollback", description=_ACTION)


class LossSpike(GuardRule):
    """Rule for a loss that is far above its recent level."""

    action: Action = Field("rollback", description=_ACTION)
    confirmations: int = internal(2, ge=1, description=_CONFIRMATIONS)
    sigmas: float = internal(
        6.0, gt=0, description="Threshold in robust standard deviations above the recent level (OLMo-core: 6)."
    )
    min_rise: float = internal(0.2, ge=0, description="Minimum height of a spike above the recent level, in nats.")


class GradientSpike(GuardRule):
    """Rule for a global gradient norm that is far above its recent level."""

    action: Action = Field("warn", description=_ACTION)
    confirmations: int = internal(2, ge=1, description=_CONFIRMATIONS)
    sigmas: float = internal(6.0, gt=0, description="Threshold in robust standard deviations (OLMo-core: 6).")
    min_ratio: float = internal(3.0, ge=1, description="Minimum ratio of a spike to the recent level.")


class LateRule(GuardRule):
    """Rule that judges a step only after its update was applied."""

    @model_validator(mode="after")
    def _too_late(self) -> LateRule:
        if self.action == "skip":
            raise ValueError(
                "action 'skip' is not possible: this rule judges a step after its update; use warn, lower_lr, rollback "
                "or stop"
            )
        return self


class LayerRule(LateRule):
    """Rule for a layer statistic outside its usual range. It is measured every `telemetry.layers_every` steps."""

    confirmations: int = internal(2, ge=1, description=_CONFIRMATIONS + " Steps without a measurement are ignored.")
    ratio: float = internal(10.0, gt=1, description="Threshold as a multiple of the layer's recent level.")


class IdleExperts(LateRule):
    """Rule for experts that almost no token is sent to. They are counted every `telemetry.layers_every` steps."""

    confirmations: int = internal(5, ge=1, description=_CONFIRMATIONS + " Steps without a measurement are ignored.")
    share: float = internal(
        0.1, gt=0, lt=1, description="Maximum share of a layer's experts with less than 1% of the mean load."
    )


class PlateauRule(LateRule):
    """Rule from Plinth 0.3 that recipes can no longer set; `training.stopping.plateau` replaces it.

    The rule stays in dumped recipes, so that runs of 0.3 can be resumed.
    """

    action: Literal["off"] = Field("off", description=_ACTION)
    steps: Literal[1000] = internal(1000, description="Unused parameter of 0.3.")
    min_improvement: float = internal(0.001, ge=0, description="Unused parameter of 0.3.")


class Throughput(GuardRule):
    """Rule for steps that are much slower than before. It depends on wall-clock time, so its action can only be warn or
    stop."""

    confirmations: int = internal(10, ge=1, description=_CONFIRMATIONS)
    ratio: float = internal(0.5, gt=0, lt=1, description="Threshold as a fraction of the recent tokens per second.")

    @model_validator(mode="after")
    def _changes_nothing(self) -> Throughput:
        if self.action not in ("off", "warn", "stop"):
            raise ValueError(f"throughput.action {self.action!r}: timing must not affect training; use warn or stop")
        return self


class BatchScreening(Frozen):
    """Rules that judge the rows of a batch (sequences of the mixture) before its update."""

    action: Literal["warn", "skip", "stop"] = Field(
        "skip", description="Action if too many rows violate a bound: warn, skip (the update) or stop."
    )
    rows: float = Field(0.25, ge=0, lt=1, description="Maximum fraction of a batch's rows that may violate a bound.")
    duplicate_ngrams: float | None = Field(
        None, ge=0, le=1, description="Maximum fraction of a row's 8-grams that repeat earlier 8-grams."
    )
    top_ngram: float | None = Field(
        None, ge=0, le=1, description="Maximum fraction of a row's 4-grams that are equal to its most frequent 4-gram."
    )
    entropy: float | None = Field(None, ge=0, description="Minimum entropy of a row's tokens, in bits per token.")
    streams: tuple[str, ...] = Field(
        (),
        description="Streams to screen, by name or pattern: `web/language=fr`, `web/*`.",
    )

    @field_validator("streams", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        """Convert a list from a recipe to a tuple.

        After the guard's own validator, pydantic no longer treats the input as JSON.
        """
        return tuple(given) if isinstance(given, list) else given

    @model_validator(mode="after")
    def _bounds_something(self) -> BatchScreening:
        if self.duplicate_ngrams is None and self.top_ngram is None and self.entropy is None and not self.streams:
            raise ValueError("screening has no rule: set duplicate_ngrams, top_ngram, entropy or streams")
        return self


class GuardParameters(Frozen):
    """Settings of the guard, which judges every step. It skips updates, rolls back, lowers the learning rate or stops
    the run, within limits."""

    enabled: bool = Field(True, description="Enable the guard. If false, a non-finite loss ends the run.")
    window_steps: int = Field(
        128,
        ge=8,
        description="Window of the rolling statistics, in steps (OLMo-core: 128). Rules apply only after a quarter of "
        "the window is filled.",
    )
    min_steps: int = internal(
        32,
        ge=4,
        description="Number of steps at the start of a run to which rules with rolling statistics do not apply (ZClip: "
        "25).",
    )
    nonfinite: Nonfinite = Nonfinite()
    loss_spike: LossSpike = LossSpike()
    gradient_spike: GradientSpike = GradientSpike()
    layer_gradient: LayerRule = internal(LayerRule(), description="Rule for a layer whose gradient norm is too high.")
    activations: LayerRule = internal(LayerRule(), description="Rule for a layer whose activations are too large.")
    idle_experts: IdleExperts = internal(
        IdleExperts(),
        exclude_if=lambda rule: rule == IdleExperts(),
        description="Rule for a layer with idle experts.",
    )
    plateau: PlateauRule = internal(PlateauRule(), description="Off.")
    throughput: Throughput = internal(Throughput(), description="Rule for steps that take much longer than before.")
    screening: BatchScreening | None = Field(
        None, description="Bounds on the text of a batch, checked before its update. By default no bounds are set."
    )
    skip_before: int = internal(
        0, ge=0, description="Number of steps before the first suspicious step whose data a rollback skips."
    )
    skip_after: int = Field(
        0,
        ge=0,
        description="Number of steps after the last suspicious step whose data a rollback skips (PaLM: 200 to 500).",
    )
    lr_factor: float = internal(
        0.5, gt=0, le=1, description="Factor by which the action `lower_lr` multiplies the learning rate."
    )
    lr_steps: int = internal(
        0, ge=0, description="Number of steps with the lower learning rate. If 0, it stays until the end of the run."
    )
    rollback_lr_factor: float = internal(
        1.0, gt=0, le=1, description="Factor by which a rollback multiplies the learning rate."
    )
    max_rollbacks: int = Field(8, ge=0, description="Maximum number of rollbacks; the next one stops the run.")
    max_skipped_updates: int = internal(
        16, ge=0, description="Maximum number of skipped updates in `window_steps` steps; the next one stops the run."
    )
    max_lowered: int = internal(
        4, ge=0, description="Maximum number of learning rate reductions; the next one stops the run."
    )

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


# Stopping rules. A rule that is not set does not apply.


class Plateau(OneValue):
    """Rule that stops a run when its losses have stopped falling.

    It applies when even the upper confidence bound of the expected improvement is too small.
    """

    window_tokens: int = Field(
        ge=1,
        description="Number of tokens in the window to which the slope is fitted, and in the next window, for which it "
        "is extrapolated.",
    )
    min_improvement: float = internal(
        0.005,
        gt=0,
        description="Minimum improvement in the next window: in nats for the training loss, in bits per byte for "
        "slices. The run stops if the upper confidence bound of the improvement is lower.",
    )
    confidence: float = internal(0.95, gt=0.5, lt=1, description="Confidence level of the slope's one-sided bound.")
    slices: tuple[str, ...] = internal(
        (), description="Held-out slices that must also be flat. If empty, all slices with enough data are used."
    )


class Regression(OneValue):
    """Rule that stops a run when the score of a probe has become worse than its best score by more than noise."""

    bits_per_byte: float = Field(
        gt=0,
        description="Maximum regression of a probe in bits per byte. The run stops if the last three scores of a probe "
        "are worse than its best three by more than this value plus six standard errors. Probes within their noise are "
        "not judged.",
    )


class Stopping(Frozen):
    """Rules that end a run. The first rule that applies ends it."""

    tokens: int | None = internal(None, ge=1, description="Budget of training tokens, including repeated tokens.")
    seconds: float | None = Field(None, gt=0, description="Budget in seconds of training, over all attempts.")
    money: float | None = Field(None, gt=0, description="Cost budget, in the currency of `price_per_rank_hour`.")
    price_per_rank_hour: float = Field(0.0, ge=0, description="Price of one rank for an hour.")
    epochs: float | None = Field(
        None,
        gt=0,
        exclude_if=lambda given: given is None,
        description="Maximum number of passes over any bucket. The run ends when the most repeated bucket reaches this "
        "number. Up to four passes, repeated text is nearly as useful as new text (Muennighoff et al., "
        "arXiv:2305.16264).",
    )
    plateau: Plateau | None = Field(None, description="Stop the run when losses have stopped falling.")
    regression: Regression | None = Field(None, description="Stop the run when the score of a probe has become worse.")
    # Rules from Plinth 0.3 that recipes can no longer set. They stay in the dump, so that runs of 0.3 can be resumed.
    max_epochs: None = internal(None, description="None.")
    when: Literal["any"] = internal("any", description="The first rule that applies ends the run.")
    min_tokens: Literal[0] = internal(0, description="From the beginning.")
    every_steps: int = internal(10, ge=1, description="Number of steps between two evaluations of the rules.")

    @model_validator(mode="after")
    def _priced(self) -> Stopping:
        if self.money is not None and not self.price_per_rank_hour:
            raise ValueError("money needs price_per_rank_hour")
        return self

    @property
    def asked(self) -> bool:
        """True if any stopping rule is set."""
        rules = (self.tokens, self.seconds, self.money, self.epochs, self.plateau, self.regression)
        return any(rule is not None for rule in rules)
