"""Division of one model over devices, and the DeepSpeed settings of a recipe."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from plinth.errors import TrainingError
from plinth.model.parameters import AttentionPath, Model
from plinth.records import Frozen, internal

# Division of one model over devices. Not part of identity: placement affects speed and memory, not the weights.
#
#     ranks = data x pipeline x sequence x tensor
#
# `tensor` divides every matrix, `pipeline` the layers, `sequence` the tokens of a sequence (Ulysses); the remaining
# ranks are data parallel: they see different sequences.

#: Key of the block whose value is refused, with what was found and what is expected.
Refusal = tuple[str, str]


#: Elements in a communication bucket: enough for a network's full speed, few compared with a model.
BUCKET = 2**25


class LossScale(Frozen):
    """Loss scale for FP16. Gradients are scaled up so that small values do not underflow (Micikevicius et al.,
    arXiv:1710.03740)."""

    static: float = Field(0.0, ge=0, description="Fixed loss scale, or 0 for a dynamic loss scale.")
    initial_power: int = Field(16, ge=0, le=32, description="Exponent N of the initial loss scale 2^N.")
    window: int = Field(
        1000, ge=1, description="Number of steps without overflow after which the loss scale is doubled."
    )
    hysteresis: int = Field(2, ge=1, description="Number of overflows after which the loss scale is halved.")
    minimum: int = Field(1, ge=1, description="Minimum factor.")


class Parallel(Frozen):
    """Division of the model: ranks = data x tensor x pipeline x sequence. The data degree follows from the other
    three."""

    zero_stage: Literal[0, 1, 2, 3] = Field(
        1, description="DeepSpeed ZeRO stage: 1 divides optimizer state, 2 also gradients, 3 also parameters."
    )
    tensor: int = Field(1, ge=1, description="Degree of tensor parallelism (Megatron-LM, arXiv:1909.08053).")
    pipeline: int = Field(1, ge=1, description="Number of pipeline stages.")
    sequence: int = Field(1, ge=1, description="Degree of sequence parallelism (DeepSpeed-Ulysses, arXiv:2309.14509).")
    expert: int = Field(
        1,
        ge=1,
        exclude_if=lambda degree: degree == 1,
        description="Number of data-parallel ranks that divide the experts of each sparse layer and exchange tokens.",
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        "none",
        description="State to keep in host memory: `none`, `optimizer` (optimizer state), or `parameters` (optimizer "
        "state and parameters; needs ZeRO-3).",
    )
    activation_checkpointing: int = Field(
        0, ge=0, description="Blocks to recompute in the backward pass: 0 for none, 1 for all, n for every n-th block."
    )
    compile: bool = Field(False, description="Compile each block with `torch.compile`.")
    attention: AttentionPath = Field(
        "auto",
        description="Attention kernel: `sdpa`, `flex` (block masks), `flash` (no document masks), or `auto`. `auto` is "
        "`flex` on GPUs if documents end within rows, otherwise `sdpa`.",
        exclude_if=lambda path: path == "auto",
    )
    loss_scale: LossScale = internal(LossScale(), description="Loss scale for FP16.")
    communication_dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="Dtype of gradients in communication. `auto` is fp32, the dtype in which gradients are "
        "accumulated. The run's own precision halves the bytes, but rounds the sums over ranks.",
    )
    overlap_communication: bool | None = internal(
        None, description="Reduce gradients during the backward pass; by default on GPUs if the ZeRO stage supports it."
    )
    reduce_bucket_elements: int = internal(BUCKET, ge=1, description="Number of gradient elements reduced in one call.")
    gather_bucket_elements: int = internal(
        BUCKET, ge=1, description="Number of parameter elements gathered at once after an update (ZeRO-1 and ZeRO-2)."
    )

    @property
    def model_ranks(self) -> int:
        """Number of ranks that together have one replica of the model."""
        return self.tensor * self.pipeline * self.sequence

    def data_ranks(self, ranks: int) -> int:
        """Return the number of ranks that see different sequences."""
        return ranks // self.model_ranks


def problems(
    parallel: Parallel, model: Model, *, ranks: int, sequence_tokens: int, precision: str
) -> Iterator[Refusal]:
    """Yield the reasons why a `training.parallel` block cannot run, by key. A valid block yields nothing."""
    yield from _degrees(parallel, model, ranks, sequence_tokens)
    yield from _experts(parallel, model, ranks, precision)
    yield from _zero(parallel, precision)
    yield from _offload(parallel)
    if parallel.activation_checkpointing > model.layers:
        yield (
            "activation_checkpointing",
            f"activation_checkpointing {parallel.activation_checkpointing} selects none of the {model.layers} layers; "
            f"expected at most {model.layers}, or 0 to keep all activations",
        )
    if parallel.compile and parallel.zero_stage == 3:
        yield (
            "compile",
            "ZeRO-3 gathers parameters within the blocks, so the compiler falls back to eager PyTorch after "
            "eight attempts; expected false, or zero_stage 0, 1 or 2",
        )
    if parallel.attention == "flash" and model.window:
        yield (
            "attention",
            "PyTorch's FlashAttention kernel accepts no mask, and a sliding window needs one; expected auto, flex or "
            "sdpa, or no model.window",
        )
    if parallel.attention == "flash" and model.sinks:
        yield (
            "attention",
            "PyTorch's FlashAttention kernel does not return the softmax's denominator with a gradient, and attention "
            "sinks need it; expected auto, flex or sdpa, or model.sinks: false",
        )
    if parallel.attention == "flash" and model.document_mask:
        yield (
            "attention",
            "flash does not support the mask that model.document_mask needs; expected auto or flex, or "
            "model.document_mask: false",
        )
    yield from _communication(parallel, precision)


def not_with(parallel: Parallel, *, float8: bool = False, undivided: Collection[str] = ()) -> list[str]:
    """Return the keys of a block whose values conflict with FP8 or with a training hook.

    Args:
        float8: True for FP8. Its scales cover whole matrices, and its layers keep their weight for the backward pass.
        undivided: keys that must have their minimum because of a training hook (`TrainingHook.undivided`).
    """
    refused = {
        "tensor": parallel.tensor > 1 and (float8 or "tensor" in undivided),
        "sequence": parallel.sequence > 1 and (float8 or "sequence" in undivided),
        "pipeline": parallel.pipeline > 1 and "pipeline" in undivided,
        "expert": parallel.expert > 1 and "tensor" in undivided,
        "zero_stage": ("zero_stage" in undivided and parallel.zero_stage > 1) or (float8 and parallel.zero_stage == 3),
        "offload": "offload" in undivided and parallel.offload != "none",
    }
    return [key for key, holds in refused.items() if holds]


def _communication(parallel: Parallel, precision: str) -> Iterator[Refusal]:
    """Yield the reasons why communication settings are rejected: they would round gradients, or would have no
    effect."""
    if precision != "auto" and parallel.communication_dtype not in ("auto", "fp32", precision):
        yield (
            "communication_dtype",
            f"{parallel.communication_dtype} would round the gradients of a {precision.upper()} run; expected auto or "
            f"fp32, or training.precision: {parallel.communication_dtype}",
        )
    stage = parallel.zero_stage
    if parallel.overlap_communication and (stage == 0 or parallel.pipeline > 1):
        against = "pipeline" if parallel.pipeline > 1 else "zero_stage 0"
        yield (
            "overlap_communication",
            f"with {against}, gradients are reduced after the last backward pass, so this setting would have no "
            "effect; expected false, or zero_stage 1, 2 or 3 without a pipeline",
        )
    if parallel.gather_bucket_elements != BUCKET and stage not in (1, 2):
        yield (
            "gather_bucket_elements",
            f"ZeRO-{stage} gathers no parameters in buckets after an update, so this setting would have no effect; "
            f"expected {BUCKET}, or zero_stage 1 or 2",
        )


def _degrees(parallel: Parallel, model: Model, ranks: int, sequence_tokens: int) -> Iterator[Refusal]:
    tensor, sequence, pipeline = parallel.tensor, parallel.sequence, parallel.pipeline
    if ranks % parallel.model_ranks:
        yield (
            "tensor",
            f"tensor {tensor} x pipeline {pipeline} x sequence {sequence} = {parallel.model_ranks} does not divide "
            f"launch.ranks = {ranks}; lower a degree or launch a multiple of {parallel.model_ranks}",
        )
    sizes = {"heads": model.heads, "kv_heads": model.kv_heads, "ffn_dim": model.ffn_dim}
    if model.experts:
        sizes |= {"experts.count": model.experts.count, "experts.ffn_dim": model.experts.ffn_dim}
    for name, size in sizes.items():
        if size % tensor:
            yield "tensor", f"{tensor} does not divide model.{name} = {size}; expected a divisor"
    if model.heads // tensor % sequence:
        yield (
            "sequence",
            f"{sequence} does not divide the {model.heads // tensor} heads of a tensor rank "
            f"(model.heads {model.heads} / tensor {tensor}); each rank attends with whole heads, so expected a divisor",
        )
    if sequence_tokens % sequence:
        yield "sequence", f"{sequence} does not divide mixture.sequence_tokens = {sequence_tokens}; expected a divisor"
    if pipeline > model.layers:
        yield "pipeline", f"{pipeline} stages for {model.layers} layers; expected at least one layer in each stage"


def _experts(parallel: Parallel, model: Model, ranks: int, precision: str) -> Iterator[Refusal]:
    """Yield the reasons why experts cannot be divided over data-parallel ranks."""
    degree = parallel.expert
    if degree == 1:
        return
    if model.experts is None or model.experts.count % degree:
        found = f"of {model.experts.count} experts" if model.experts else "without model.experts"
        yield "expert", f"{degree} ranks {found}; expected a divisor of model.experts.count"
    if parallel.data_ranks(ranks) % degree:
        yield "expert", f"{degree} does not divide the {parallel.data_ranks(ranks)} data-parallel ranks"
    conflicts = {
        "tensor > 1": (parallel.tensor > 1, "tensor ranks already divide the experts"),
        "zero_stage 3": (parallel.zero_stage == 3, "ZeRO-3 divides every parameter over all replicas"),
        "offload": (parallel.offload != "none", "DeepSpeed measures offloaded gradients without experts"),
        "FP16": (precision == "fp16", "DeepSpeed averages the gradient norms of experts over ranks"),
    }
    for name, (holds, reason) in conflicts.items():
        if holds:
            yield "expert", f"expert {degree} with {name}: {reason}; expected 1, or no {name}"


def _zero(parallel: Parallel, precision: str) -> Iterator[Refusal]:
    """Yield the reasons why DeepSpeed 0.19 rejects a ZeRO setting or would compute wrong results with it."""
    if parallel.zero_stage == 0 and precision == "fp16":
        yield (
            "zero_stage",
            "FP16 without ZeRO: DeepSpeed divides a gradient by the loss scale of the next step; expected zero_stage "
            "1, 2 or 3",
        )
    if parallel.pipeline > 1 and parallel.zero_stage > 1:
        yield (
            "zero_stage",
            f"ZeRO-{parallel.zero_stage} divides gradients while a pipeline still adds to them, so DeepSpeed rejects "
            "the setting; expected zero_stage 0 or 1 with pipeline > 1",
        )
    if parallel.tensor > 1 and parallel.zero_stage > 2:
        yield (
            "zero_stage",
            "ZeRO-3 divides parameters that tensor parallelism already divides; expected zero_stage 0, 1 or 2 with "
            "tensor > 1",
        )


def _offload(parallel: Parallel) -> Iterator[Refusal]:
    if parallel.offload == "none":
        return
    if parallel.offload == "optimizer":
        if parallel.zero_stage == 0:
            yield "offload", "offload of the optimizer state requires ZeRO; expected zero_stage 1, 2 or 3"
        return
    conflicts = {"tensor": parallel.tensor > 1, "pipeline": parallel.pipeline > 1, "compile": parallel.compile}
    against = " and ".join(name for name, given in conflicts.items() if given)
    if against:
        yield (
            "offload",
            f"offload of parameters requires ZeRO-3, which does not work with {against}; expected none or optimizer, "
            f"or no {against}",
        )
    elif parallel.zero_stage != 3:
        yield (
            "offload",
            f"offload of parameters requires ZeRO-3; found zero_stage {parallel.zero_stage}, expected 3, or "
            "offload: optimizer",
        )


# The recipe's block `training.deepspeed`: any DeepSpeed setting by its own name, except those that the engine owns.
#
# The engine owns a setting if another recipe key controls it, or if checkpoints, batches or the guard depend on its
# value. Such a setting is refused with an alternative. Names unknown to DeepSpeed are refused too, because DeepSpeed
# would ignore them silently. Names within `zero_optimization` are checked by DeepSpeed when a rank starts. A setting
# is part of a run's identity unless it has no effect on numbers (`HARMLESS`).
#
# Based on DeepSpeed 0.19.8: `runtime/config.py`, `runtime/constants.py`, `runtime/zero/config.py`.

#: A key of the block, and the reason why it is refused.
Refused = tuple[tuple[str, ...], str]

ZERO = "zero_optimization"

_PRECISION = "set `training.precision`; gradients are accumulated in FP32"
_CHECKPOINTS = "set `training.checkpoints`"
_MEAN = "remove it, because gradients are always the mean over the scored targets of the global batch"
_OFFLOAD = "set `training.parallel.offload`"
_BUCKETS = "remove it, because `plinth run plan` counts the engine's own buckets"

#: Settings that the engine owns, and what a recipe sets in their place.
OWNED: Mapping[str, str] = {
    "train_batch_size": "set `training.global_batch_sequences`",
    "train_micro_batch_size_per_gpu": "set `training.micro_batch_sequences`",
    "gradient_accumulation_steps": "set `training.global_batch_sequences` and `training.micro_batch_sequences`",
    "managed_gradient_accumulation": "set `training.global_batch_sequences` and `training.micro_batch_sequences`",
    "gradient_clipping": "set `training.optimizer.grad_clip`",
    "optimizer": "set `training.optimizer`",
    "scheduler": "set `training.optimizer.schedule`",
    "zero_allow_untested_optimizer": "set `training.optimizer.kind`",
    "zero_force_ds_cpu_optimizer": "set `training.optimizer.kind`",
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    "bfloat16": _PRECISION,
    "amp": _PRECISION,
    "torch_autocast": _PRECISION,
    "data_types": _PRECISION,
    "communication_data_type": "set `training.parallel`",
    "seq_parallel_communication_data_type": "set `training.parallel`",
    "prescale_gradients": _MEAN,
    "gradient_predivide_factor": _MEAN,
    "gradient_allreduce_op": _MEAN,
    "activation_checkpointing": "set `training.parallel.activation_checkpointing`",
    "compile": "set `training.parallel.compile`",
    "pipeline": "set `training.parallel.pipeline`",
    "tensor_parallel": "set `training.parallel.tensor`",
    "expert_parallel": "set `training.parallel`",
    "elasticity": "set `training.launch.ranks`, because a run can resume with any number of ranks",
    "checkpoint": _CHECKPOINTS,
    "datastates_ckpt": _CHECKPOINTS,
    "data_efficiency": "set `mixture`",
    "curriculum_learning": "set `mixture.phases`",
    "dataloader_drop_last": "set `mixture`",
    "autotuning": "remove it; `plinth run plan` compares divisions of the model",
    "timers": "set `training.telemetry`",
    f"{ZERO}.stage": "set `training.parallel.zero_stage`",
    f"{ZERO}.offload_optimizer": _OFFLOAD,
    f"{ZERO}.offload_param": _OFFLOAD,
    f"{ZERO}.cpu_offload": _OFFLOAD,
    f"{ZERO}.cpu_offload_param": _OFFLOAD,
    f"{ZERO}.cpu_offload_use_pin_memory": _OFFLOAD,
    f"{ZERO}.zenflow": _OFFLOAD,
    f"{ZERO}.overlap_comm": "set `training.parallel`",
    f"{ZERO}.reduce_bucket_size": _BUCKETS,
    f"{ZERO}.allgather_bucket_size": _BUCKETS,
    f"{ZERO}.compute_grad_norm": "remove it, because the guard reads the norm of every step",
    f"{ZERO}.round_robin_gradients": "remove it, because checkpoints find parameters by their order",
    f"{ZERO}.elastic_checkpoint": _CHECKPOINTS,
    f"{ZERO}.load_from_fp32_weights": _CHECKPOINTS,
    f"{ZERO}.save_muon_momentum_buffer_in_memory": "set `training.optimizer.kind`",
}

#: Settings that do not affect any number: logging, and prefetching in ZeRO-3.
HARMLESS = frozenset(
    {
        *("comet", "comms_logger", "csv_monitor", "disable_python_gc", "dump_state", "flops_profiler", "log_level"),
        *("memory_breakdown", "steps_per_print", "tensorboard", "wall_clock_breakdown", "wandb"),
        f"{ZERO}.log_trace_cache_warnings",
        f"{ZERO}.enable_sanity_checks",
        *(f"{ZERO}.{start}prefetch_bucket_size" for start in ("", "stage3_")),
        *(f"{ZERO}.{start}max_live_parameters" for start in ("", "stage3_")),
        *(f"{ZERO}.{start}max_reuse_distance" for start in ("", "stage3_")),
        *(f"{ZERO}.{start}param_persistence_threshold" for start in ("", "stage3_")),
    }
)

#: Other top-level names of DeepSpeed's configuration.
OTHERS = frozenset(
    {
        *("aio", "compression_training", "disable_allgather", "eigenvalue", "hybrid_engine", "progressive_layer_drop"),
        *("sparse_attention", "use_data_before_expert_parallelism", "vocabulary_size", "weight_quantization", ZERO),
    }
)


def problems_with_settings(block: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield the rejected settings of a `training.deepspeed` block, each with the reason."""
    known = {name for name in {*OWNED, *HARMLESS, *OTHERS} if "." not in name}
    for name in block:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield (name,), f"DeepSpeed has no such setting and would ignore it{hint}"
    for path in _paths(block):
        if ".".join(path) in OWNED:
            yield path, f"the engine controls this setting; {OWNED['.'.join(path)]}"


def with_settings(own: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's DeepSpeed configuration, extended by the settings of the block.

    Raises:
        TrainingError: the block has a rejected setting.
    """
    for path, reason in problems_with_settings(block):
        raise TrainingError(f"training.deepspeed.{'.'.join(path)} is refused", found=block[path[0]], expected=reason)
    merged = dict(own)
    for name, value in block.items():
        given = merged.get(name)
        merged[name] = {**given, **value} if isinstance(given, dict) and isinstance(value, Mapping) else value
    return merged


def identified_settings(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the block that can affect the run's numbers."""
    kept: dict[str, Any] = {}
    for name, value in block.items():
        if name in HARMLESS:
            continue
        inner = value
        if isinstance(value, Mapping):
            inner = {key: one for key, one in value.items() if f"{name}.{key}" not in HARMLESS}
        if inner != {}:
            kept[name] = inner
    return kept


def _paths(block: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting in the block and in its sections."""
    for name, value in block.items():
        yield (name,)
        yield from ((name, key) for key in value) if isinstance(value, Mapping) else ()
