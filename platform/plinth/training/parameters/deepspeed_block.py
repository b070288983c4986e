"""The recipe's block `training.deepspeed`: any setting of DeepSpeed, as its configuration names it, but those that the
engine owns.

A setting is owned where a key of the recipe has it, or where checkpoints, batches or the guard rest on its value; it is
refused with what to set instead. A name that DeepSpeed does not read is refused too: DeepSpeed would pass over it in
silence. Names within `zero_optimization` it checks by itself when a rank starts. A setting is part of a run's identity
unless it can change no number (`HARMLESS`).

Read in DeepSpeed 0.19.8: `runtime/config.py`, `runtime/constants.py`, `runtime/zero/config.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from plinth.errors import TrainingError

#: A key of the block, and the reason for which it is refused.
Refused = tuple[tuple[str, ...], str]

ZERO = "zero_optimization"

_PRECISION = "training.precision, under which gradients are accumulated in FP32"
_CHECKPOINTS = "training.checkpoints"
_MEAN = "nothing: gradients are the mean over the scored targets of the global batch"
_OFFLOAD = "training.parallel.offload"
_BUCKETS = "nothing: `plinth run plan` counts the engine's own buckets"

#: What the engine owns, and what has it in a recipe.
OWNED: Mapping[str, str] = {
    "train_batch_size": "training.global_batch_sequences",
    "train_micro_batch_size_per_gpu": "training.micro_batch_sequences",
    "gradient_accumulation_steps": "training.global_batch_sequences and training.micro_batch_sequences",
    "managed_gradient_accumulation": "training.global_batch_sequences and training.micro_batch_sequences",
    "gradient_clipping": "training.optimizer.grad_clip",
    "optimizer": "training.optimizer",
    "scheduler": "training.optimizer.schedule",
    "zero_allow_untested_optimizer": "training.optimizer.kind",
    "zero_force_ds_cpu_optimizer": "training.optimizer.kind",
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    "bfloat16": _PRECISION,
    "amp": _PRECISION,
    "torch_autocast": _PRECISION,
    "data_types": _PRECISION,
    "communication_data_type": "training.parallel",
    "seq_parallel_communication_data_type": "training.parallel",
    "prescale_gradients": _MEAN,
    "gradient_predivide_factor": _MEAN,
    "gradient_allreduce_op": _MEAN,
    "activation_checkpointing": "training.parallel.activation_checkpointing",
    "compile": "training.parallel.compile",
    "pipeline": "training.parallel.pipeline",
    "tensor_parallel": "training.parallel.tensor",
    "expert_parallel": "training.parallel",
    "elasticity": "training.launch.ranks: a run goes on with any number",
    "checkpoint": _CHECKPOINTS,
    "datastates_ckpt": _CHECKPOINTS,
    "data_efficiency": "mixture",
    "curriculum_learning": "mixture.phases",
    "dataloader_drop_last": "mixture",
    "autotuning": "nothing: `plinth run plan` compares divisions",
    "timers": "training.telemetry",
    f"{ZERO}.stage": "training.parallel.zero_stage",
    f"{ZERO}.offload_optimizer": _OFFLOAD,
    f"{ZERO}.offload_param": _OFFLOAD,
    f"{ZERO}.cpu_offload": _OFFLOAD,
    f"{ZERO}.cpu_offload_param": _OFFLOAD,
    f"{ZERO}.cpu_offload_use_pin_memory": _OFFLOAD,
    f"{ZERO}.zenflow": _OFFLOAD,
    f"{ZERO}.overlap_comm": "training.parallel",
    f"{ZERO}.reduce_bucket_size": _BUCKETS,
    f"{ZERO}.allgather_bucket_size": _BUCKETS,
    f"{ZERO}.compute_grad_norm": "nothing: the guard reads the norm of every step",
    f"{ZERO}.round_robin_gradients": "nothing: checkpoints find parameters by their order",
    f"{ZERO}.elastic_checkpoint": _CHECKPOINTS,
    f"{ZERO}.load_from_fp32_weights": _CHECKPOINTS,
    f"{ZERO}.save_muon_momentum_buffer_in_memory": "training.optimizer.kind",
}

#: Settings that change no number of a run: they log, or decide when ZeRO-3 fetches what it needs anyway.
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

#: Further names at the top of a configuration that DeepSpeed reads.
OTHERS = frozenset(
    {
        *("aio", "compression_training", "disable_allgather", "eigenvalue", "hybrid_engine", "progressive_layer_drop"),
        *("sparse_attention", "use_data_before_expert_parallelism", "vocabulary_size", "weight_quantization", ZERO),
    }
)


def problems_with_settings(block: Mapping[str, Any]) -> Iterator[Refused]:
    """The settings of a block that are refused, by key."""
    known = {name for name in {*OWNED, *HARMLESS, *OTHERS} if "." not in name}
    for name in block:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield (name,), f"DeepSpeed reads no such setting and would pass over it{hint}"
    for path in _paths(block):
        if ".".join(path) in OWNED:
            yield path, f"the engine owns this setting; set {OWNED['.'.join(path)]}"


def with_settings(own: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's configuration and the block's settings.

    Raises:
        TrainingError: the block has one that is refused.
    """
    for path, reason in problems_with_settings(block):
        raise TrainingError(f"training.deepspeed.{'.'.join(path)} is refused", found=block[path[0]], expected=reason)
    merged = dict(own)
    for name, value in block.items():
        given = merged.get(name)
        merged[name] = {**given, **value} if isinstance(given, dict) and isinstance(value, Mapping) else value
    return merged


def identified_settings(block: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that can change a number of the run."""
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
    """Keys of the block, and of the sections in it."""
    for name, value in block.items():
        yield (name,)
        yield from ((name, key) for key in value) if isinstance(value, Mapping) else ()
