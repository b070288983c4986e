"""Model, optimizer, parallelism, checkpoints, launch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen


class Model(Frozen):
    """A Llama-style decoder: RMSNorm, RoPE, SwiGLU, grouped-query attention."""

    layers: int = Field(6, ge=1, description="Transformer blocks.")
    dim: int = Field(256, ge=8, description="Width of the residual stream.")
    heads: int = Field(4, ge=1, description="Query heads.")
    kv_heads: int = Field(2, ge=1, description="Key and value heads, each shared by several query heads.")
    ffn_dim: int = Field(704, ge=8, description="Inner width of SwiGLU.")
    rope_theta: float = Field(10000.0, gt=0, description="Base of the rotary frequencies.")
    norm_eps: float = Field(1e-5, gt=0, description="Added to the mean square in RMSNorm.")
    qk_norm: bool = Field(False, description="RMSNorm on queries and keys.")
    tied_embeddings: bool = Field(True, description="One matrix for input and output embeddings.")
    document_mask: bool = Field(True, description="No attention across document boundaries.")
    init_std: float = Field(0.02, gt=0, description="Standard deviation of initial weights.")

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise ValueError(f"dim {self.dim} over heads {self.heads} is not an even head width")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self


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


class Checkpoints(Frozen):
    """When to commit the full state, and what to keep."""

    every_steps: int = Field(100, ge=1, description="Steps between two checkpoints.")
    keep_last: int = Field(2, ge=1, description="Older ones are removed.")
    audit_steps: int = Field(
        8, ge=1, description="Steps before the end at which a checkpoint is kept, to prove that a resume is exact."
    )


class Supervision(Frozen):
    """Restarts inside the allocation."""

    max_restarts: int = Field(3, ge=0, description="Restarts from the last committed checkpoint.")
    backoff_s: float = Field(1.0, ge=0, description="Before the first restart; doubles each time.")
    hang_s: float = Field(300.0, gt=0, description="No event for this long means the ranks hang.")
    grace_s: float = Field(60.0, gt=0, description="Time to save and leave after SIGTERM.")


class Launch(Frozen):
    """Where the job runs. Bears no identity."""

    kind: Literal["local"] = Field("local", description="Launcher.")
    ranks: int = Field(2, ge=1, description="Processes, one per device.")


class Training(Frozen):
    """One run."""

    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    micro_batch_sequences: int = Field(4, ge=1, description="Sequences per rank and forward pass.")
    global_batch_sequences: int = Field(16, ge=1, description="Sequences per optimizer step, over all ranks.")
    zero_stage: Literal[0, 1, 2, 3] = Field(
        1, description="DeepSpeed ZeRO: what is divided over ranks; 1 optimizer state, 2 gradients, 3 parameters too."
    )
    precision: Literal["fp32", "bf16", "auto"] = Field("auto", description="`auto`: BF16 where the device has it.")
    seed: int = Field(1, description="Of initial weights.")
    checkpoints: Checkpoints = Checkpoints()
    supervision: Supervision = Supervision()
    launch: Launch = Launch()
