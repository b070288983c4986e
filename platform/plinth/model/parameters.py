"""Configuration of the decoder, presets, and descriptions of architectures. This module does not import torch.

The descriptions of architectures are in `plinth.model.architectures`. The block class of an architecture declares the
division and the initial values of its parameters. `ArchitectureName` lists the names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from plinth.model.sparsity import Experts
from plinth.records import Frozen, OneValue, internal


class SlidingWindow(Frozen):
    """Layers whose tokens attend to the nearest keys only (Mistral 7B, arXiv:2310.06825; OLMo 3, arXiv:2512.13961)."""

    tokens: int = Field(4096, ge=1, description="Keys that a token of a sliding layer attends to, including itself.")
    layers: tuple[Literal["sliding", "full"], ...] = Field(
        ("sliding", "sliding", "sliding", "full"),
        min_length=1,
        description="Kinds of the layers from the first on, repeated over all layers. The default is OLMo 3's pattern.",
    )
    rope_theta: float | None = Field(
        None,
        gt=0,
        exclude_if=lambda base: base is None,
        description="Base of the rotary frequencies of sliding layers, which then ignore `rope_scaling`, as in OLMo 3. "
        "If unset, all layers have the same positions.",
    )

    @model_validator(mode="after")
    def _slides(self) -> SlidingWindow:
        if "sliding" not in self.layers:
            raise ValueError("the window's layers are all full; remove the window")
        return self


# Presets of models from 1M to 70B parameters.
#
# Parameter counts include the named vocabulary; another vocabulary changes them by `vocab x dim`, twice if embeddings
# are not tied. Sources:
#
# - 8b, 70b: Llama 3 (Dubey et al., arXiv:2407.21783, table 3). 1b, 3b: Llama 3.2, as its published configurations,
#   without their frequency scaling, which belongs to contexts above 8,192 tokens (`rope_scaling`).
# - olmo2-1b, olmo2-7b: OLMo 2 (OLMo Team, arXiv:2501.00656, table 3, and the published configurations), with its
#   initialization.
# - olmo3-7b: OLMo 3 (OLMo Team, arXiv:2512.13961, and the published configuration) before its long-context extension.
# - olmoe-1b-7b: OLMoE (Muennighoff et al., arXiv:2409.02060, table 10, and the published configuration).
# - qwen3-30b-a3b: Qwen3-30B-A3B (Qwen Team, arXiv:2505.09388, table 2, and the published configuration).
# - 350m: depth, width and heads of GPT-3 Medium (Brown et al., arXiv:2005.14165, table 2.1), with SwiGLU of three
#   times the width and half as many key/value heads.
# - 1m, 10m, 60m, 150m: ours, for tests, experiments on mixtures and scaling fits; head width 64 from 10m on.

# fmt: off
PresetName = Literal[
    "1m", "10m", "60m", "150m", "350m", "1b", "3b", "8b", "70b", "olmo2-1b", "olmo2-7b", "olmo3-7b", "olmoe-1b-7b",
    "qwen3-30b-a3b",
]
# fmt: on


class Shape(NamedTuple):
    """Dimensions of one model preset.

    The parameter count in a preset's name assumes `vocab_size`, which is not a key of the recipe's model section.
    """

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
    window: SlidingWindow | None = None
    experts: Experts | None = None
    head_dim: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of `Model` that the preset fills in."""
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
    "olmo3-7b": Shape(32, 4096, 32, 32, 11008, 100278, 500000.0, False, "olmo2", True, 1e-6, "normal", SlidingWindow()),
    "olmoe-1b-7b": Shape(
        *(16, 2048, 16, 16, 1024, 50304, 10000.0, False, "olmoe", True, 1e-5, "trunc-normal-all"),
        experts=Experts(count=64, active=8, ffn_dim=1024),
    ),
    "qwen3-30b-a3b": Shape(
        *(48, 2048, 32, 4, 6144, 151936, 1000000.0, False, "llama", True, 1e-6),
        experts=Experts(count=128, active=8, ffn_dim=768, normalize_top_k=True, auxiliary_coefficient=0.001),
        head_dim=128,
    ),
}

#: Names of architectures (`plinth.model.architectures`).
ArchitectureName = Literal["llama", "olmo2", "olmoe"]

#: Attention paths of training: `plinth.model.attention` describes each.
AttentionPath = Literal["auto", "sdpa", "flex", "flash"]


class RopeScaling(Frozen):
    """Scaling of the rotary frequencies, for contexts longer than in training.

    llama3  wavelengths above `original_tokens / low_frequency_factor` are stretched by `factor`, those below
            `original_tokens / high_frequency_factor` are kept, and those between are blended (arXiv:2407.21783)
    yarn    dimensions that rotate less than `beta_slow` times within `original_tokens` are stretched, those that rotate
            more than `beta_fast` times are kept, and those between are blended; queries and keys are scaled by
            0.1 ln(factor) + 1 each (Peng et al., arXiv:2309.00071, sections 3.2 to 3.4)
    """

    kind: Literal["llama3", "yarn"] = Field(
        "llama3",
        exclude_if=lambda kind: kind == "llama3",
        description="Scaling method: `llama3` as in Llama 3.1, or `yarn` (YaRN).",
    )
    factor: float = Field(8.0, ge=1, description="Factor by which the context length grows.")
    low_frequency_factor: float = internal(1.0, gt=0, description="Llama 3: 1.")
    high_frequency_factor: float = internal(4.0, gt=0, description="Llama 3: 4.")
    original_tokens: int = Field(8192, ge=1, description="Context length before scaling.")
    beta_fast: float = internal(32.0, gt=0, exclude_if=lambda turns: turns == 32.0, description="YaRN: 32 turns.")
    beta_slow: float = internal(1.0, gt=0, exclude_if=lambda turns: turns == 1.0, description="YaRN: 1 turn.")
    temperature: float | None = internal(
        None,
        gt=0,
        exclude_if=lambda given: given is None,
        description="YaRN: factor of queries and keys; if None, computed from `factor`.",
    )

    @property
    def attention_factor(self) -> float:
        """Factor of rotated queries and keys: 1 / sqrt(t) of YaRN's equation 22 if the method is `yarn`, else 1."""
        if self.kind != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1.0 if self.temperature is None else self.temperature

    @model_validator(mode="after")
    def _ordered(self) -> RopeScaling:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor {self.high_frequency_factor:g} is not above "
                f"low_frequency_factor {self.low_frequency_factor:g}"
            )
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast:g} is not above beta_slow {self.beta_slow:g}")
        return self


class MuP(OneValue):
    """Maximal update parametrization (Yang et al., arXiv:2203.03466, table 8): tune a narrow model, train a wide one.

    With m = dim / base_dim, matrices within blocks are initialized with std / sqrt(m) and have the learning rate lr /
    m. Logits are divided by m, and the attention scale is sqrt(base_head_dim) / head_dim. At m = 1, matrices and logits
    are those of the plain model.
    """

    base_dim: int = Field(256, ge=8, description="Width at which learning rate and std were tuned.")
    base_head_dim: int = internal(64, ge=2, description="Head width at which the attention scale is standard.")
    embedding_multiplier: float = internal(1.0, gt=0, description="Factor that multiplies the embeddings.")
    output_multiplier: float = internal(
        1.0, gt=0, description="Factor that multiplies logits, in addition to base_dim / dim."
    )


class Model(Frozen):
    """A decoder with RMSNorm, RoPE, SwiGLU and grouped-query attention."""

    preset: PresetName | None = Field(
        None, exclude=True, description="Preset with published or common dimensions; the recipe's fields override it."
    )
    architecture: ArchitectureName = Field(
        "llama",
        exclude_if=lambda name: name == "llama",
        description="`llama`: pre-norm blocks (Qwen2 with qkv_bias, Qwen3 with qk_norm). `olmo2`: norms on each "
        "sublayer's output, and on queries and keys over all heads. `olmoe`: pre-norm with the latter, and experts.",
    )
    layers: int = Field(6, ge=1, description="Transformer blocks.")
    dim: int = Field(256, ge=8, description="Width of the residual stream.")
    heads: int = Field(4, ge=1, description="Query heads.")
    kv_heads: int = Field(2, ge=1, description="Number of key and value heads; each is shared by several query heads.")
    head_dim: int = Field(0, ge=0, description="Width of a head; 0 means dim / heads.")
    ffn_dim: int = Field(704, ge=8, description="Inner width of SwiGLU.")
    rope_theta: float = Field(10000.0, gt=0, description="Base of the rotary frequencies.")
    rope_scaling: RopeScaling | None = Field(None, description="Scaling for contexts longer than those in training.")
    rotary_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        exclude_if=lambda fraction: fraction == 1.0,
        description="Fraction of a head's width that is rotated by its position, as in Phi-4-mini (0.75).",
    )
    window: SlidingWindow | None = Field(
        None, exclude_if=lambda window: window is None, description="Sliding windows in some or all layers."
    )
    sinks: bool = Field(
        False,
        exclude_if=lambda given: not given,
        description="Attention sinks: a learned logit per head in the denominator of the softmax, as in gpt-oss.",
    )
    experts: Experts | None = Field(
        None, exclude_if=lambda experts: experts is None, description="Mixture of experts in some or all layers."
    )
    norm_eps: float = Field(1e-5, gt=0, description="Constant added to the mean square in RMSNorm.")
    qk_norm: bool = Field(False, description="RMSNorm on queries and keys; always on for olmo2 and olmoe.")
    qkv_bias: bool = Field(
        False, exclude_if=lambda biased: not biased, description="Biases of queries, keys and values, as in Qwen2."
    )
    tied_embeddings: bool = Field(True, description="Use one matrix for input and output embeddings.")
    document_mask: bool = Field(True, description="Prevent attention across document boundaries.")
    init: Literal["gpt2", "normal", "trunc-normal", "trunc-normal-all", "megatron"] = Field(
        "gpt2", description="Distribution of initial weights; plinth/model/division.py describes each choice."
    )
    init_std: float = internal(0.02, gt=0, description="Standard deviation of initial weights; ignored by `megatron`.")
    mup: MuP | None = Field(None, description="Maximal update parametrization: hyperparameters transfer across widths.")
    z_loss: float = Field(0.0, ge=0, description="Weight of log(Z)^2 in the loss; PaLM uses 1e-4.")

    @property
    def head_width(self) -> int:
        """Width E of one head."""
        return self.head_dim or self.dim // self.heads

    @property
    def rotary_width(self) -> int:
        """Number of dimensions of a head that are rotated; the others do not depend on positions."""
        return int(self.head_width * self.rotary_fraction)

    @property
    def width_multiplier(self) -> float:
        """Width multiplier m of muP; 1 without muP."""
        return self.dim / self.mup.base_dim if self.mup else 1.0

    @property
    def attention_scale(self) -> float:
        """Factor that multiplies the attention scores q·k before the softmax."""
        if self.mup:
            return float(self.mup.base_head_dim**0.5 / self.head_width)
        return float(self.head_width**-0.5)

    def window_at(self, layer: int) -> int | None:
        """Return the number of keys that a token of a layer attends to, or None if the layer has no window."""
        if self.window is None or self.window.layers[layer % len(self.window.layers)] == "full":
            return None
        return self.window.tokens

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Window of each layer, as in `window_at`."""
        return tuple(self.window_at(layer) for layer in range(self.layers))

    def with_positions_of(self, window: int | None) -> Model:
        """Return the model with the rotary positions of the layers that have this window."""
        if window is None or self.window is None or self.window.rope_theta is None:
            return self
        return self.model_copy(update={"rope_theta": self.window.rope_theta, "rope_scaling": None})

    @property
    def embedding_scale(self) -> float:
        """Factor that multiplies the embeddings."""
        return self.mup.embedding_multiplier if self.mup else 1.0

    @property
    def logit_scale(self) -> float:
        """Factor that multiplies the logits."""
        return self.mup.output_multiplier / self.width_multiplier if self.mup else 1.0

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, given: Any) -> Any:
        """Fill in fields that the recipe does not set, from the preset and from the architecture's requirements."""
        if not isinstance(given, dict):
            return given
        shape = PRESETS.get(given.get("preset", ""))
        filled = given if shape is None else {**shape.fields(), **given}
        implied = {"qk_norm": True} if filled.get("architecture") in ("olmo2", "olmoe") else {}
        return {**filled, **implied, **given}

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.architecture == "olmo2" and not self.qk_norm:
            raise ValueError("qk_norm false with architecture olmo2, which normalizes queries and keys; remove it")
        if self.qkv_bias and self.qk_norm:
            raise ValueError("no published model has both qkv_bias and qk_norm; remove one")
        if self.sinks and (self.architecture == "olmo2" or self.qk_norm or self.qkv_bias):
            raise ValueError("no published model has sinks with architecture olmo2, qk_norm or qkv_bias; remove one")
        local = self.window is not None and self.window.rope_theta is not None and self.architecture == "llama"
        if local and (not self.sinks or self.rope_scaling is not None):
            raise ValueError(
                "no published model of architecture llama has window.rope_theta without sinks or with rope_scaling; "
                "remove it"
            )
        if not self.head_dim and self.dim % self.heads:
            raise ValueError(f"dim {self.dim} over heads {self.heads} is not an integer head width; set head_dim")
        if self.head_width % 2:
            raise ValueError(f"dim {self.dim} over heads {self.heads} is not an even head width")
        if self.rotary_width % 2 or not self.rotary_width:
            raise ValueError(
                f"rotary_fraction {self.rotary_fraction:g} of head width {self.head_width} is not an even number of "
                "dimensions"
            )
        if self.rotary_fraction < 1 and (against := [name for name, given in self._not_in_phi3().items() if given]):
            raise ValueError(f"no published model has both rotary_fraction and {', '.join(against)}; remove one")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if against := [text for text, given in self._unpublished_experts().items() if given]:
            raise ValueError(f"no published model has {', '.join(against)}; change experts or remove it")
        return self

    def _unpublished_experts(self) -> dict[str, bool]:
        """Return the features that no published form of a mixture of experts has with this model's."""
        experts, olmoe = self.experts, self.architecture == "olmoe"
        if experts is None:
            return {"architecture olmoe without experts": olmoe}
        sigmoid = experts.score == "sigmoid"
        return {
            "experts in architecture olmo2": self.architecture == "olmo2",
            "experts with a window, sinks, qkv_bias or rotary_fraction": bool(
                self.window or self.sinks or self.qkv_bias or self.rotary_fraction < 1
            ),
            "experts of architecture olmoe with dense layers, shared experts or sigmoid scores": olmoe
            and (experts.every > 1 or experts.dense_first > 0 or experts.shared > 0 or sigmoid),
            "architecture olmoe with another head width than dim / heads": olmoe
            and self.head_width * self.heads != self.dim,
            f"architecture olmoe with ffn_dim {self.ffn_dim} and experts.ffn_dim {experts.ffn_dim}": olmoe
            and self.ffn_dim != experts.ffn_dim,
            "softmax scores with shared experts or a scale": not sigmoid
            and (experts.shared > 0 or experts.scale != 1.0),
            "softmax scores without qk_norm": not sigmoid and not self.qk_norm,
            "sigmoid scores without shared experts": sigmoid and not experts.shared,
            "sigmoid scores in every n-th layer": sigmoid and experts.every > 1,
            f"experts in none of {self.layers} layers": not experts.sparse_layers(self.layers),
        }

    def _not_in_phi3(self) -> dict[str, bool]:
        """Return the features that Phi-3, the published form with partly rotated heads, does not have."""
        return {
            "architecture olmo2": self.architecture == "olmo2",
            "qk_norm": self.qk_norm,
            "qkv_bias": self.qkv_bias,
            "rope_scaling": self.rope_scaling is not None,
            "sinks": self.sinks,
            "a window in some layers only": len(set(self.windows)) > 1,
        }


def repeats(heads: int, kv_heads: int, size: int) -> int:
    """Return the number of copies of each key/value head with which every rank has matching query and key/value heads.

    The number is the smallest divisor of `heads / kv_heads` that makes the key/value heads divisible over `size` ranks.
    Such a divisor exists if `heads` is divisible by `size`.
    """
    shared = heads // kv_heads
    least = size // math.gcd(kv_heads, size)
    return next(times for times in range(least, shared + 1) if shared % times == 0 and kv_heads * times % size == 0)


class BlockCounts(NamedTuple):
    """Parameter counts of one block, by component."""

    attention: int
    feed_forward: int  # of a dense block
    norms: int
    biases: int = 0


class Norm(NamedTuple):
    """Norm layer of a block: width of its input, and number of statistics per token that the backward pass needs."""

    width: int  # values of its input
    statistics: int = 1  # one per separately normalized group
    divided: bool = False  # divided over tensor ranks
    over_ranks: bool = False  # statistics cover all tensor ranks, so no fused kernel computes them


class Published(NamedTuple):
    """Hugging Face model type, and the fields of `Model` that it implies in addition to the architecture."""

    model_type: str
    class_name: str
    fields: Mapping[str, Any]
    windows: Literal["none", "every layer", "all or none", "listed"] = "none"  # listed: a kind for each layer
    partly_rotated: bool = False  # the configuration has a fraction of the head width that is rotated
    experts: Literal["none", "softmax", "sigmoid"] = "none"  # scores of the experts

    def describes(self, model: Model) -> bool:
        """Return True if a model of this architecture can be exported under this type."""
        sliding = [window is not None for window in model.windows]
        windows = {"none": not any(sliding), "every layer": all(sliding), "listed": True}
        windows["all or none"] = windows["none"] or windows["every layer"]
        return (
            windows[self.windows]
            and self.experts == (model.experts.score if model.experts else "none")
            and self.partly_rotated == (model.rotary_fraction < 1)
            and self.fields.get("sinks", False) == model.sinks
            and all(getattr(model, key) == value for key, value in self.fields.items())
        )


@dataclass(frozen=True)
class Architecture:
    """Description of an architecture that is usable without torch."""

    block: str  # module and class, imported, with torch, when a decoder is built
    counts: Callable[[Model], BlockCounts]
    norms: Callable[[Model], tuple[Norm, ...]]
    published: tuple[Published, ...]
    recomputes_output: bool  # True if recomputation of a block includes its output, because the backward pass needs it

    def block_class(self) -> Any:
        """Return the block class of the architecture, whose constructor takes config, index and division."""
        module, name = self.block.split(":")
        return getattr(import_module(module), name)

    def published_as(self, model: Model) -> Published:
        """Return the Hugging Face model type under which `model` is exported."""
        return next(one for one in self.published if one.describes(model))
