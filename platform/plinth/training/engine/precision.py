"""The precision of a run on a device, and what a device cannot train with."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from plinth.errors import TrainingError
from plinth.extensions import require
from plinth.model.decoder import Decoder
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


# FP8 products of the blocks' linear layers, by torchao: both factors are cast with scales of the moment.
#
#     tensorwise           one scale a tensor; E4M3, gradients in E5M2. Scales are of a micro batch, so losses depend,
#                          in rounding, on how a batch is cut
#     rowwise              a scale a row, a power of two; E4M3 throughout. For gradients of weights a row is a micro
#                          batch
#     rowwise_with_gw_hp   as rowwise, and gradients of weights are products in BF16: the cut of a batch changes nothing
#
# Parameters keep their names, precision and place: only the products of two matrices change. Embeddings, norms,
# attention and the output projection stay in BF16, and so does a layer with a side that is no multiple of `MULTIPLE`,
# which the kernels take. Scales are made on the device; nothing waits for it.

#: Sides of matrices that `torch._scaled_mm` takes.
MULTIPLE = 16

#: The least compute capability of the kernels: Ada for one scale a tensor, Hopper for one a row.
CAPABILITIES = {"tensorwise": (8, 9), "rowwise": (9, 0), "rowwise_with_gw_hp": (9, 0)}


def require_float8(config: RunConfig, precision: str, device: torch.device) -> None:
    """Refuse FP8 where it cannot be computed.

    Args:
        precision: of the run, resolved.

    Raises:
        TrainingError: the device has no FP8 arithmetic, the run is not in BF16, or a micro batch does not divide.
    """
    kind = config.float8
    if kind == "none":
        return
    least = CAPABILITIES[kind]
    has = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if has is None or has < least:
        raise TrainingError(
            f"training.float8 {kind} cannot run on this {device.type}",
            found="no FP8 arithmetic" if has is None else f"compute capability {has[0]}.{has[1]}",
            expected=f"a GPU of compute capability {least[0]}.{least[1]} or more",
            remedy="set training.float8: none",
        )
    if precision != "bf16":
        raise TrainingError(
            f"training.float8 {kind} with precision {precision}",
            expected="precision bf16, in which everything else is computed",
            remedy="set training.precision: bf16",
        )
    tokens = config.micro_batch_sequences * config.sequence_tokens
    if tokens % MULTIPLE:
        raise TrainingError(
            f"training.float8 {kind} over micro batches of {tokens} tokens",
            expected=f"a multiple of {MULTIPLE}",
            remedy="change training.micro_batch_sequences or mixture.sequence_tokens",
        )


def convert(model: Decoder, kind: str, *, emulate: bool = False) -> None:
    """Let the linear layers of the blocks multiply in FP8.

    Args:
        emulate: the same rounding by products in FP32, on any device.

    Raises:
        MissingError: torchao is not installed.
    """
    float8 = require("torchao.float8", "gpu")
    options = replace(float8.Float8LinearConfig.from_recipe_name(kind), emulate=emulate)
    float8.convert_to_float8_training(model.layers, module_filter_fn=divides, config=options)


def divides(module: nn.Module, name: str = "") -> bool:
    """Whether the kernels take a linear layer."""
    return isinstance(module, nn.Linear) and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
