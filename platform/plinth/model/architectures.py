"""Architectures of the decoder, with their parameter counts and FLOPs. This module does not import torch.

    LLAMA    pre-norm blocks with RMSNorm (arXiv:2302.13971); Qwen2 if `qkv_bias` is set, Qwen3 if `qk_norm` is set,
             Mistral if every layer has a sliding window, Phi-3 if `rotary_fraction` is set,
             Granite with sliding windows if `sinks` is set
             Qwen3-MoE or GLM-4.5-MoE if `experts` is set
    OLMOE    LLAMA's blocks with OLMO2's attention, and experts (arXiv:2409.02060)
    OLMO2    norms on each sublayer's output, QK-norm over all heads together (arXiv:2501.00656, section 3.2); OLMo 3
             with sliding windows

To add an architecture, add a record to `ARCHITECTURES`, its name to `parameters.ArchitectureName`, and a block to
`blocks`.

Symbols: L layers, D `dim`, H query heads and K key/value heads, Q head width, F `ffn_dim`, V vocabulary size, S
sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pydantic import Field

from plinth.model.parameters import Architecture, ArchitectureName, BlockCounts, Model, Norm, Published
from plinth.records import Frozen


def llama_counts(model: Model) -> BlockCounts:
    """Return the parameter counts of one LLaMA block."""
    head = model.head_width
    return BlockCounts(
        attention=2 * model.dim * model.heads * head + 2 * model.dim * model.kv_heads * head,
        feed_forward=3 * model.dim * model.ffn_dim,
        norms=2 * model.dim + (2 * head if model.qk_norm else 0),
        biases=((model.heads + 2 * model.kv_heads) * head if model.qkv_bias else 0)
        + (model.heads if model.sinks else 0),
    )


def llama_norms(model: Model) -> tuple[Norm, ...]:
    """Return the norms of one LLaMA block."""
    head = model.head_width
    heads = tuple(Norm(n * head, n, divided=True) for n in (model.heads, model.kv_heads)) if model.qk_norm else ()
    return (Norm(model.dim), Norm(model.dim), *heads)


LLAMA = Architecture(
    block="plinth.model.blocks:LlamaBlock",
    counts=llama_counts,
    norms=llama_norms,
    recomputes_output=False,
    published=(
        Published("llama", "LlamaForCausalLM", {"qk_norm": False, "qkv_bias": False}),
        Published("mistral", "MistralForCausalLM", {"qk_norm": False, "qkv_bias": False}, "every layer"),
        Published("ministral", "MinistralForCausalLM", {"qk_norm": False, "qkv_bias": False}, "listed"),
        Published("phi3", "Phi3ForCausalLM", {"qk_norm": False, "qkv_bias": False}, "all or none", partly_rotated=True),
        Published(
            "granite_swa", "GraniteSWAForCausalLM", {"qk_norm": False, "qkv_bias": False, "sinks": True}, "listed"
        ),
        Published("qwen2", "Qwen2ForCausalLM", {"qk_norm": False, "qkv_bias": True}, "listed"),
        Published("qwen3", "Qwen3ForCausalLM", {"qk_norm": True, "qkv_bias": False}, "listed"),
        Published("qwen3_moe", "Qwen3MoeForCausalLM", {"qk_norm": True}, experts="softmax"),
        Published("glm4_moe", "Glm4MoeForCausalLM", {}, experts="sigmoid"),
    ),
)


def olmo2_counts(model: Model) -> BlockCounts:
    """Return the parameter counts of one OLMo 2 block."""
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    return BlockCounts(
        attention=2 * model.dim * (queries + keys),
        feed_forward=3 * model.dim * model.ffn_dim,
        norms=2 * model.dim + queries + keys,
    )


def olmo2_norms(model: Model) -> tuple[Norm, ...]:
    """Return the norms of one OLMo 2 block."""
    projected = (model.heads * model.head_width, model.kv_heads * model.head_width)
    return (Norm(model.dim), Norm(model.dim), *(Norm(width, divided=True, over_ranks=True) for width in projected))


OLMO2 = Architecture(
    block="plinth.model.blocks:Olmo2Block",
    counts=olmo2_counts,
    norms=olmo2_norms,
    recomputes_output=True,
    published=(
        Published("olmo2", "Olmo2ForCausalLM", {"qk_norm": True, "qkv_bias": False}),
        Published("olmo3", "Olmo3ForCausalLM", {"qk_norm": True, "qkv_bias": False}, "listed"),
    ),
)

OLMOE = Architecture(
    block="plinth.model.blocks:OlmoeBlock",
    counts=olmo2_counts,
    norms=olmo2_norms,
    recomputes_output=False,
    published=(Published("olmoe", "OlmoeForCausalLM", {"qk_norm": True}, experts="softmax"),),
)

#: Descriptions of all architectures, by name.
ARCHITECTURES: Final[Mapping[ArchitectureName, Architecture]] = {"llama": LLAMA, "olmo2": OLMO2, "olmoe": OLMOE}


def architecture(name: ArchitectureName) -> Architecture:
    """Return the description of an architecture."""
    return ARCHITECTURES[name]


def published() -> Iterator[tuple[ArchitectureName, Published]]:
    """Yield every Hugging Face model type that can be read, with its architecture."""
    for name, known in ARCHITECTURES.items():
        yield from ((name, one) for one in known.published)


# Parameters and floating-point operations.


class ParameterCounts(Frozen):
    """Parameter counts of a model, by component; `norms` counts norm gains, all biases and attention sinks.

    `feed_forward` includes all experts and routers; `inactive` counts the experts that a token does not use.
    """

    embedding: int
    attention: int
    feed_forward: int
    norms: int
    output: int
    inactive: int = Field(0, exclude_if=lambda count: count == 0)

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.feed_forward + self.norms + self.output

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.total - self.inactive

    @property
    def products(self) -> int:
        """Parameters of the blocks' matrices that one token is multiplied with."""
        return self.attention + self.feed_forward - self.inactive


def parameters(model: Model, vocab_size: int) -> ParameterCounts:
    """Return the parameter counts of a model. A tied output projection counts as 0."""
    block, experts = architecture(model.architecture).counts(model), model.experts
    sparse = experts.sparse_layers(model.layers) if experts else 0
    each = 3 * model.dim * experts.ffn_dim if experts else 0
    mixed = (each * (experts.count + experts.shared) + model.dim * experts.count) if experts else 0
    return ParameterCounts(
        embedding=vocab_size * model.dim,
        attention=model.layers * block.attention,
        feed_forward=(model.layers - sparse) * block.feed_forward + sparse * mixed,
        norms=model.layers * (block.norms + block.biases) + model.dim,
        output=0 if model.tied_embeddings else vocab_size * model.dim,
        inactive=sparse * each * (experts.count - experts.active) if experts else 0,
    )


def flops_6n(model: Model, vocab_size: int) -> int:
    """Return training FLOPs per token as 6 N. N counts all parameters that a token uses, as in Hoffmann et al. 2022;
    Kaplan et al. 2020 leave out embeddings."""
    return 6 * parameters(model, vocab_size).active


def flops_exact(model: Model, vocab_size: int, sequence_tokens: int) -> int:
    """Return training FLOPs per token of all matrix products.

    The sum has two parts: 6 per matrix parameter, including the output projection but not the embedding look-up, and 12
    H Q S for the attention of each layer over the full S x S matrix. Published utilization figures use this convention
    (Chowdhery et al. 2022, "PaLM", appendix B). Without recomputation and with unfused attention, the result equals
    that of `torch.utils.flop_counter`.

    A layer with a sliding window counts min(S, W) keys per token, because the model needs no more. PyTorch's counter
    counts S there too if a kernel computes the scores outside the window and masks them.
    """
    keys = sum(square_keys(model, sequence_tokens))
    return 6 * _matrices(model, vocab_size) + 12 * model.heads * model.head_width * keys


def square_keys(model: Model, sequence_tokens: int) -> list[int]:
    """Return the keys per token of each layer without causal mask: the sequence length, or the window if smaller."""
    return [min(sequence_tokens, window or sequence_tokens) for window in model.windows]


def keys_per_token(documents: Sequence[int], window: int | None = None) -> float:
    """Return the mean number of keys that a token attends to, including itself, for documents of these lengths.

    For document lengths l, this is the sum of l (l + 1) / 2 divided by the sum of l. If every row of S tokens is one
    document, the mean is (S + 1) / 2. With a sliding window of W keys, the tokens after the first W of a document have
    W keys each.
    """
    pairs = 0
    for length in documents:
        first = min(length, window or length)
        pairs += first * (first + 1) // 2 + (length - first) * first
    return pairs / sum(documents)


def layer_keys(model: Model, documents: Sequence[int]) -> list[float]:
    """Return the keys per token of each layer, for documents of these lengths."""
    found = {window: keys_per_token(documents, window) for window in set(model.windows)}
    return [found[window] for window in model.windows]


def flops_causal(model: Model, vocab_size: int, keys: Sequence[float]) -> float:
    """Return training FLOPs per token as in `flops_exact`, but count attention only over the keys that a token attends
    to.

    Args:
        keys: keys per token of each layer, from `layer_keys`; with document masks, only keys in the token's own
            document count.
    """
    return 6 * _matrices(model, vocab_size) + 12 * model.heads * model.head_width * sum(keys)


def flops_hardware(
    model: Model, vocab_size: int, keys: Sequence[float], *, every: int = 0, fused: bool = True
) -> float:
    """Return training FLOPs per token that a device executes.

    FlashAttention recomputes the scores in the backward pass, so attention costs 14 L H Q S instead of the 12 L H Q S
    of `flops_exact` (Dao, arXiv:2307.08691, section 3.1: five products in addition to the forward pass's two). A block
    with activation recomputation repeats its forward pass up to the last tensor that the backward pass needs. If the
    architecture normalizes the feed-forward's output, that output is recomputed too.

    Args:
        keys: keys per token that the kernel of each layer computes; the row length if the kernel masks keys without
            skipping them.
        every: `activation_checkpointing` of the recipe: every n-th block is recomputed; 0 for none.
        fused: True for FlashAttention or FlexAttention.
    """
    attention = model.heads * model.head_width
    recomputed = keys[every - 1 :: every] if every else ()
    again = sum(2 * _recomputed(model, layer) for layer in range(every - 1, len(keys), every)) if every else 0
    whole = 6 * _matrices(model, vocab_size) + (14 if fused else 12) * attention * sum(keys)
    return whole + again + 4 * attention * sum(recomputed)


def _recomputed(model: Model, layer: int) -> int:
    """Return the number of parameters in the matrices of a recomputed block that its tokens are multiplied with again.

    The last product of a block is not repeated, except that the weights of experts multiply their outputs.
    """
    kind, experts = architecture(model.architecture), model.experts
    block = kind.counts(model)
    if experts is None or not experts.at(layer):
        return block.attention + block.feed_forward - (0 if kind.recomputes_output else model.dim * model.ffn_dim)
    routed = model.dim * (experts.count + 3 * experts.active * experts.ffn_dim)
    return block.attention + routed + 2 * model.dim * experts.shared * experts.ffn_dim


def _matrices(model: Model, vocab_size: int) -> int:
    """Return the number of parameters in the matrices that every token is multiplied with, including the output
    projection."""
    return parameters(model, vocab_size).products + vocab_size * model.dim


# Memory traffic of training on a device, for the decoder of a recipe. No torch.
#
# A product of an [m, k] by a [k, n] matrix reads both and writes the result: (mk + kn + mn) elements. The two products
# of its backward pass move the same. The count covers matrix products, attention as a fused kernel (FlashAttention: no
# S x S matrix) and the FP32 update of AdamW, without norms, activations and the loss. It is a lower bound of the bytes,
# and the derived intensity an upper bound (Williams, Waterman and Patterson 2009, "Roofline").
#
# D `dim`, H query heads and K key/value heads of E, F `ffn_dim`, V vocabulary.

#: AdamW in FP32 reads parameter, gradient and both moments, and writes all but the gradient.
UPDATE_BYTES = 7 * 4


def experts_read(model: Model, tokens: float) -> float:
    """Return the expected number of a layer's experts that `tokens` tokens use, if each uses any of them equally
    often."""
    if model.experts is None:
        return 0.0
    share = model.experts.active / model.experts.count
    return model.experts.count * (1 - float((1 - share) ** tokens))


def weights_read(model: Model, vocab_size: int, tokens: float) -> float:
    """Return the number of parameters in the matrices that a pass over `tokens` tokens reads."""
    counted, experts = parameters(model, vocab_size), model.experts
    read = counted.products + vocab_size * model.dim
    if experts is None:
        return read
    return read + counted.inactive * (experts_read(model, tokens) - experts.active) / (
        max(1, experts.count - experts.active)
    )


def product_bytes(model: Model, vocab_size: int, tokens: int, element_bytes: int, *, tensor: int = 1) -> float:
    """Return the bytes moved by all matrix products of a forward and backward pass over `tokens` tokens.

    Args:
        element_bytes: bytes per element of activations and weights.
        tensor: number of tensor-parallel ranks; each matrix is divided over them along one axis.
    """
    heads, experts = 2 * (model.heads + model.kv_heads) * model.head_width, model.experts
    sparse = experts.sparse_layers(model.layers) if experts else 0
    weights, dense = weights_read(model, vocab_size, tokens), model.layers - sparse
    # q, k, v, o, gate, up, down, and the output projection
    whole = model.layers * 4 * model.dim + dense * 3 * model.dim + model.dim
    divided = model.layers * heads + dense * 3 * model.ffn_dim + vocab_size
    if experts:
        whole += sparse * (1 + 3 * experts.active + 3 * (experts.shared > 0)) * model.dim
        divided += sparse * (experts.count + 3 * (experts.active + experts.shared) * experts.ffn_dim)
    return 3 * element_bytes * (weights / tensor + tokens * (whole + divided / tensor))


def attention_bytes(model: Model, tokens: int, element_bytes: int, *, tensor: int = 1) -> float:
    """Return the bytes moved by fused attention in the forward and backward pass.

    The forward pass moves Q, K, V and O; the backward pass moves these and their gradients.
    """
    per_token = 6 * (model.heads + model.kv_heads) * model.head_width
    return element_bytes * tokens * model.layers * per_token / tensor


def update_bytes(model: Model, vocab_size: int, ranks: int = 1) -> float:
    """Return the bytes of memory traffic of one AdamW update on each rank, with optimizer states divided over `ranks`
    ranks."""
    return UPDATE_BYTES * parameters(model, vocab_size).total / ranks
