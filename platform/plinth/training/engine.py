"""DeepSpeed behind a few methods: build, train one step, look at the whole parameters.

`torch.optim.AdamW` is used in every ZeRO stage, because DeepSpeed's own CPU Adam does not resume bit
for bit. On CPUs ranks talk over gloo; DeepSpeed's shared-memory operator is off: it is compiled at
first use, leaks memory in /dev/shm when a rank is killed, and gives the same sums.
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plinth.training.config import RunConfig
from plinth.training.data import Batch
from plinth.training.model import build

#: A collective that waits longer than this has lost a rank; the supervisor looks much earlier.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)

#: Elements of a communication bucket; the default of 5e8 would reserve 2 GB for any model.
BUCKET_ELEMENTS = 2**25


@dataclass(frozen=True)
class Rank:
    """This process among the ranks of the run."""

    index: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this rank writes the timeline and commits checkpoints."""
        return self.index == 0


def join(config: RunConfig) -> Rank:
    """Join the process group named by RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Everything random is seeded and only deterministic kernels are allowed (on GPUs, warned about).
    """
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    os.environ["DS_ACCELERATOR"] = "cuda" if cuda else "cpu"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deepspeed = _deepspeed(cuda)
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // config.ranks))
    torch.use_deterministic_algorithms(True, warn_only=cuda)
    seed(config.seed + rank)
    deepspeed.init_distributed(
        dist_backend="nccl" if cuda else "gloo", auto_mpi_discovery=False, timeout=COLLECTIVE_TIMEOUT, verbose=False
    )
    return Rank(rank, config.ranks, device)


def open_engine(config: RunConfig, rank: Rank) -> Engine:
    """The engine that the run's `parallel:` block asks for; a collective.

    Raises:
        TrainingError: this machine cannot run the block.
    """
    if config.parallel.pipeline > 1:
        from plinth.training.parallel.pipeline import PipelineEngine

        return PipelineEngine(config, rank)
    return Engine(config, rank)


def seed(value: int) -> None:
    """Seed every generator a rank may draw from."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


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


class Engine:
    """The model, its optimizer and the ZeRO stage of the run, on this rank."""

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        import deepspeed

        self.config, self.rank = config, rank
        self.precision = precision_of(config, rank.device)
        model = build(config.model, config.vocab_size, config.seed).to(rank.device)
        self.deepspeed, _, _, _ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(_groups(config, model), fused=True),
            config=deepspeed_config(config, self.precision, sum(p.numel() for p in model.parameters())),
            dist_init_required=False,
        )

    def train_step(self, batch: Batch, lr: float) -> tuple[Tensor, float]:
        """One optimizer step; returns this rank's mean loss (FP64 scalar) and the global gradient norm."""
        self._set_rate(lr)
        total = torch.zeros((), dtype=torch.float64)
        norm: float | None = None
        for tokens, segments in zip(batch.tokens, batch.segments, strict=True):
            loss = self.deepspeed(*self._on_device(tokens, segments))
            total += loss.detach().double().cpu()
            self.deepspeed.backward(loss)
            if self._norm_is_ours and self.deepspeed.is_gradient_accumulation_boundary():
                norm = float(nn.utils.get_total_norm([p.grad for p in self.module.parameters() if p.grad is not None]))
            self.deepspeed.step()
        if norm is None:
            norm = float(self.deepspeed.get_global_grad_norm())
        return total / len(batch.tokens), norm

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self.deepspeed.module
        return module

    @property
    def _norm_is_ours(self) -> bool:
        """Without ZeRO and in FP32, DeepSpeed clips but does not tell the norm."""
        return self.config.parallel.zero_stage == 0 and self.precision == "fp32"

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters in order, one at a time, on the CPU; every rank must walk through them together."""
        import deepspeed

        for name, parameter in self.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.config.parallel.zero_stage == 3):
                yield name, parameter.detach().cpu().clone()

    def optimizer_tensors(self) -> Iterator[Tensor]:
        """This rank's share of master weights and optimizer state, in a fixed order."""
        outer, inner = self.deepspeed.optimizer, self.deepspeed.basic_optimizer
        masters = getattr(outer, "fp32_partitioned_groups_flat", None)  # ZeRO-3 empties its groups between steps
        if masters is None:
            masters = [parameter for group in inner.param_groups for parameter in group["params"]]
        for master in masters:
            yield master.detach().cpu()
            state = inner.state.get(master, {})
            for key in sorted(state):
                if isinstance(state[key], Tensor):
                    yield state[key].detach().cpu()

    def _set_rate(self, lr: float) -> None:
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = lr

    def _on_device(self, tokens: Any, segments: Any) -> tuple[Tensor, Tensor | None, Tensor]:
        ids = torch.from_numpy(tokens).to(self.rank.device).long()
        mask = torch.from_numpy(segments[:, :-1]).to(self.rank.device) if self.config.model.document_mask else None
        return ids[:, :-1], mask, ids[:, 1:]


def deepspeed_config(config: RunConfig, precision: str, parameters: int) -> dict[str, Any]:
    """DeepSpeed's own configuration of a run."""
    bucket = min(BUCKET_ELEMENTS, max(parameters, 1))
    settings: dict[str, Any] = {
        "train_batch_size": config.global_batch_sequences,
        "train_micro_batch_size_per_gpu": config.micro_batch_sequences,
        "gradient_accumulation_steps": config.accumulation,
        "gradient_clipping": config.optimizer.grad_clip,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": config.parallel.zero_stage,
            "overlap_comm": False,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        },
        "bf16": {"enabled": precision == "bf16"},
        "steps_per_print": None,
    }
    if precision == "bf16" and config.parallel.zero_stage > 0:  # without ZeRO, DeepSpeed offers no accumulation in FP32
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def _groups(config: RunConfig, model: nn.Module) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for gains of norms."""
    optimizer = config.optimizer
    common = {"lr": optimizer.lr, "betas": (optimizer.beta1, optimizer.beta2), "eps": optimizer.eps}
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    return [
        {"params": matrices, "weight_decay": optimizer.weight_decay, **common},
        {"params": gains, "weight_decay": 0.0, **common},
    ]


def _deepspeed(cuda: bool) -> Any:
    """DeepSpeed, quiet, and on CPUs without operators that are compiled at first use."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not cuda:
        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def leave() -> None:
    """Leave the process group, so that nothing of it outlives the rank."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
