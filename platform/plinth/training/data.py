"""Where batches come from: the smallest interface between data order and training loop."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from plinth.errors import TrainingError
from plinth.storage.refs import Refs
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth.tokens.loader import Loader
from plinth.tokens.order import Order
from plinth.tokens.reader import ShardReader
from plinth.training.config import RunConfig
from plinth.training.parallel.topology import place_of


class Batch(NamedTuple):
    """What one rank sees in one optimizer step.

    A  micro batches    M  sequences of a micro batch    S  tokens of a sequence

    Every token is a target, also the first of a document after the end-of-text of the one before: it is how
    the model learns to begin a text, which generation and evaluation ask of it.
    """

    tokens: npt.NDArray[np.int32]  # [A, M, S + 1]: inputs and, shifted by one, targets
    segments: npt.NDArray[np.int32]  # [A, M, S + 1]: number of the document within its sequence


class Batches(Protocol):
    """Batches of one rank from any step on (steps count from 1)."""

    def __call__(self, first_step: int) -> Iterator[Batch]: ...


def open_batches(config: RunConfig, rank: int) -> Batches:
    """The data order of the run's mixture. Step n of training is step n - 1 of the order.

    Raises:
        MissingError, IntegrityError: manifests or shards are absent or have changed.
    """
    workspace = Workspace(config.workspace)
    refs, store = Refs(workspace), Store(workspace.store)
    loader = Loader(
        Order(refs.load(config.mixture)),
        {name: ShardReader(store, refs.load(digest)) for name, digest in config.shards.items()},
        global_batch=config.steps,
        micro_batch=config.micro_batch_sequences,
        rank=place_of(config.parallel, config.ranks, rank).data,
        world=config.data_ranks,
    )

    def stream(first_step: int) -> Iterator[Batch]:
        micro = loader.batches(first_step - 1)
        for step in range(first_step, config.total_steps + 1):
            group = list(islice(micro, config.accumulation(step)))
            whole = Batch(np.stack([one.tokens for one in group]), np.stack([one.segments for one in group]))
            yield shortened(whole, config.steps.length(step - 1))

    return stream


def shortened(batch: Batch, length: int) -> Batch:
    """The same tokens in the same order in rows of `length` tokens and one more: [A, M S / length, length + 1].

    Neighbours share a token as sequences do, so that every target stays one. Rows know nothing of each other:
    attention and positions begin anew in each (Li et al., arXiv:2108.06084, "sequence length warmup").
    """
    sequence_tokens = batch.tokens.shape[-1] - 1
    if length == sequence_tokens:
        return batch
    starts = np.arange(0, sequence_tokens, length)[:, None] + np.arange(length + 1)  # [S / length, length + 1]
    return Batch(*(column[..., starts].reshape(len(column), -1, length + 1) for column in batch))


def batches_of(config: RunConfig, rank: int) -> Batches:
    """Open the source of batches that the configuration names.

    Raises:
        TrainingError: when there is no such function.
    """
    module, _, function = config.batches.partition(":")
    try:
        opener = cast(Callable[[RunConfig, int], Batches], getattr(importlib.import_module(module), function))
    except (ImportError, AttributeError) as error:
        raise TrainingError(
            "the configured source of batches does not exist", found=config.batches, expected="module:function"
        ) from error
    return opener(config, rank)


def fingerprint_of(batch: Batch, rank: int) -> tuple[int, int]:
    """Two 32-bit words that identify content, position and rank; summed over ranks they stay exact in FP64."""
    digest = hashlib.sha256(rank.to_bytes(4, "little"))
    digest.update(np.ascontiguousarray(batch.tokens).tobytes())
    digest.update(np.ascontiguousarray(batch.segments).tobytes())
    data = digest.digest()
    return int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
