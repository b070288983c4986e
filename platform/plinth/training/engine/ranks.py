"""Setup of a run's ranks: process group, random seeds, and the precision that a device supports."""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from plinth.errors import TrainingError
from plinth.extensions import require
from plinth.model.decoder import Decoder
from plinth.model.parameters import AttentionPath
from plinth.training.config import RunConfig
from plinth.training.telemetry import communication

# Precision of a run on a device, and the limits of devices.

#: Dtype of parameters and activations, by precision.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def precision_of(config: RunConfig, device: torch.device) -> str:
    """Return the run's precision. `auto` becomes BF16 if the device supports it natively, otherwise FP32.

    CPUs that emulate BF16 are 3 to 4 times slower than with FP32.
    """
    if config.precision != "auto":
        return config.precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has = torch.cpu.get_capabilities()
        native = bool(has.get("amx_bf16") or has.get("avx512_bf16"))
    return "bf16" if native else "fp32"


def require_device(precision: str, device: torch.device) -> None:
    """Raise an error with a remedy if this device does not support a precision. The check is DeepSpeed's.

    Raises:
        TrainingError: the device has no FP16 arithmetic.
    """
    from deepspeed.accelerator import get_accelerator

    if precision == "fp16" and not get_accelerator().is_fp16_supported():
        raise TrainingError(
            f"training.precision fp16 cannot run on this {device.type}",
            found="a device without FP16 arithmetic (CPUs need AVX512-FP16 or AMX-FP16)",
            expected="a GPU, or precision bf16, fp32 or auto",
            remedy="set training.precision: auto",
        )


def require_gradient(path: AttentionPath, device: torch.device) -> None:
    """Raise an error if an attention backend has no gradient on this device.

    Raises:
        TrainingError: the backend is FlexAttention and the device is a CPU.
    """
    if path == "flex" and device.type == "cpu":
        raise TrainingError(
            "`training.parallel.attention: flex` cannot be used for training on this CPU",
            found="FlexAttention has no gradient on CPUs (torch 2.13)",
            expected="a GPU, or attention auto, sdpa or flash",
            remedy="set `training.parallel.attention: auto`",
        )


# FP8 matrix products for the blocks' linear layers, by torchao. Both factors are cast with dynamic scales.
#
#     tensorwise           one scale per tensor; E4M3, gradients in E5M2. Scales depend on the micro batch, so the
#                          rounding of losses depends on the division of a batch
#     rowwise              one scale per row, a power of two; E4M3 throughout. For gradients of weights a row is a micro
#                          batch
#     rowwise_with_gw_hp   as rowwise, with BF16 weight gradients: the division of a batch has no effect
#
# Parameters keep their names, precision and place: only matrix products change. Embeddings, norms, attention and the
# output projection stay in BF16, and so do layers with a side that is not a multiple of `MULTIPLE`, as the kernels
# require. Scales are computed on the device, without a host wait.

#: Divisor of the sides of matrices that `torch._scaled_mm` supports.
MULTIPLE = 16

#: Minimum compute capability of the kernels: Ada for tensorwise, Hopper for rowwise scales.
CAPABILITIES = {"tensorwise": (8, 9), "rowwise": (9, 0), "rowwise_with_gw_hp": (9, 0)}


def require_float8(config: RunConfig, precision: str, device: torch.device) -> None:
    """Raise an error if the recipe requests FP8 but this run cannot compute it.

    Args:
        precision: resolved precision of the run.

    Raises:
        TrainingError: the device has no FP8 arithmetic, the run is not in BF16, or the number of tokens in a micro
            batch is not divisible by `MULTIPLE`.
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
            expected="precision bf16 for all other operations",
            remedy="set training.precision: bf16",
        )
    tokens = config.micro_batch_sequences * config.sequence_tokens
    if tokens % MULTIPLE:
        raise TrainingError(
            f"training.float8 {kind} does not support micro batches of {tokens} tokens",
            expected=f"a multiple of {MULTIPLE}",
            remedy="change `training.micro_batch_sequences` or `mixture.sequence_tokens`",
        )


def convert(model: Decoder, kind: str, *, emulate: bool = False) -> None:
    """Convert the linear layers of the blocks to FP8 matrix products.

    Args:
        emulate: True to compute in FP32 and round to FP8, which works on any device.

    Raises:
        MissingError: torchao is not installed.
    """
    float8 = require("torchao.float8", "gpu")
    options = replace(float8.Float8LinearConfig.from_recipe_name(kind), emulate=emulate)
    float8.convert_to_float8_training(model.layers, module_filter_fn=divides, config=options)


def divides(module: nn.Module, name: str = "") -> bool:
    """Return True if the FP8 kernels support the sizes of this linear layer."""
    return isinstance(module, nn.Linear) and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)


# Ranks of a run: joining of the process group, seeds, exit.
#
# On CPUs ranks communicate over gloo; DeepSpeed's shared-memory operator is off: it compiles at first use, leaks memory
# in /dev/shm when a rank is killed, and gives the same sums.

#: Timeout of collectives, in seconds; the supervisor ends hanging ranks much earlier.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)

#: Compute capability of the first GPUs with TF32.
AMPERE = (8, 0)


@dataclass(frozen=True)
class Rank:
    """Position of this process among the ranks of the run."""

    index: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """True if this rank writes the timeline and commits checkpoints."""
        return self.index == 0


def join(config: RunConfig) -> Rank:
    """Join the process group named by RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    All random generators are seeded, and kernels are deterministic unless the run disables it.
    """
    rank = prepare(config)
    connect(config, rank)
    return rank


def prepare(config: RunConfig) -> Rank:
    """Import DeepSpeed, select the device and its kernels, and seed all random generators of this process."""
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    os.environ["DS_ACCELERATOR"] = "cuda" if cuda else "cpu"
    import_deepspeed(cuda)
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // config.launch.ranks_per_node))
    _set_determinism(config.deterministic, compiles=cuda or config.parallel.compile)
    _set_matmul(config.fp32_matmul, device)
    seed(config.seed + rank)
    communication.install()
    return Rank(rank, config.ranks, device)


def connect(config: RunConfig, rank: Rank) -> None:
    """Form the process group of all ranks."""
    import deepspeed

    cuda = rank.device.type == "cuda"
    deepspeed.init_distributed(
        dist_backend="nccl" if cuda else "gloo", auto_mpi_discovery=False, timeout=COLLECTIVE_TIMEOUT, verbose=False
    )
    if not (cuda or config.parallel.compile):
        defer_dynamo()  # joining clears Dynamo's cache if it is loaded


def disconnect() -> None:
    """Leave all process groups after a collective has failed, so that `connect` can be called again.

    The groups must have no open connections, because a collective in progress would keep them from ending.
    """
    import deepspeed

    if torch.distributed.is_initialized():
        deepspeed.comm.destroy_process_group()  # also those that DeepSpeed's modules keep
    torch.distributed.distributed_c10d._world.group_count = 0  # an interrupted `connect` has counted its group too
    if isinstance(sys.modules.get("torch._dynamo"), _DeferredDynamo):  # joining would load the module it stands for
        del sys.modules["torch._dynamo"], torch._dynamo
    deepspeed.comm.comm.cdb = None
    deepspeed.utils.groups.mpu = None
    _number_from_zero()


def _number_from_zero() -> None:
    """Make DeepSpeed number the parameters and modules of the next ZeRO-3 engine from 0.

    It numbers all engines of a process consecutively, and compares the numbers of all ranks. A process that replaces a
    lost rank has had no engine before.
    """
    from deepspeed.runtime.zero import parameter_offload
    from deepspeed.runtime.zero.partition_parameters import Init

    Init.param_id = 0
    (count,) = parameter_offload.DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__
    count[:] = [0]
    parameter_offload.FWD_MODULE_STACK.clear()  # it still has the modules of the interrupted pass, and so their memory


def _set_determinism(deterministic: bool, *, compiles: bool) -> None:
    """Select deterministic kernels. An operation without one then fails with an error that names it.

    `use_deterministic_algorithms` also sets Inductor's flag and imports Inductor for it. The import takes a fifth of a
    rank's start-up time and is only needed by a run that compiles.

    `warn_only` is not used: with it, the gradients of flash and memory-efficient attention stay nondeterministic, and
    cuDNN's attention is chosen (ATen, transformers/cuda: attention_backward.cu, sdp_utils.cpp).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS sums in a fixed order; read at its first use
    if compiles:
        torch.use_deterministic_algorithms(deterministic)
    else:
        torch.set_deterministic_debug_mode("error" if deterministic else "default")
    # do not fill new tensors: the fill only matters to code that reads uninitialized memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _set_matmul(kind: str, device: torch.device) -> None:
    """Set the precision of FP32 matrix products on this device.

    Raises:
        TrainingError: the device does not support TF32.
    """
    if kind == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE):
        raise TrainingError(
            f"training.fp32_matmul tf32 cannot run on this {device.type}",
            found="no TF32 arithmetic",
            expected="a GPU of compute capability 8.0 or more (Ampere), or `training.fp32_matmul: ieee`",
            remedy="set `training.fp32_matmul: ieee`",
        )
    torch.backends.cuda.matmul.fp32_precision = kind


def seed(value: int) -> None:
    """Seed every random generator that a rank may use."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def leave() -> None:
    """Leave the process group and free all its resources."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Hide a package from imports.

    DeepSpeed's unused autotuner would import MLflow, which takes most of a rank's start-up time.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # Python's mark of a module that cannot be imported
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Disable compilation while DeepSpeed is imported.

    DeepSpeed imports its own Muon to check an optimizer's type. Decorating Muon's kernels loads Inductor, which takes a
    quarter of a rank's start-up time.
    """
    from deepspeed.runtime import compiler

    kept, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        yield
    finally:
        compiler.compile = kept


class _DeferredDynamo(ModuleType):
    """Placeholder for `torch._dynamo` in a process that compiles nothing.

    Access to an attribute that the placeholder lacks loads the real module.
    """

    @staticmethod
    def disable(fn: Any, *args: Any, **options: Any) -> Any:
        """Return `fn` unchanged, because nothing is traced."""
        return fn

    @staticmethod
    def graph_break() -> None:
        """Do nothing, because there is no graph to break."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # module scans need no compiler
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__], torch._dynamo
        return getattr(importlib.import_module(self.__name__), name)


def defer_dynamo() -> None:
    """Delay the import of TorchDynamo until something compiles.

    An optimizer imports TorchDynamo only to break its graph, and the import takes a quarter of the CPU time of a rank's
    start-up.
    """
    if "torch._dynamo" not in sys.modules:
        torch._dynamo = sys.modules["torch._dynamo"] = _DeferredDynamo("torch._dynamo")


def import_deepspeed(cuda: bool) -> Any:
    """Import DeepSpeed without log output. On CPUs, skip its operators that are compiled at first use."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    with _without("mlflow"):
        import deepspeed
    with _nothing_compiled():
        import deepspeed.runtime.zero.muon.original_muon

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not cuda:
        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed
