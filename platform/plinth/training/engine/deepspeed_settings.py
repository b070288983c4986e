"""DeepSpeed's own configuration of a run."""

from __future__ import annotations

from typing import Any

from plinth.training.config import RunConfig


def deepspeed_config(config: RunConfig, precision: str, parameters: int) -> dict[str, Any]:
    """The configuration for `deepspeed.initialize`.

    To DeepSpeed sequence ranks are data ranks that see other sequences, so that its batch counts them; ours does
    not.

    Args:
        config: of the run.
        precision: resolved, never `auto`.
        parameters: of this rank; no bucket is larger.
    """
    settings: dict[str, Any] = {
        "train_batch_size": config.steps.batch(0) * config.parallel.sequence,
        "train_micro_batch_size_per_gpu": config.micro_batch_sequences,
        "gradient_accumulation_steps": config.accumulation(),
        "gradient_clipping": config.optimizer.grad_clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's CPU Adam does not resume bit for bit
        "zero_optimization": _zero(config, max(parameters, 1)),
        "bf16": {"enabled": precision == "bf16"},
        "fp16": _loss_scale(config, precision),
        "steps_per_print": None,
    }
    if precision != "fp32" and config.parallel.zero_stage > 0:  # without ZeRO, DeepSpeed offers no FP32 accumulation
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    if config.parallel.communication_dtype != "auto":
        settings["communication_data_type"] = config.parallel.communication_dtype
    return settings


def _zero(config: RunConfig, parameters: int) -> dict[str, Any]:
    parallel = config.parallel
    zero: dict[str, Any] = {
        "stage": parallel.zero_stage,
        "overlap_comm": parallel.overlap_communication,
        "reduce_bucket_size": min(parallel.reduce_bucket_elements, parameters),
        "allgather_bucket_size": min(parallel.gather_bucket_elements, parameters),
    }
    if parallel.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if parallel.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero


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
