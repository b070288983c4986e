"""Engines of many kinds on one set of ranks, beside one plain process on the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from plinth.training.config import RunConfig
from plinth.training.data import Batch
from plinth.training.model import build
from plinth.training.parallel.topology import place_of

STEPS, ROWS = 4, 8
LR = 3e-3


def rows_of(config: RunConfig, step: int) -> Batch:
    """The global batch of a step in one array: [1, ROWS, S + 1], documents of uneven lengths."""
    random = np.random.default_rng(step)
    shape = (1, ROWS, config.sequence_tokens + 1)
    start, stride = random.integers(0, config.vocab_size, (2, *shape[:2], 1))
    tokens = ((start + stride % 5 * np.arange(shape[2])) % config.vocab_size).astype(np.int32)
    ends = random.random(shape) < 0.1
    return Batch(tokens, np.cumsum(ends, axis=-1).astype(np.int32))


def batch_of(config: RunConfig, step: int, rank: int) -> Batch:
    """What one rank sees of it: the rows of its data rank, in micro batches."""
    whole, place = rows_of(config, step), place_of(config.parallel, config.ranks, rank)
    shape = (config.data_ranks, -1, config.micro_batch_sequences, config.sequence_tokens + 1)
    return Batch(whole.tokens.reshape(shape)[place.data], whole.segments.reshape(shape)[place.data])


def plain_run(config: RunConfig) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, gradient norms and parameters of one FP32 process without DeepSpeed."""
    model = build(config.model, config.vocab_size, config.seed)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    options = config.optimizer
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(options.beta1, options.beta2), eps=options.eps)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        batch = rows_of(config, step)
        tokens, segments = torch.from_numpy(batch.tokens[0]).long(), torch.from_numpy(batch.segments[0])
        mask = segments[:, :-1] if config.model.document_mask else None
        loss = model(tokens[:, :-1], mask, tokens[:, 1:])
        loss.backward()
        norms.append(float(clip_grad_norm_(model.parameters(), options.grad_clip)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, {name: p.detach() for name, p in model.named_parameters()}


def train_all(configs: dict[str, RunConfig], emulate_fp16: bool = False) -> dict[str, Any]:
    """On one rank: train each configuration in turn; losses, norms, and the leader's whole parameters."""
    from deepspeed.accelerator import get_accelerator

    from plinth.training import engine as engines

    rank, answers = engines.join(next(iter(configs.values()))), {}
    if emulate_fp16:  # PyTorch computes it on any CPU, slowly; DeepSpeed refuses for the slowness
        type(get_accelerator()).is_fp16_supported = lambda self: True
    for name, config in configs.items():
        try:
            answers[name] = train_one(config, rank)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    engines.leave()
    return answers


def train_one(config: RunConfig, rank: Any) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    from plinth.training.engine import open_engine

    engine = open_engine(config, rank)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        loss, norm = engine.train_step(batch_of(config, step, rank.index), LR)
        losses.append(float(loss))
        norms.append(float(norm))
    parameters = {name: tensor.float().numpy() for name, tensor in engine.parameters()}
    engine.deepspeed.destroy()
    return losses, norms, parameters if rank.leads else {}


def resume_all(configs: dict[str, RunConfig], folder: Path) -> dict[str, Any]:
    """On one rank: train each configuration, leave its state half-way, take it up in a new engine, train on."""
    from deepspeed.accelerator import get_accelerator

    from plinth.training import engine as engines

    rank = engines.join(next(iter(configs.values())))
    type(get_accelerator()).is_fp16_supported = lambda self: True
    answers = {name: _resumed(config, rank, folder / str(n)) for n, (name, config) in enumerate(configs.items())}
    engines.leave()
    return answers


def _resumed(config: RunConfig, rank: Any, folder: Path) -> dict[str, Any]:
    from plinth.training import pieces, universal
    from plinth.training.engine import open_engine

    first, second = open_engine(config, rank), open_engine(config, rank)
    _steps(first, range(1, STEPS + 1))
    pieces.write(universal.capture(first), folder, rank.index)
    torch.distributed.barrier()
    universal.restore(second, folder)
    answer = {"state": (_state(first), _state(second))}
    last = range(STEPS + 1, 2 * STEPS + 1)
    answer["steps"] = (_steps(first, last), _steps(second, last))
    answer["end"] = (_state(first), _state(second))
    return answer


def _steps(engine: Any, steps: range) -> list[tuple[float, ...]]:
    made = [engine.train_step(batch_of(engine.config, step, engine.rank.index), LR) for step in steps]
    return [(float(loss), float(norm)) for loss, norm in made]


def _state(engine: Any) -> tuple[Any, ...]:
    """Digests of whole parameters and of this rank's optimizer state, and the factor of the loss."""
    from plinth.training import snapshot

    found = snapshot.digests(engine)
    return found["parameters_sha256"], found["optimizer_sha256"], getattr(engine.deepspeed.optimizer, "loss_scale", 1.0)
