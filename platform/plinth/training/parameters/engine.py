"""Optimizer and learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, internal

ScheduleName = Literal["cosine", "linear", "wsd", "wsd-sqrt", "constant", "inverse-sqrt"]

#: Groups of parameters as `parameter_groups` makes them.
Groups = list[dict[str, Any]]

#: FP8 products, by the names of torchao's recipes: `plinth.training.engine.precision` describes each.
Float8 = Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"]


class Optimizer(Frozen):
    """Optimizer, and its rate with warm-up, stable phase and decay by tokens."""

    kind: str = Field(
        "adamw",
        exclude_if=lambda kind: kind == "adamw",
        description="`adamw`; `muon`: the matrices of blocks by Muon, embeddings and gains by AdamW; or one of an "
        "installed package.",
    )
    options: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Parameters of the optimizer; of `muon`: `momentum` (0.95) and `scale` (`rms`: updates of AdamW's "
        "size; or `spectral`).",
    )
    lr: float = Field(3e-3, gt=0, description="Peak learning rate.")
    min_lr: float = Field(0.0, ge=0, description="Learning rate at the end; the floor of `inverse-sqrt`.")
    start_lr: float = Field(
        0.0, ge=0, description="Learning rate where the warm-up begins; above 0 to warm a trained model up again."
    )
    schedule: ScheduleName = Field(
        "wsd",
        description="Fall after the warm-up; `wsd` is warm-up, stable, linear decay, `wsd-sqrt` decays by 1 - sqrt.",
    )
    warmup_fraction: float = Field(0.02, ge=0, le=1, description="Opening share of tokens that warms up.")
    warmup_tokens: None = internal(None, description="A key of 0.3; in the dump, so that runs go on.")
    decay_fraction: float = Field(0.2, ge=0, le=1, description="WSD: closing share of tokens that decays.")
    horizons: tuple[float, ...] = Field(
        (),
        exclude_if=lambda given: not given,
        description="WSD: shares of the tokens at which the rate has fallen as at the end; with the next step it is "
        "the peak again. A checkpoint there stands for a run that ends there (WSD-S).",
    )
    decay_tokens: None = internal(None, description="A key of 0.3; in the dump, so that runs go on.")
    decay_shape: Literal["linear"] = internal("linear", description="Of the schedule `wsd`.")
    beta1: float = internal(0.9, ge=0, lt=1, description="AdamW, first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW, second moment.")
    eps: float = internal(1e-8, gt=0, description="AdamW.")
    weight_decay: float = Field(0.1, ge=0, description="On matrices; gains of norms have none.")
    embedding_weight_decay: float | None = internal(
        None, ge=0, description="On input and output embeddings; by default that of matrices."
    )
    independent_weight_decay: bool = internal(
        False, description="Decay by weight_decay x lr / peak lr, whatever the peak is, instead of weight_decay x lr."
    )
    embedding_lr_factor: float = internal(1.0, gt=0, description="Learning rate of embeddings, as a multiple.")
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        exclude_if=lambda given: given is None,
        description="Keep a mean of the weights, of which this share stays after a step (`plinth run checkpoint "
        "average`).",
    )
    ema_tokens: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda given: given is None,
        description="Tokens that `ema_decay` is for, instead of a step, whatever its size.",
    )
    grad_clip: float = Field(1.0, gt=0, description="Global norm to which gradients are clipped.")

    @model_validator(mode="after")
    def _can_fall(self) -> Optimizer:
        if self.start_lr > self.lr:
            raise ValueError(f"start_lr {self.start_lr:g} is above lr = {self.lr:g}")
        if self.horizons:
            self._apart()
        if self.ema_tokens is not None and self.ema_decay is None:
            raise ValueError("ema_tokens are those of ema_decay, which is not set")
        if self.schedule == "inverse-sqrt" and not self.warmup_fraction:
            raise ValueError("inverse-sqrt falls with the length of the warm-up: expected one above 0")
        return self

    def warmup(self, total_tokens: int) -> float:
        """Tokens that warm up."""
        return self.warmup_fraction * total_tokens

    def decay(self, total_tokens: int) -> float:
        """Tokens that decay at the end of WSD."""
        return self.decay_fraction * total_tokens

    def _apart(self) -> None:
        if not self.schedule.startswith("wsd"):
            raise ValueError(f"horizons are of the schedules wsd and wsd-sqrt; found {self.schedule}")
        begin = self.warmup_fraction
        for end in (*self.horizons, 1.0):
            if end > 1 or end * (1 - self.decay_fraction) < begin or end == begin:
                raise ValueError(
                    f"horizons rise below 1, and the decay before each, {self.decay_fraction:g} of its tokens, begins "
                    f"after the one before and after the warm-up; found {end:g} after {begin:g}"
                )
            begin = end


class MuonOptions(Frozen):
    """Muon: momentum, made orthogonal by Newton and Schulz (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

    momentum: float = Field(0.95, ge=0, lt=1, description="Share of the momentum that stays.")
    scale: Literal["rms", "spectral"] = Field(
        "rms",
        description="`rms`: 0.2 sqrt(max(rows, columns)), the size of AdamW's updates, so that its rate and decay "
        "serve (Moonlight, arXiv:2502.16982); `spectral`: sqrt(max(1, rows / columns)), as first published.",
    )
