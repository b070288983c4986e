"""The design of a ladder: sizes by horizons, hyperparameters by rule, as overlays of a recipe; priced before it runs.

Rules of OLMo-core's ladder (`model_ladder/wsds_chinchilla_run_configurator.py`, after Porian et al. 2406.19146), for N
parameters without embeddings:

    batch    2048 x 160 (N / 108M)^(2/3) tokens
    rate     0.0047 (N / 108M)^(-1/3) / 2
    beta2    0.95 from batches of 524,288 tokens on, 0.99 below
    warm-up  N tokens
    decay    the last tenth, linear
    horizon  0.5, 1, 2, 4 ... times 20 N tokens

With `mup_base_dim` the rate is one number for all widths, and muP scales it. OLMo-core takes all horizons out of one
run that decays and warms up again; here each horizon is a run of its own, and is priced as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from plinth.model.flops import flops_exact, parameters
from plinth.model.parameters import Model
from plinth.model.presets import PresetName
from plinth.records import Frozen

#: N of Porian et al. at which their rules have their constants.
REFERENCE = 108_000_000
LARGE_BATCH = 524_288


class LadderDesign(Frozen):
    """Sizes and horizons of a ladder."""

    sizes: tuple[PresetName, ...] = Field(min_length=1)
    horizons: tuple[float, ...] = Field((0.5, 1.0, 2.0, 4.0), min_length=1)  # in multiples of `tokens_per_parameter` N
    tokens_per_parameter: float = Field(20.0, gt=0)
    vocab_size: int = Field(ge=1)
    sequence_tokens: int = Field(ge=8)
    batch_multiple: int = Field(4, ge=1)  # sequences: ranks x micro batch
    decay_fraction: float = Field(0.1, gt=0, lt=0.5)
    mup_base_dim: int | None = Field(None, ge=8)
    mup_lr: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _both_of_mup(self) -> LadderDesign:
        if (self.mup_base_dim is None) != (self.mup_lr is None):
            raise ValueError("muP takes both: mup_base_dim and mup_lr, the rate that was tuned at that width")
        if any(horizon <= 0 for horizon in self.horizons):
            raise ValueError("a horizon is above 0")
        return self


class Rung(Frozen):
    """One run of a ladder. `flops` are exact training FLOPs; `overlay` holds keys of a recipe."""

    name: str
    params: int  # all of them: N of the law
    tokens: int
    flops: int
    overlay: Mapping[str, Any]


def rungs(design: LadderDesign) -> tuple[Rung, ...]:
    """The runs of a ladder, by size, then horizon."""
    return tuple(_rung(design, size, horizon) for size in design.sizes for horizon in sorted(design.horizons))


def price(ladder: tuple[Rung, ...]) -> int:
    """FLOPs of the whole ladder."""
    return sum(rung.flops for rung in ladder)


def batch_tokens(params: int) -> int:
    """Tokens of a step, before they are whole sequences."""
    tokens: float = 2048 * 160 * (params / REFERENCE) ** (2 / 3)
    return round(tokens)


def learning_rate(params: int) -> float:
    """Peak rate; half of Porian et al.'s, as OLMo-core has it for WSD."""
    return float(0.0047 * (params / REFERENCE) ** (-1 / 3) / 2)


def _rung(design: LadderDesign, size: PresetName, horizon: float) -> Rung:
    mup = {} if design.mup_base_dim is None else {"mup": design.mup_base_dim}
    model = Model.model_validate({"preset": size, **mup})
    counted = parameters(model, design.vocab_size)
    inner = counted.attention + counted.feed_forward + counted.norms
    whole = design.sequence_tokens * design.batch_multiple
    batch = max(1, round(batch_tokens(inner) / whole)) * whole
    steps = max(1, round(horizon * design.tokens_per_parameter * inner / batch))
    tokens = steps * batch
    optimizer = {
        "lr": design.mup_lr or learning_rate(inner),
        "beta2": 0.95 if batch >= LARGE_BATCH else 0.99,
        "schedule": "wsd",
        "warmup_fraction": min(inner / tokens, 1 - design.decay_fraction),
        "decay_fraction": design.decay_fraction,
    }
    return Rung(
        name=f"{size}-{horizon:g}x".replace(".", "_"),
        params=counted.total,
        tokens=tokens,
        flops=flops_exact(model, design.vocab_size, design.sequence_tokens) * tokens,
        overlay={
            "mixture": {"total_tokens": tokens, "sequence_tokens": design.sequence_tokens},
            "training": {
                "model": {"preset": size, **mup},
                "optimizer": optimizer,
                "global_batch_sequences": batch // design.sequence_tokens,
            },
        },
    )
