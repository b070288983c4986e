"""Batches of which only some targets are scored, on ranks and in one plain process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.model.loss import IGNORED
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch
from plinth.training.parallel.topology import place_of
from tests.plinth.training import plain_training

ROWS, STEPS = 8, 3
LR = 3e-3


def rows_of(config: RunConfig, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens and segments [ROWS, S + 1] and what is scored [ROWS, S]: from one target of a row to nearly all."""
    random = np.random.default_rng(step)
    width = config.sequence_tokens
    tokens = random.integers(0, config.vocab_size, (ROWS, width + 1), dtype=np.int32)
    segments = (np.arange(width + 1) > random.integers(4, width, (ROWS, 1))).astype(np.int32)
    scored = np.arange(width) < np.array([1, 2, 3, width - 1, 5, width, 8, 1])[:, None]
    scored[3, 7] = False
    return tokens, segments, scored


def batch_of(config: RunConfig, step: int, rank: int) -> StepBatch:
    """Return the part of the batch for one rank."""
    whole, place = rows_of(config, step), place_of(config.parallel, config.ranks, rank)
    cut = [array.reshape(config.data_ranks, -1, config.micro_batch_sequences, array.shape[1]) for array in whole]
    tokens, segments, scored = (array[place.data] for array in cut)
    return StepBatch.of(tokens, segments, scored, int(whole[2].sum()))


def plain_run(config: RunConfig) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of one process: summed loss of the scored targets over their number, one batch."""

    def loss_of(model: Decoder, step: int) -> Tensor:
        tokens, segments, scored = (torch.from_numpy(array) for array in rows_of(config, step))
        tokens = tokens.long()
        targets = tokens[:, 1:].masked_fill(~scored, IGNORED)
        logits = model(tokens[:, :-1], segments[:, :-1] if config.model.document_mask else None)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return loss / scored.sum()

    return plain_training.plain_run(config, STEPS, loss_of, lambda step: LR)[:2]


def train_all(configs: dict[str, RunConfig]) -> dict[str, tuple[list[float], list[float]]]:
    """On one rank: train each configuration in turn; the mean of its ranks' losses, and gradient norms."""
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    rank, answers = engines.join(next(iter(configs.values()))), {}
    for name, config in configs.items():
        engine = open_engine(config, rank)
        steps = [engine.train_step(batch_of(config, step, rank.index), LR) for step in range(1, STEPS + 1)]
        answers[name] = [float(loss) for loss, _ in steps], [float(norm) for _, norm in steps]
        engine.deepspeed.destroy()
    engines.leave()
    return answers
