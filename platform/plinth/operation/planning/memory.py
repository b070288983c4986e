"""Bytes per device by the way a model is divided.

    P  parameters of a rank    R  ranks that ZeRO divides over: data x sequence    t, s, p  tensor, sequence, pipeline

**States** (Rajbhandari et al. 2020, "ZeRO", section 3): Adam keeps two moments in FP32. BF16 and FP16 training add
an FP32 master copy, and hold parameters and gradients in two bytes; FP32 training holds both in four and needs no
copy. Either way sixteen bytes per parameter, of which ZeRO-1 divides the optimizer's by R, ZeRO-2 the gradients'
too, ZeRO-3 all. As our engine accumulates gradients in FP32, they take four bytes in any precision.

**Activations** (Korthikanti et al. 2022, arXiv:2205.05198, section 4, counted for this architecture and without
the attention scores, which flash attention computes again): what tensor parallelism does not divide are the
residual stream and the norms. A pipeline's first stage holds those of min(p, micro batches) micro batches
(Narayanan et al. 2021, arXiv:2104.04473, section 2.2). A recomputed block keeps its input (section 5).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from plinth.launch import devices
from plinth.model import flops as counts
from plinth.model.parameters import Model
from plinth.records import Frozen
from plinth.training.parallel.parameters import Parallel

Precision = Literal["fp32", "bf16", "fp16"]

#: Logits that the loss holds at once, unless the vocabulary is divided (`plinth.model.loss.CHUNK_ELEMENTS`).
LOGITS_AT_ONCE = 2**27

#: Bytes of devices by their data sheets.
DEVICES: dict[str, int] = {name: one.memory_bytes for name, one in devices.DEVICES.items()}

#: Share of a device that is planned with.
USABLE = devices.USABLE


class Memory(Frozen):
    """Bytes of one rank; `host` is in the machine's memory, the others are on the device."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    buffers: int
    host: int

    @property
    def total(self) -> int:
        """On the device."""
        states = self.parameters + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.buffers


class States(NamedTuple):
    """Bytes of parameters, gradients and optimizer."""

    parameters: int
    gradients: int
    optimizer: int


def states(parameters: int, *, ranks: int, zero_stage: int, precision: Precision, gradient_bytes: int) -> States:
    """Bytes under ZeRO on one of `ranks` ranks that hold the same `parameters`."""
    width = _width(precision)
    return States(
        parameters=_share(parameters * width, ranks, zero_stage >= 3),
        gradients=_share(parameters * gradient_bytes, ranks, zero_stage >= 2),
        optimizer=_share(parameters * (8 if precision == "fp32" else 12), ranks, zero_stage >= 1),
    )


def per_device(
    model: Model,
    parallel: Parallel,
    *,
    vocab_size: int,
    sequence_tokens: int,
    micro_batch: int,
    accumulation: int,
    ranks: int,
    precision: Precision,
) -> Memory:
    """Peak bytes of the rank that needs most, without fragmentation and the runtime's own.

    Args:
        model, parallel: of the recipe.
        micro_batch: sequences of a forward pass.
        accumulation: micro batches of a step on one data rank.
        ranks: of the whole run.
        precision: resolved.
    """
    width, stage = _width(precision), parallel.zero_stage
    own = parameters_of_rank(model, vocab_size, parallel)
    replicas = max(1, ranks // (parallel.tensor * parallel.pipeline))
    held = states(own, ranks=replicas, zero_stage=stage, precision=precision, gradient_bytes=4)
    tokens = micro_batch * sequence_tokens // parallel.sequence
    host, parameters, gradients, optimizer = 0, held.parameters, held.gradients, held.optimizer
    if parallel.offload != "none":
        host, optimizer = optimizer + gradients, 0
        gradients = 0
    if parallel.offload == "parameters":
        host, parameters = host + parameters, 0
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations=_activations(model, parallel, tokens, accumulation) * width,
        logits=_logits(vocab_size, parallel, tokens, width),
        buffers=_buffers(model, vocab_size, parallel, own, replicas, width),
        host=host,
    )


def parameters_of_rank(model: Model, vocab_size: int, parallel: Parallel) -> int:
    """Parameters of the tensor and pipeline rank that holds most: the first stage, or the last of an untied model."""
    whole = counts.parameters(model, vocab_size)
    layers = -(-model.layers // parallel.pipeline)
    matrices = (whole.attention + whole.feed_forward) * layers // model.layers
    ends = whole.embedding + whole.output if parallel.pipeline == 1 else max(whole.embedding, whole.output)
    return -(-(matrices + ends) // parallel.tensor) + whole.norms * layers // model.layers


def _activations(model: Model, parallel: Parallel, tokens: int, accumulation: int) -> int:
    """Values kept for the backward pass by the stage that keeps most."""
    layers = -(-model.layers // parallel.pipeline)
    every = parallel.activation_checkpointing
    recomputed = layers // every if every else 0
    block = _block_values(model, parallel.tensor)
    kept = (layers - recomputed) * block + recomputed * model.dim
    in_flight = min(parallel.pipeline, accumulation)
    return tokens * (kept * in_flight + (block if recomputed else 0))  # and one block while it is computed again


def _block_values(model: Model, tensor: int) -> int:
    """Values one block keeps per token.

    Two norms' inputs and outputs; over tensor ranks the queries, keys and values, the attention's output, and the
    three of SwiGLU.
    """
    head = model.head_width
    divided = 2 * model.heads * head + 2 * model.kv_heads * head + 3 * model.ffn_dim
    return 4 * model.dim + -(-divided // tensor)


def _logits(vocab_size: int, parallel: Parallel, tokens: int, width: int) -> int:
    """Logits, their FP32 copy for the loss, and its gradient."""
    elements = tokens * -(-vocab_size // parallel.tensor)
    if parallel.tensor == 1:
        elements = min(elements, max(LOGITS_AT_ONCE, vocab_size))
    return elements * (width + 2 * 4)


def _buffers(model: Model, vocab_size: int, parallel: Parallel, own: int, replicas: int, width: int) -> int:
    """Gradients on their way, and what ZeRO-3 has gathered: embeddings for the whole pass, and two blocks."""
    if replicas == 1 or parallel.zero_stage == 0:
        return 0
    buckets = min(parallel.reduce_bucket_elements, own) * 4 + min(parallel.gather_bucket_elements, own) * width
    if parallel.zero_stage < 3:
        return buckets
    whole = counts.parameters(model, vocab_size)
    block = (whole.attention + whole.feed_forward) // model.layers
    return buckets + (whole.embedding + whole.output + 2 * block) * width


def _width(precision: Precision) -> int:
    return 4 if precision == "fp32" else 2


def _share(size: int, ranks: int, divided: bool) -> int:
    return -(-size // ranks) if divided else size
