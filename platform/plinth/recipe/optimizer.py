"""Optimizer and learning rate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen


class Optimizer(Frozen):
    """AdamW with warm-up, stable phase and decay by tokens."""

    lr: float = Field(3e-3, gt=0, description="Peak learning rate.")
    min_lr: float = Field(0.0, ge=0, description="Learning rate at the end.")
    schedule: Literal["cosine", "linear", "wsd"] = Field(
        "wsd", description="Fall after the warm-up; `wsd` is warm-up, stable, decay."
    )
    warmup_fraction: float = Field(0.02, ge=0, le=1, description="Opening share that warms up.")
    decay_fraction: float = Field(0.2, ge=0, le=1, description="WSD: closing share that decays.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW, first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW, second moment.")
    eps: float = Field(1e-8, gt=0, description="AdamW.")
    weight_decay: float = Field(0.1, ge=0, description="Decoupled; on matrices only.")
    grad_clip: float = Field(1.0, gt=0, description="Global norm to which gradients are clipped.")
