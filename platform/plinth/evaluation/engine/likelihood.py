"""Batches to -log2 p of every token, over any model that is called like a `Decoder`: loaded, or in training.

One thread computes one batch and sums are exact (`math.fsum`), so that numbers do not depend on how many threads or
ranks share the batches. `score` does it all in one process; ranks of a run deal the batches of one plan among
themselves, call `run` for each, and put the answers together with `collect`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plinth.errors import TrainingError
from plinth.evaluation.engine.batches import BATCH_TOKENS, Batch, plan
from plinth.evaluation.engine.encode import ScoredStream
from plinth.model.attention import Layout, branch_mask

#: Tokens of a batch on a CPU: what a layer works on stays in the caches of a core.
CPU_BATCH_TOKENS = 1024

#: (tokens [B, S], layout=Layout) -> [N, 2] of `Decoder.arranged`: a decoder, or what wraps it.
Forward = Callable[..., Tensor]


class StreamScores(NamedTuple):
    """Of each stream: total -log2 p and whether every token is the most probable one; and -log2 p of every token."""

    bits: NDArray[np.float64]  # [streams]
    greedy: NDArray[np.bool_]  # [streams]
    token_bits: NDArray[np.float64]  # [scored tokens of all streams]


def score(
    forward: Forward,
    streams: Sequence[ScoredStream],
    sequence_tokens: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    workers: int = 1,
    batch_tokens: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StreamScores:
    """Score streams; `progress(tokens done, tokens in all)` is called after each batch.

    Args:
        forward: the model.
        streams: what to score.
        sequence_tokens: the training length.
        device, dtype: of the model's activations.
        workers: threads; one where the device is not the CPU.
        batch_tokens: tokens of a batch, if not `tokens_of_batch`.
        progress: told of what is done.

    Raises:
        TrainingError: a probability is not a number.
    """
    batches = plan(streams, sequence_tokens, batch_tokens or tokens_of_batch(device))
    done, total = 0, sum(one.targets for one in batches)
    answers = []
    with ThreadPoolExecutor(max(1, workers) if torch.device(device).type == "cpu" else 1) as threads:
        for batch, answer in zip(
            batches, threads.map(lambda one: run(forward, one, device, dtype).cpu().numpy(), batches), strict=True
        ):
            answers.append(answer)
            done += batch.targets
            progress(done, total)
    return collect(streams, batches, answers)


def tokens_of_batch(device: torch.device | str) -> int:
    """Tokens of a batch on a device; they decide the last bits of a score, so that all who score there use them."""
    return CPU_BATCH_TOKENS if torch.device(device).type == "cpu" else BATCH_TOKENS


@torch.no_grad()
def run(
    forward: Forward, batch: Batch, device: torch.device | str, dtype: torch.dtype, *, multiple: int = 1
) -> Tensor:
    """-ln p and whether it is the most probable token, of every target of a batch in its order: FP32 [N, 2].

    `multiple`: ranks that share the sequences, which they must be able to divide.
    """
    arrays = batch.arrays(multiple)
    tokens, positions, outputs, which, targets, order = (
        torch.from_numpy(array).to(device)
        for array in (arrays.tokens, arrays.positions, arrays.outputs, arrays.which, arrays.targets, arrays.order)
    )
    mask = None if arrays.branches is None else branch_mask(torch.from_numpy(arrays.branches).to(device), dtype)
    found = forward(tokens, layout=Layout(positions, mask, outputs, which, targets))
    answer = torch.empty_like(found)
    answer[order] = found
    return answer


def collect(
    streams: Sequence[ScoredStream], batches: Iterable[Batch], answers: Iterable[NDArray[np.float32]]
) -> StreamScores:
    """The answers to batches, by stream.

    Raises:
        TrainingError: a probability is not a number.
    """
    starts = list(accumulate((one.scored for one in streams), initial=0))
    token_bits, greedy = np.zeros(starts[-1]), np.ones(starts[-1], np.bool_)
    for batch, answer in zip(batches, answers, strict=True):
        at = 0
        for branch in (one for row in batch.rows for one in row.branches):
            size = len(branch.targets)
            nats, best = answer[at : at + size, 0].astype(np.float64), answer[at : at + size, 1] > 0
            for job in branch.jobs:
                first = starts[job.stream] + job.offset
                token_bits[first : first + size], greedy[first : first + size] = nats / math.log(2), best
            at += size
    spans = list(pairwise(starts))
    sums = np.array([math.fsum(token_bits[a:b]) for a, b in spans])
    if not np.isfinite(sums).all():
        raise TrainingError(
            "the model gives probabilities that are not numbers",
            found=f"{int((~np.isfinite(sums)).sum())} of {len(sums)} texts",
            expected="finite bits for every text",
            remedy="the run diverged: look at its loss curve, and roll back to an earlier checkpoint",
        )
    return StreamScores(sums, np.array([bool(greedy[a:b].all()) for a, b in spans]), token_bits)
