"""Model, optimizer, parallelism, checkpoints, launch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen


class Model(Frozen):
    """A Llama-style decoder: RMSNorm, RoPE, SwiGLU, grouped-query attention."""

    layers: int = Field(6, ge=1)
    dim: int = Field(256, ge=8)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1)
    ffn_dim: int = Field(704, ge=8)
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    qk_norm: bool = False
    tied_embeddings: bool = True
    document_mask: bool = Field(True, description="No attention across document boundaries.")
    init_std: float = 0.02

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise ValueError(f"dim {self.dim} over heads {self.heads} is not an even head width")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self


class Optimizer(Frozen):
    """AdamW with warm-up, stable phase and decay by tokens."""

    lr: float = Field(3e-3, gt=0)
    min_lr: float = Field(0.0, ge=0)
    schedule: Literal["cosine", "linear", "wsd"] = "wsd"
    warmup_fraction: float = Field(0.02, ge=0, le=1)
    decay_fraction: float = Field(0.2, ge=0, le=1, description="WSD: closing share that decays.")
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = Field(1.0, gt=0)


class Checkpoints(Frozen):
    """When to commit the full state, and what to keep."""

    every_steps: int = Field(100, ge=1)
    keep_last: int = Field(2, ge=1)
    audit_steps: int = Field(
        8, ge=1, description="Steps before the end at which a checkpoint is kept, to prove that a resume is exact."
    )


class Supervision(Frozen):
    """Restarts inside the allocation."""

    max_restarts: int = Field(3, ge=0)
    backoff_s: float = Field(1.0, ge=0)
    hang_s: float = Field(300.0, gt=0, description="No event for this long means the ranks hang.")
    grace_s: float = Field(60.0, gt=0, description="Time to save and leave after SIGTERM.")


class Launch(Frozen):
    """Where the job runs. Bears no identity."""

    kind: Literal["local"] = "local"
    ranks: int = Field(2, ge=1)


class Training(Frozen):
    """One run."""

    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    micro_batch_sequences: int = Field(4, ge=1, description="Sequences per rank and forward pass.")
    global_batch_sequences: int = Field(16, ge=1, description="Sequences per optimizer step, over all ranks.")
    zero_stage: Literal[0, 1, 2, 3] = 1
    precision: Literal["fp32", "bf16", "auto"] = Field("auto", description="`auto`: BF16 where the device has it.")
    seed: int = 1
    checkpoints: Checkpoints = Checkpoints()
    supervision: Supervision = Supervision()
    launch: Launch = Launch()
