"""Bytes that autograd keeps for the backward pass, tensor by tensor as the decoder saves them.

    D  model width    H  query heads    K  key/value heads    E  head width    F  feed-forward    w  bytes of an element
    t, s  ranks that share a matrix, a sequence

A block keeps of a token, without the attention scores, which fused kernels compute again:

    2 D w                          inputs of the projections: after the first norm, after the second (OLMo 2: before)
    norms                          input and a statistic each; on CPUs, where PyTorch has no fused kernel: two in FP32
    (2 H E w + 2 K E w + 4 H) / t  queries, attention's output, keys, values, the scores' normaliser; over sequence
                                   ranks the output twice (as made, as received) and keys, values as often as repeated
    4 F w / t                      gate, its SiLU, up, their product

A recomputed block keeps its input alone (Chen et al., arXiv:1604.06174), and one at a time is there whole. A pipeline's
first stage holds those of min(p, micro batches) micro batches (Narayanan et al., arXiv:2104.04473, section 2.2). A test
compares with `saved_tensors_hooks`. `compile` keeps less: what is cheap is computed again, and not followed here.
"""

from __future__ import annotations

from plinth.model.parameters import Model, Norm, architecture, repeats
from plinth.training.parameters.parallel import Parallel


def kept(
    model: Model, parallel: Parallel, *, micro_batch: int, sequence_tokens: int, width: int, gpu: bool = True
) -> int:
    """Bytes after the forward pass of one micro batch, up to the last norm, on the first stage.

    Args:
        micro_batch: sequences.
        width: bytes of an element.
        gpu: norms are fused, and documents need no dense mask unless the recipe asks for `sdpa`.
    """
    tokens = micro_batch * sequence_tokens // parallel.sequence
    layers = -(-model.layers // parallel.pipeline)
    recomputed = recomputed_blocks(model, parallel)
    values = (layers - recomputed) * block(model, parallel, width, gpu) + recomputed * model.dim * width
    if parallel.pipeline == 1:
        values += _norm(Norm(model.dim), 1, width, gpu) + model.dim * width  # the last norm, and what the loss is of
    shared = 2 * model.head_width * width * sequence_tokens // parallel.sequence  # cosine and sine
    if model.document_mask and (not gpu or parallel.attention == "sdpa"):
        shared += micro_batch * sequence_tokens**2 * width
    return tokens * values + shared


def recomputed_blocks(model: Model, parallel: Parallel) -> int:
    """Blocks of a stage whose activations are computed again."""
    every = parallel.activation_checkpointing
    return -(-model.layers // parallel.pipeline) // every if every else 0


def block(model: Model, parallel: Parallel, width: int, gpu: bool) -> int:
    """Bytes that one block keeps of a token."""
    tensor, head = parallel.tensor, model.head_width
    heads, kv_heads = model.heads // tensor, model.kv_heads // tensor
    divided = parallel.sequence > 1
    times = repeats(heads, kv_heads, parallel.sequence) if divided else 1
    norms = sum(_norm(norm, tensor, width, gpu) for norm in architecture(model.architecture).norms(model))
    attention = ((3 if divided else 2) * heads + 2 * kv_heads * times) * head * width + 4 * heads
    return 2 * model.dim * width + norms + attention + 4 * (model.ffn_dim // tensor) * width


def _norm(norm: Norm, tensor: int, width: int, gpu: bool) -> int:
    """Bytes of one norm: its input and statistics; unfused, its input and what it is normalised to, in FP32."""
    ranks = tensor if norm.divided else 1
    statistics = 4 * (norm.statistics if norm.over_ranks else norm.statistics // ranks)
    fused = gpu and not (norm.over_ranks and tensor > 1)
    return (width if fused else 8) * norm.width // ranks + statistics
