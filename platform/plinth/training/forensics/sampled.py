"""Replay of sampled steps of an external trainer by Plinth's model, on all ranks of the run.

Each committed checkpoint except the last is loaded in FP32, and the batch of the next step and of `OTHERS` other steps
are scored, each rank a share of the sequences. `order_proof` draws the conclusion. Each rank holds the whole model and
needs torch, not DeepSpeed.

A shuffled batch is drawn from the sequences of all these steps, the next one included. So if the trainer's batch has
nothing to do with the listed one, the listed batch is a random draw like the others, also if the batches are small.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from plinth.model.decoder import Decoder
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.digest_tree import MODEL
from plinth.training.config import RunConfig
from plinth.training.forensics.order_proof import SampledStep, evidence
from plinth.training.forensics.proof import store_order
from plinth.training.forensics.replay import batch_of, load, rows
from plinth.training.stopping import last_step
from plinth.training.telemetry.timeline import timeline

#: Maximum number of replayed steps; then, for each, the steps whose sequences are shuffled, and the shuffled batches.
SAMPLED, OTHERS, SHUFFLED = 8, 4, 199

Sums = npt.NDArray[np.float64]


def replay(config: RunConfig) -> None:
    """Replay the step after each kept checkpoint, and store the evidence. All ranks must call this.

    Raises:
        CheckpointError: a checkpoint has changed since it was committed.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if world > 1:
        dist.init_process_group("gloo")  # the losses are added on the host
    reported = {step: event["loss"] for step, event in timeline(config.directory.events).steps.items()}
    samples = []
    for step in sampled(config):
        own, shuffled = _losses(config, step, rank, world)
        samples.append(SampledStep(step=step, reported=reported[step], replayed=own, shuffled=shuffled))
    if rank == 0:
        state = checkpoint.read_state(config.directory, last_step(config))
        fault = "" if samples else "no kept checkpoint before the last one has a model in Hugging Face's layout"
        store_order(config, evidence(tuple(samples), state["parameters_sha256"], fault))
    if world > 1:
        dist.destroy_process_group()


def sampled(config: RunConfig) -> list[int]:
    """Return the steps to replay: those after a kept checkpoint with a model, evenly spread if there are many."""
    run, last = config.directory, last_step(config)
    steps = [
        one + 1 for one in checkpoint.committed(run) if one < last and (checkpoint.path(run, one) / MODEL).is_dir()
    ]
    count = min(SAMPLED, len(steps))
    return [steps[(number + 1) * len(steps) // count - 1] for number in range(count)]


def _losses(config: RunConfig, step: int, rank: int, world: int) -> tuple[float, tuple[float, ...]]:
    """Return the loss of a step's listed batch and the losses of shuffled batches."""
    model = load(config, step - 1)
    batches = [_scored(config, model, one, rank, world) for one in (step, *_others(config, step))]
    return _mean(batches[0]), shuffled(batches, step)


def shuffled(batches: list[Sums], seed: int) -> tuple[float, ...]:
    """Return the losses of batches as large as the first one, drawn from the sequences of all batches."""
    pool, generator = np.concatenate(batches), np.random.default_rng(seed)
    drawn = (generator.choice(len(pool), len(batches[0]), replace=False) for _ in range(SHUFFLED))
    return tuple(_mean(pool[np.sort(rows)]) for rows in drawn)  # sorted: the same sequences have exactly the same sum


def _others(config: RunConfig, step: int) -> list[int]:
    """Return steps near `step`, preferably later ones, because the checkpoint was trained on the earlier ones."""
    return [*range(step + 1, config.total_steps + 1), *range(step - 1, 0, -1)][:OTHERS]


def _scored(config: RunConfig, model: Decoder, step: int, rank: int, world: int) -> Sums:
    """Return the sum of losses and the number of scored targets of each sequence of a step's batch [G, 2]."""
    batch = batch_of(config, step)
    share = list(_sums(config, model, replace(batch, micro=batch.micro[rank::world])))
    every: list[Any] = [share]
    if world > 1:
        every = [None] * world
        dist.all_gather_object(every, share)
    found = np.empty((len(batch.micro), 2))
    for number, sums in enumerate(every):
        found[number::world] = sums
    return found


def _sums(config: RunConfig, model: Decoder, batch: Any) -> Iterator[tuple[float, int]]:
    for row in rows(model, batch):
        os.utime(config.directory.events)  # no event is written, so this signals progress to the supervisor
        yield float(np.nansum(row.losses, dtype=np.float64)), int((~np.isnan(row.losses)).sum())


def _mean(sums: Sums) -> float:
    losses, targets = sums.sum(axis=0)
    return float(losses / targets)
