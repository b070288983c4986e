"""Shapes of models from 1M to 70B parameters, to start from.

Parameter counts are with the vocabulary named; another vocabulary changes them by `vocab x dim`, twice where
embeddings are not tied. Sources:

- 8b, 70b: Llama 3 (Dubey et al., arXiv:2407.21783, table 3). 1b, 3b: Llama 3.2, as its published configurations,
  without their frequency scaling, which belongs to contexts above 8,192 tokens (`rope_scaling`).
- olmo2-1b, olmo2-7b: OLMo 2 (OLMo Team, arXiv:2501.00656, table 3, and the published configurations), with its
  initialisation.
- 350m: depth, width and heads of GPT-3 Medium (Brown et al., arXiv:2005.14165, table 2.1), with SwiGLU of three
  times the width and half as many key/value heads.
- 1m, 10m, 60m, 150m: ours, for tests, experiments on mixtures and scaling fits; head width 64 from 10m on.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

PresetName = Literal["1m", "10m", "60m", "150m", "350m", "1b", "3b", "8b", "70b", "olmo2-1b", "olmo2-7b"]


class Shape(NamedTuple):
    """One preset; `vocab_size` is what the count in its name supposes and is not part of the model section."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocab_size: int
    rope_theta: float = 10000.0
    tied_embeddings: bool = True
    architecture: str = "llama"
    qk_norm: bool = False
    norm_eps: float = 1e-5
    init: str = "gpt2"

    def fields(self) -> dict[str, Any]:
        """The fields of `Model` that the preset fills in."""
        return {name: value for name, value in self._asdict().items() if name != "vocab_size"}


PRESETS: dict[str, Shape] = {
    "1m": Shape(4, 128, 4, 2, 384, 2048),
    "10m": Shape(8, 256, 4, 2, 768, 16384),
    "60m": Shape(12, 512, 8, 4, 1792, 32768),
    "150m": Shape(18, 768, 12, 4, 2048, 49152),
    "350m": Shape(24, 1024, 16, 8, 3072, 49152),
    "1b": Shape(16, 2048, 32, 8, 8192, 128256, 500000.0),
    "3b": Shape(28, 3072, 24, 8, 8192, 128256, 500000.0),
    "8b": Shape(32, 4096, 32, 8, 14336, 128256, 500000.0, tied_embeddings=False),
    "70b": Shape(80, 8192, 64, 8, 28672, 128256, 500000.0, tied_embeddings=False),
    "olmo2-1b": Shape(16, 2048, 16, 16, 8192, 100352, 500000.0, False, "olmo2", True, 1e-6, "normal"),
    "olmo2-7b": Shape(32, 4096, 32, 32, 11008, 100352, 500000.0, False, "olmo2", True, 1e-6, "normal"),
}
