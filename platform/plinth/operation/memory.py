"""Bytes per device, for a parallel layout of a model.

    P  parameters of a rank    R  ranks that ZeRO divides over: data x sequence    t, s, p  tensor, sequence, pipeline

**States** (Rajbhandari et al. 2020, ZeRO, section 3): Adam has two moments in FP32, Muon has one for its matrices; a
weight average (`ema_decay`) is as large as a moment. ZeRO has an FP32 master copy in any precision; without ZeRO, FP32
parameters are their own master. Optimizers from other packages count as Adam. ZeRO-1 divides these states by R. ZeRO-3
also divides the parameters, except parameters of at most 100,000 elements (norms).

Gradients are accumulated in FP32, with four bytes per element in any precision. Without ZeRO, each rank stores all
gradients; with ZeRO, each rank stores its part. ZeRO-1 also stores all gradients at first, unless each gradient is
reduced at once (overlapped, in the only micro batch of a step). In a test, the predicted sum agrees to 2% with all
tensors that DeepSpeed allocates in a step.

**A private step** (`TrainingHook.one_by_one`) has two phases; the larger counts. The first phase clips one sequence at
a time. It needs the sum of clipped gradients in FP32, the gradient of one sequence in the dtype of the parameters (FP32
without ZeRO), and activations. The second phase is the backward pass over the sum. Each part of the sum is freed when
its gradient is computed, so both together are as large as the sum. ZeRO's part of the gradients is added; there are no
activations.

**Activations**: see the comment above `kept`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from plinth.model import architectures as counts
from plinth.model.architectures import architecture
from plinth.model.parameters import Model, Norm, repeats
from plinth.records import Frozen
from plinth.training.parallel.topology import communication_dtype, overlaps
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel

Precision = Literal["fp32", "bf16", "fp16"]

#: Logits in the loss at once, unless the vocabulary is divided (`plinth.model.loss.CHUNK_ELEMENTS`).
LOGITS_AT_ONCE = 2**27

#: DeepSpeed's ZeRO-3 defaults: elements gathered, or updated, at once; elements prefetched into one tensor; maximum
#: elements of an undivided parameter.
LIVE_ELEMENTS, PREFETCHED_ELEMENTS, PERSISTENT_ELEMENTS = 10**9, 5 * 10**7, 10**5

#: Defaults of the count.
ADAMW = Optimizer()

#: Bytes per element of the matrix that Muon updates: momentum and look-ahead in FP32, and in BF16 the input and buffers
#: of the orthogonalization.
MUON_BYTES = 10


#: Copies of a rank's state in host memory, if it is copied for recoveries: its own block, and in the process that
#: stores copies two whole ones and one that arrives; with several nodes also those of a rank of the previous node.
COPIES, COPIES_OF_NODES = 4, 7


class Memory(Frozen):
    """Memory of one rank in bytes; `host` is in the machine's memory, all other fields are on the device."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    buffers: int
    host: int

    @property
    def total(self) -> int:
        """Bytes on the device."""
        states = self.parameters + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.buffers


class States(NamedTuple):
    """Bytes of parameters, gradients and optimizer state."""

    parameters: int
    gradients: int
    optimizer: int


def states(
    parameters: int,
    *,
    ranks: int,
    zero_stage: int,
    precision: Precision,
    at_once: bool = False,
    whole: int = 0,
    optimizer: Optimizer = ADAMW,
    matrices: int = 0,
    divided: int | None = None,
) -> States:
    """Return the bytes of parameters, gradients and optimizer state on one of `ranks` ranks; ZeRO divides them over
    these ranks.

    Args:
        parameters: parameters of the rank's part of the model; `matrices` of them are in the blocks.
        at_once: True if a gradient is reduced as soon as it is computed, in the only micro batch of a step.
        divided: parameters that the ranks divide; more than `parameters` if they divide experts first.
        whole: parameters that ZeRO-3 does not divide between steps.
    """
    divided = parameters if divided is None else divided
    width, share = _width(precision), -(-divided // ranks)
    masters = 0 if precision == "fp32" and zero_stage == 0 else parameters
    kept = masters + 2 * parameters - (matrices if is_muon(optimizer) else 0)
    kept += 0 if optimizer.ema_decay is None else parameters
    return States(
        parameters=(share + whole if zero_stage == 3 else parameters) * width,
        gradients=4 * (share if zero_stage > 1 or at_once else parameters + (share if zero_stage else 0)),
        optimizer=4 * (-(-kept * divided // (ranks * parameters)) if zero_stage else kept),
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
    gpu: bool = True,
    optimizer: Optimizer = ADAMW,
    private: bool = False,
    copies: int = 0,
) -> Memory:
    """Return the peak memory of the rank that needs the most, without fragmentation and the runtime's own memory.

    Args:
        model, parallel, optimizer: sections of the recipe.
        micro_batch: sequences per forward pass.
        accumulation: micro batches per step on one data rank.
        ranks: ranks of the whole run.
        precision: resolved precision.
        gpu: False if gradients are reduced after the backward pass, as on CPUs.
        private: True if the gradient of each sequence is computed and clipped separately, with one reduction per step.
        copies: copies of the state in host memory: 0, `COPIES` or `COPIES_OF_NODES`.
    """
    if private:
        micro_batch = accumulation = 1
    width, stage = _width(precision), parallel.zero_stage
    own = parameters_of_rank(model, vocab_size, parallel)
    replicas = max(1, ranks // (parallel.tensor * parallel.pipeline))
    at_once = overlaps(parallel, gpu=gpu) and accumulation == 1
    whole, undivided = undivided_by_zero3(model, vocab_size), parallel.model_copy(update={"expert": 1})
    matrices = matrices_of_rank(model, vocab_size, parallel)
    held = states(
        own, ranks=replicas, zero_stage=stage, precision=precision, at_once=at_once, whole=whole, optimizer=optimizer,
        matrices=matrices, divided=parameters_of_rank(model, vocab_size, undivided),
    )  # fmt: skip
    tokens = micro_batch * sequence_tokens // parallel.sequence
    host, parameters, gradients, kept = 0, held.parameters, held.gradients, held.optimizer
    if parallel.offload != "none":
        share = -(-own // replicas)  # ZeRO-3 accumulates gradients on the host, the others on the device
        host, kept = kept + share * (8 if stage == 3 else 4 + width), 0
        gradients = 0 if stage == 3 else gradients
    if parallel.offload == "parameters":
        host, parameters = host + parameters, 0
    state = held.optimizer + (held.parameters if precision == "fp32" and stage == 0 else 0)
    used = Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=kept,
        activations=_activations(model, parallel, micro_batch, sequence_tokens, accumulation, width, gpu),
        logits=_logits(vocab_size, model.dim, parallel, tokens, width),
        buffers=_buffers(model, vocab_size, parallel, own, replicas, precision, accumulation, gpu, optimizer),
        host=host + copies * state,
    )
    if not private:
        return used
    largest, share = (
        4 * max(vocab_size * model.dim, largest_matrix(model, parallel)),
        -(-own // replicas) if stage else 0,
    )
    clipping = {"gradients": (4 + (width if stage else 4)) * own, "buffers": 2 * largest}
    moving = used.buffers - (largest if at_once else 0)  # received gradients replace their part of the sum
    backward = {"gradients": 4 * (own + share), "activations": 0, "logits": 0, "buffers": moving}
    return max((used.model_copy(update=phase) for phase in (clipping, backward)), key=lambda one: one.total)


def parameters_of_rank(model: Model, vocab_size: int, parallel: Parallel) -> int:
    """Return the number of parameters on the largest tensor and pipeline rank: on the first stage, or on the last
    stage of an untied model."""
    whole = counts.parameters(model, vocab_size)
    layers = -(-model.layers // parallel.pipeline)
    matrices = matrices_of_rank(model, vocab_size, parallel) * parallel.tensor
    ends = whole.embedding + whole.output if parallel.pipeline == 1 else max(whole.embedding, whole.output)
    return -(-(matrices + ends) // parallel.tensor) + whole.norms * layers // model.layers


def matrices_of_rank(model: Model, vocab_size: int, parallel: Parallel) -> int:
    """Return the number of parameters in the blocks' matrices on the largest rank."""
    whole, layers = counts.parameters(model, vocab_size), -(-model.layers // parallel.pipeline)
    others = experts_of(model) - experts_of(model) // parallel.expert
    return -(-((whole.attention + whole.feed_forward - others) * layers // model.layers) // parallel.tensor)


def experts_of(model: Model) -> int:
    """Return the number of parameters in all experts that tokens are sent to."""
    experts = model.experts
    return 3 * model.dim * experts.ffn_dim * experts.count * experts.sparse_layers(model.layers) if experts else 0


def largest_matrix(model: Model, parallel: Parallel) -> int:
    """Return the number of elements of the largest parameter of a block on one rank. All experts are one parameter."""
    experts = model.experts
    stacked = experts.count * experts.ffn_dim // parallel.expert if experts else 0
    return max(model.ffn_dim, stacked) * model.dim


def is_muon(optimizer: Optimizer) -> bool:
    """Return True if the optimizer is Muon, which stores only a momentum for the blocks' matrices."""
    return optimizer.kind == "muon"


def _activations(
    model: Model, parallel: Parallel, micro_batch: int, sequence_tokens: int, accumulation: int, width: int, gpu: bool
) -> int:
    """Return the bytes of activations on the first stage at the start of its backward pass, including the block that is
    being recomputed."""
    saved = kept(model, parallel, micro_batch=micro_batch, sequence_tokens=sequence_tokens, width=width, gpu=gpu)
    again = block(model, parallel, width, gpu) if recomputed_blocks(model, parallel) else 0
    in_flight = min(parallel.pipeline, accumulation)
    return saved * in_flight + micro_batch * sequence_tokens // parallel.sequence * again


def _logits(vocab_size: int, dim: int, parallel: Parallel, tokens: int, width: int) -> int:
    """Return the bytes of logits, of their FP32 copy for the loss, and of the gradient.

    If the loss is computed in chunks, the forward pass also computes the gradients of the output matrix (summed in
    FP32) and of its input.
    """
    elements, gradients = tokens * -(-vocab_size // parallel.tensor), 0
    if parallel.tensor == 1 and elements > max(LOGITS_AT_ONCE, vocab_size):
        elements = max(LOGITS_AT_ONCE, vocab_size)
        gradients = vocab_size * dim * (4 + width) + tokens * dim * width
    return elements * (width + 2 * 4) + gradients


def _buffers(
    model: Model,
    vocab_size: int,
    parallel: Parallel,
    own: int,
    replicas: int,
    precision: Precision,
    accumulation: int,
    gpu: bool,
    optimizer: Optimizer,
) -> int:
    """Return the peak bytes of temporary buffers, which is the largest of three kinds.

    The three kinds are: gradients being sent, with the parameters that ZeRO-3 gathers; the second copy of this rank's
    part that DeepSpeed makes for the update in FP32 and in ZeRO-3; and Muon's computation of one matrix.
    """
    stage, share, overlapped = parallel.zero_stage, -(-own // replicas), overlaps(parallel, gpu=gpu)
    at_once = overlapped and accumulation == 1
    largest = max(vocab_size * model.dim, largest_matrix(model, parallel)) // parallel.tensor
    moving = _moving(parallel, min(parallel.reduce_bucket_elements, own), largest, precision, overlapped)
    if stage == 1 and at_once:
        moving += 4 * largest  # in FP32 when received
    if stage == 2 and precision == "fp32":  # undivided parameters, before and after the update
        moving += 4 * largest + (4 * (share + largest) if accumulation > 1 else 0)
    if stage == 3:
        width, live = _width(precision), min(own, LIVE_ELEMENTS)
        moving = max(min(own, PREFETCHED_ELEMENTS) * width, moving) + live * width
        moving += min(parallel.reduce_bucket_elements, own) * width
    copied = stage == 3 or (precision == "fp32" and (stage == 2 or (stage == 1 and at_once)))
    computed = MUON_BYTES * max(model.ffn_dim, model.heads * model.head_width) * model.dim if is_muon(optimizer) else 0
    freed = 4 * own if stage == 1 and not at_once else 0  # whole gradients, before the update
    return max(moving, 4 * min(share, LIVE_ELEMENTS) if copied else 0, computed - freed)


def _moving(parallel: Parallel, bucket: int, largest: int, precision: Precision, overlapped: bool) -> int:
    """Return the bytes of gradients being reduced.

    DeepSpeed gathers a bucket (two alternately if it overlaps), flattens it, and converts it if it is sent in another
    dtype. A gradient larger than a bucket is sent alone, and stays in memory while the backward pass continues.
    """
    stage, width, sent = parallel.zero_stage, _width(precision), _width(communication_dtype(parallel))
    if stage == 0:
        return (bucket + largest) * (4 if sent == 4 else 4 + sent)
    staged = 4 if stage == 1 else width
    converted = 0 if sent == staged else max(bucket, largest) * sent
    if stage == 1 and not overlapped:
        return bucket * staged + converted
    arriving = largest * width * (1 if stage == 1 or precision == "fp32" else 2)
    return bucket * staged * (3 if overlapped else 2) + converted + arriving


def undivided_by_zero3(model: Model, vocab_size: int) -> int:
    """Return the number of elements in parameters that are too small for ZeRO-3 to divide between steps."""
    head, dim, experts = model.head_width, model.dim, model.experts
    sparse = experts.sparse_layers(model.layers) if experts else 0
    attention = [model.heads * head * dim] * 2 + [model.kv_heads * head * dim] * 2
    matrices = model.layers * attention + (model.layers - sparse) * [model.ffn_dim * dim] * 3
    if experts:
        shared = [experts.shared * experts.ffn_dim * dim] * 3
        matrices += sparse * [experts.count * dim, *[experts.count * experts.ffn_dim * dim] * 3, *shared]
    ends = [vocab_size * dim] * (1 if model.tied_embeddings else 2)
    small = sum(n for n in matrices if n <= PERSISTENT_ELEMENTS)
    return small + sum(n for n in ends if n <= PERSISTENT_ELEMENTS) + counts.parameters(model, vocab_size).norms


def _width(dtype: str) -> int:
    return 4 if dtype == "fp32" else 2


# Bytes that autograd keeps for the backward pass, tensor by tensor as the decoder saves them.
#
#     D  model width    H  query heads    K  key/value heads    E  head width    F  feed-forward
#     w  bytes of an element
#     t, s  ranks that share a matrix, a sequence
#
# Bytes that a block keeps per token, without attention scores, which fused kernels recompute:
#
#     2 D w                          inputs of the projections: after the first norm, after the second (OLMo 2: before)
#     norms                          input and a statistic each; on CPUs, where PyTorch has no fused kernel: two in FP32
#     (2 H E w + 2 K E w + 4 H) / t  queries, attention's output, keys, values, the scores' normalizer; over sequence
#                                    ranks the output twice (as made, as received) and keys, values as often as repeated
#     4 F w / t                      gate, its SiLU, up, their product
#     k (2 D + 4 F / t) w + 8 N      with experts: also the rows sent to each, its outputs, and the router's scores
#
# A recomputed block keeps only its input (Chen et al., arXiv:1604.06174), and one block at a time has all of its
# tensors. A pipeline's first stage keeps the activations of min(p, micro batches) micro batches (Narayanan et al.,
# arXiv:2104.04473, section 2.2). A test compares with `saved_tensors_hooks`. `compile` keeps less by recomputing cheap
# values, which is not modeled here.


def kept(
    model: Model, parallel: Parallel, *, micro_batch: int, sequence_tokens: int, width: int, gpu: bool = True
) -> int:
    """Return the bytes kept after the forward pass of one micro batch, up to the last norm, on the first stage.

    Args:
        micro_batch: sequences per micro batch.
        width: bytes per element.
        gpu: True if norms are fused and documents and windows need no dense mask, except with `sdpa` in the recipe.
    """
    tokens = micro_batch * sequence_tokens // parallel.sequence
    layers = -(-model.layers // parallel.pipeline)
    recomputed = recomputed_blocks(model, parallel)
    scored = 0 if gpu and parallel.attention != "sdpa" else _scores(model, parallel, sequence_tokens, width)
    values = (layers - recomputed) * (block(model, parallel, width, gpu) + scored) + recomputed * model.dim * width
    if parallel.pipeline == 1:
        values += _norm(Norm(model.dim), 1, width, gpu) + model.dim * width  # the last norm, and the input of the loss
    kinds = set(model.windows)
    shared = len(kinds) * 2 * model.rotary_width * width * sequence_tokens // parallel.sequence  # cosine and sine
    if not gpu or parallel.attention == "sdpa":
        masks = len(kinds) * micro_batch if model.document_mask else len(kinds - {None})
        shared += masks * sequence_tokens**2 * width
    return tokens * values + shared


def _scores(model: Model, parallel: Parallel, sequence_tokens: int, width: int) -> int:
    """Return the bytes that one block keeps per token in addition, with attention sinks and without FlexAttention.

    Scores and probabilities are in FP32, and the probabilities also in the model's precision. Over sequence ranks, the
    attention's output is kept as received only.
    """
    if not model.sinks:
        return 0
    output = model.head_width * width if parallel.sequence > 1 else 0
    return model.heads // parallel.tensor * (sequence_tokens * (8 if width == 4 else 8 + width) - output)


def recomputed_blocks(model: Model, parallel: Parallel) -> int:
    """Return the number of a stage's blocks whose activations are recomputed."""
    every = parallel.activation_checkpointing
    return -(-model.layers // parallel.pipeline) // every if every else 0


def block(model: Model, parallel: Parallel, width: int, gpu: bool) -> int:
    """Return the bytes that one block keeps per token."""
    tensor, head = parallel.tensor, model.head_width
    heads, kv_heads = model.heads // tensor, model.kv_heads // tensor
    divided = parallel.sequence > 1
    times = repeats(heads, kv_heads, parallel.sequence) if divided else 1
    norms = sum(_norm(norm, tensor, width, gpu) for norm in architecture(model.architecture).norms(model))
    attention = ((3 if divided else 2) * heads + 2 * kv_heads * times) * head * width + 4 * heads
    return 2 * model.dim * width + norms + attention + _feed_forward(model, tensor, width)


def _feed_forward(model: Model, tensor: int, width: int) -> int:
    """Return the mean bytes over all layers that a feed-forward keeps per token, with an even load of experts."""
    dense, experts = 4 * (model.ffn_dim // tensor) * width, model.experts
    if experts is None:
        return dense
    routed = experts.active * (2 * model.dim + 4 * experts.ffn_dim // tensor) * width
    shared = 4 * (experts.shared * experts.ffn_dim // tensor) * width
    router = 4 * experts.count * (1 + (experts.z_loss_coefficient > 0)) + experts.active * (16 + width)
    sparse = experts.sparse_layers(model.layers)
    return ((model.layers - sparse) * dense + sparse * (routed + shared + router)) // model.layers


def _norm(norm: Norm, tensor: int, width: int, gpu: bool) -> int:
    """Return the bytes kept by one norm. A fused norm keeps its input and statistics; otherwise the input and the
    normalized input are kept in FP32."""
    ranks = tensor if norm.divided else 1
    statistics = 4 * (norm.statistics if norm.over_ranks else norm.statistics // ranks)
    fused = gpu and not (norm.over_ranks and tensor > 1)
    return (width if fused else 8) * norm.width // ranks + statistics
