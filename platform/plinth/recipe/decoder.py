"""The model."""

from __future__ import annotations

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
