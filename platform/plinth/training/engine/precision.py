"""The precision of a run on a device, and what a device cannot train with."""

from __future__ import annotations

import torch

from plinth.errors import TrainingError
from plinth.model.parameters import AttentionPath
from plinth.training.config import RunConfig

#: The dtype of parameters and activations, by precision.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def precision_of(config: RunConfig, device: torch.device) -> str:
    """`auto` is BF16 where the device computes in it, and FP32 on CPUs that would emulate it, 3 to 4 times slower."""
    if config.precision != "auto":
        return config.precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has = torch.cpu.get_capabilities()
        native = bool(has.get("amx_bf16") or has.get("avx512_bf16"))
    return "bf16" if native else "fp32"


def require_device(precision: str, device: torch.device) -> None:
    """Refuse a precision that this device lacks; DeepSpeed's own check, with a remedy.

    Raises:
        TrainingError: the device has no FP16 arithmetic.
    """
    from deepspeed.accelerator import get_accelerator

    if precision == "fp16" and not get_accelerator().is_fp16_supported():
        raise TrainingError(
            f"training.precision fp16 cannot run on this {device.type}",
            found="no FP16 arithmetic (CPUs need AVX512-FP16 or AMX-FP16)",
            expected="a GPU, or precision bf16, fp32 or auto",
            remedy="set training.precision: auto",
        )


def require_gradient(path: AttentionPath, device: torch.device) -> None:
    """Refuse a path of attention that this device does not train with.

    Raises:
        TrainingError: FlexAttention on a CPU.
    """
    if path == "flex" and device.type == "cpu":
        raise TrainingError(
            "training.parallel.attention flex cannot train on this cpu",
            found="no gradient of FlexAttention on CPUs (torch 2.13)",
            expected="a GPU, or attention auto, sdpa or flash",
            remedy="set training.parallel.attention: auto",
        )
