"""How far two replays of the same steps are apart on this hardware: what a proof of the class `measured` rests on.

Where kernels sum in an order of their own each time, a resumed run cannot have the bits of the uninterrupted one. Two
replays from the same checkpoint then differ as original and replay do: by as much, if the resume is right. Each rank
compares its own share of master weights and optimizer state; nobody gathers the model.

What is concluded from it: `proof`. Does not belong here: the replay itself (audit).
"""

from __future__ import annotations

import math
import platform
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.training.engine.engine import TrainingEngine
from plinth.training.forensics.proof import FACTOR, WHOLLY

METHOD: Final = (
    "the steps were replayed twice from the same checkpoint by the same ranks on this hardware; a bound is "
    f"{FACTOR:g} times the largest relative difference between the two replays"
)


def share_of(engine: TrainingEngine) -> list[Tensor]:
    """A copy of this rank's master weights and optimizer state, on the CPU: as large as its part of a checkpoint."""
    return [tensor.detach().to("cpu", copy=True) for tensor in engine.optimizer_tensors()]


def distance(engine: TrainingEngine, other: list[Tensor]) -> float:
    """How far the state of all ranks is from copies of `share_of`: of any tensor, the norm of the difference over the
    larger norm, 0 … 2. A collective."""
    found = [_relative(now.detach(), then) for now, then in zip(engine.optimizer_tensors(), other, strict=True)]
    largest = torch.tensor(max(found, default=0.0), dtype=torch.float64, device=engine.rank.device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def _relative(now: Tensor, then: Tensor) -> float:
    then = then.to(now.device)
    if torch.equal(now, then):
        return 0.0
    first, second = now.double(), then.double()
    apart = float((first - second).norm() / torch.maximum(first.norm(), second.norm()))
    return apart if math.isfinite(apart) else WHOLLY


def hardware(engine: TrainingEngine) -> list[str]:
    """What each rank computes on and with, in their order; a collective."""
    device = engine.rank.device
    if device.type == "cuda":
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        libraries = f"CUDA {torch.version.cuda}, NCCL {'.'.join(map(str, version))}"
        name = f"{torch.cuda.get_device_name(device)}, {libraries}"
    else:
        name = f"{platform.machine()} CPU, {torch.backends.cpu.get_cpu_capability()}"
    found: list[Any] = [None] * engine.rank.world
    dist.all_gather_object(found, f"{name}, torch {torch.__version__}")
    return [str(one) for one in found]
