"""DeepSpeed's own configuration of a run."""

from __future__ import annotations

from typing import Any

from plinth.training.config import RunConfig
from plinth.training.parallel.gradient_path import communication_dtype, overlaps
from plinth.training.parameters.deepspeed_block import with_settings


def deepspeed_config(
    config: RunConfig, precision: str, parameters: int, *, theirs: bool = False, gpu: bool = False
) -> dict[str, Any]:
    """The configuration for `deepspeed.initialize`.

    To DeepSpeed sequence ranks are data ranks that see other sequences, so that its batch counts them; ours does
    not. Unless `theirs`, DeepSpeed neither measures the gradient nor clips it: both are done on the device
    (`device_gradients`). Without ZeRO it has no FP32 accumulation for BF16: there it is told that the run is FP32, and
    `master_weights` has the rest.

    Args:
        config: of the run.
        precision: resolved, never `auto`.
        parameters: of this rank; no bucket is larger.
        theirs: whether norm, clipping and overflow are DeepSpeed's: in FP16, whose loss factor depends on them, and
            with an optimizer that cannot keep an update back.
        gpu: whether this rank computes on one.

    Raises:
        TrainingError: the recipe's block `deepspeed` sets what the engine owns.
    """
    settings: dict[str, Any] = {
        "train_batch_size": config.steps.batch(0) * config.parallel.sequence,
        "train_micro_batch_size_per_gpu": config.micro_batch_sequences,
        "gradient_accumulation_steps": config.accumulation(),
        "gradient_clipping": config.optimizer.grad_clip if theirs else 0.0,
        "gradient_allreduce_op": "sum" if not theirs and sums_gradients(config, precision) else "mean",
        "communication_data_type": communication_dtype(config.parallel),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's CPU Adam does not resume bit for bit
        "zero_optimization": _zero(config, max(parameters, 1), gpu) | _norm(config, theirs),
        "bf16": {"enabled": precision == "bf16" and config.parallel.zero_stage > 0, "check_grad_overflow": theirs},
        "fp16": _loss_scale(config, precision),
        "timers": {"throughput": {"enabled": False}},  # it would wait for the device in every micro batch
        "steps_per_print": None,
    }
    if precision != "fp32" and config.parallel.zero_stage > 0:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return with_settings(settings, config.deepspeed)


def sums_gradients(config: RunConfig, precision: str) -> bool:
    """Whether gradients are divided by the number of replicas after their sum: DeepSpeed's ZeRO-2 would divide them
    before, in BF16, where a division by 3 rounds."""
    return precision == "bf16" and config.parallel.zero_stage == 2


def _zero(config: RunConfig, parameters: int, gpu: bool) -> dict[str, Any]:
    parallel = config.parallel
    gathered = min(parallel.gather_bucket_elements, parameters)
    zero: dict[str, Any] = {
        "stage": parallel.zero_stage,
        "overlap_comm": overlaps(parallel, gpu=gpu),
        "reduce_bucket_size": min(parallel.reduce_bucket_elements, parameters),
        "allgather_bucket_size": gathered + gathered % 2,  # DeepSpeed takes even numbers
    }
    if parallel.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if parallel.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero


def _norm(config: RunConfig, theirs: bool) -> dict[str, Any]:
    """DeepSpeed can leave its norm out in ZeRO-1 and ZeRO-2 without offload; elsewhere `deepspeed_engine` does."""
    parallel = config.parallel
    left_out = not theirs and parallel.zero_stage in (1, 2) and parallel.offload == "none"
    return {"compute_grad_norm": False} if left_out else {}


def _loss_scale(config: RunConfig, precision: str) -> dict[str, Any]:
    scale = config.parallel.loss_scale
    return {
        "enabled": precision == "fp16",
        "loss_scale": scale.static,
        "initial_scale_power": scale.initial_power,
        "loss_scale_window": scale.window,
        "hysteresis": scale.hysteresis,
        "min_loss_scale": scale.minimum,
    }
