"""Parameters after 20 steps on one CPU rank, of runs that differ in architecture, optimizer and schedules."""

from __future__ import annotations

import hashlib
import math
import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model, MuP, RopeScaling
from plinth.tokens.order.steps import BatchChange, LengthChange
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.parameters.optimizers import Optimizer, RotaryChange
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints

STEPS, SEQUENCE_TOKENS = 20, 32
SHAPE: dict[str, Any] = {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "ffn_dim": 64}
#: Units of a CPU, by which libraries choose their code.
UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_tile")
#: Relative difference of losses and norms that another kind of CPU may show; Muon iterates in BF16.
TOLERANCES = {"muon": 1e-2}
#: Differences from a plain run.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "olmo2": {
        "model": Model(**SHAPE, architecture="olmo2", init="megatron", mup=MuP(base_dim=16), tied_embeddings=False),
        "optimizer": Optimizer(schedule="cosine", min_lr=1e-4, weight_decay=0.3, embedding_lr_factor=2.0),
        "seed": 2,
    },
    "qwen": {
        "model": Model(**SHAPE, qkv_bias=True, init="trunc-normal", z_loss=1e-4, document_mask=False),
        "optimizer": Optimizer(schedule="wsd-sqrt", horizons=(0.5,), ema_decay=0.9, beta2=0.99, grad_clip=0.1),
        "rotary_schedule": (RotaryChange(from_step=8, rope_scaling=RopeScaling(kind="yarn", original_tokens=16)),),
    },
    "growing": {
        "model": Model(**SHAPE, qk_norm=True, init="normal", rope_scaling=RopeScaling(original_tokens=16)),
        "optimizer": Optimizer(schedule="inverse-sqrt", warmup_fraction=0.2, independent_weight_decay=True),
        "batch_schedule": (BatchChange(from_step=9, global_batch_sequences=12),),
        "length_schedule": (
            LengthChange(from_step=1, sequence_tokens=8),
            LengthChange(from_step=5, sequence_tokens=32),
        ),
        "sequences": 8 * 8 + 12 * 12,
    },
    "muon": {"optimizer": Optimizer(kind="muon", schedule="linear", options={"momentum": 0.9, "scale": "spectral"})},
}


def run(name: str) -> RunConfig:
    """The configuration of one of `RUNS`."""
    fields: dict[str, Any] = {
        "run_id": "golden",
        "key": "0" * 64,
        "recipe": "golden",
        "workspace": "/workspace",
        "model": Model(**SHAPE),
        "vocab_size": 64,
        "end_of_text": 0,
        "optimizer": Optimizer(warmup_fraction=0.2),
        "precision": "fp32",
        "parallel": Parallel(),
        "seed": 1,
        "launch": Launch(ranks=1),
        "sequence_tokens": SEQUENCE_TOKENS,
        "micro_batch_sequences": 4,
        "global_batch_sequences": 8,
        "total_steps": STEPS,
        "mixture": "m" * 64,
        "shards": {"web": "s" * 64},
        "tokenizer": "t" * 64,
        "checkpoints": Checkpoints(every_steps=STEPS),
        "supervision": Supervision(),
        "batches": "tests.golden.training:open_batches",
    }
    return RunConfig(**{**fields, **RUNS[name]})


def open_batches(config: RunConfig, rank: int) -> Batches:
    """Open sequences that count in strides, two documents in each, drawn again for every step."""

    def stream(first: int) -> Iterator[StepBatch]:
        for step in range(first, STEPS + 1):
            count, length = config.steps.batch(step - 1), SEQUENCE_TOKENS + 1
            start, stride = np.random.default_rng(step).integers(1, config.vocab_size, (2, count, 1))
            tokens = (start + stride % 7 * np.arange(length)) % config.vocab_size
            shape = (config.accumulation(step), config.micro_batch_sequences, length)
            segments = np.broadcast_to((np.arange(length) >= length // 3).astype(np.int32), shape).copy()
            batch = StepBatch.of(tokens.astype(np.int32).reshape(shape), segments)
            yield replace(batch, length=config.steps.length(step - 1))

    return stream


def cpu() -> str:
    """Return the CPU features that affect the last bits of a sum of one thread; torch is not imported, since it sets
    variables."""
    facts = dict(re.findall(r"^(vendor_id|flags)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    units = [name for name in UNITS if name in facts.get("flags", "").split()]
    release = metadata.version("torch").partition("+")[0]
    return " ".join((facts.get("vendor_id", platform.machine()), *units, f"torch {release}"))


def train_all() -> dict[str, Any]:
    """On one rank: the facts of every run, by name; empty on a GPU."""
    import torch

    from plinth.training.engine.engine import join, leave
    from plinth.training.trainer import Trainer

    rank = join(run("plain"))
    torch.set_num_threads(1)
    found: dict[str, Any] = {"cpu": cpu()}
    for name in RUNS if rank.device.type == "cpu" else ():
        config = run(name)
        trainer = Trainer(config, rank)
        trainer.begin()
        stream = trainer.batches(1)
        losses = [trainer.launch(stream, step).read().loss for step in range(1, STEPS + 1)]
        found[name] = _facts(losses, trainer.engine)
        trainer.engine.deepspeed.destroy()
    leave()
    return found


def _facts(losses: list[float], engine: Any) -> dict[str, Any]:
    """Digest of losses and parameters, and numbers that say how far others are from them."""
    digest, squares = hashlib.sha256(repr(losses).encode()), dict[str, float]()
    for name, parameter in sorted(engine.module.named_parameters()):
        digest.update(name.encode() + parameter.detach().contiguous().numpy().tobytes())
        kind = name.removesuffix(".weight").rpartition(".")[2]
        squares[kind] = squares.get(kind, 0.0) + float(parameter.detach().double().square().sum())
    numbers = {f"loss {step}": losses[step - 1] for step in (1, STEPS // 2, STEPS)}
    numbers |= {f"norm {kind}": math.sqrt(square) for kind, square in sorted(squares.items())}
    return {"sha256": digest.hexdigest()[:16], **{name: float(f"{value:.7g}") for name, value in numbers.items()}}
