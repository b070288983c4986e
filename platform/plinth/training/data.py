"""Where batches come from: the smallest interface between data order and training loop."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from plinth.errors import TrainingError
from plinth.storage.refs import Refs
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth.tokens.loader import Batch as Share
from plinth.tokens.loader import Loader
from plinth.tokens.opening import fetching_ahead, open_shards
from plinth.tokens.order import Order
from plinth.tokens.packing_layout import open_layouts
from plinth.training.config import RunConfig
from plinth.training.parallel.topology import Place, place_of


class Batch(NamedTuple):
    """What one rank sees in one optimizer step.

    A  micro batches    M  sequences of a micro batch    S  tokens of a sequence

    Every token is a target, also the first of a document after the end-of-text of the one before: it is how
    the model learns to begin a text, which generation and evaluation ask of it. Padding, and the context before
    what goes on in the middle of a document, are none: they are not scored.
    """

    tokens: npt.NDArray[np.int32]  # [A, M, S + 1]: inputs and, shifted by one, targets
    segments: npt.NDArray[np.int32]  # [A, M, S + 1]: number of the document within its sequence
    scored: npt.NDArray[np.bool_] | None = None  # [A, M, S]: which targets count in the loss; None where all do
    scored_tokens: int | None = None  # targets that count in the whole step, over all ranks; given with `scored`

    def weights(self, data_ranks: int) -> list[float] | None:
        """What to multiply each micro batch's mean loss by, so that the mean over micro batches and data ranks is
        the sum over all scored targets of the step divided by their number. None where every target is scored:
        all are 1 then.

        n scored targets of N, A micro batches, R ranks: n A R / N, since (1 / A R) sum(w mean) = sum(n mean) / N.
        """
        if self.scored is None or self.scored_tokens is None:
            return None
        counts = self.scored.reshape(len(self.scored), -1).sum(1)
        return [float(count) * len(counts) * data_ranks / self.scored_tokens for count in counts.tolist()]


class Batches(Protocol):
    """Batches of one rank from any step on (steps count from 1)."""

    def __call__(self, first_step: int) -> Iterator[Batch]: ...


def open_batches(config: RunConfig, rank: int) -> Batches:
    """The data order of the run's mixture. Step n of training is step n - 1 of the order.

    Raises:
        MissingError, IntegrityError: manifests or shards are absent or have changed.
    """
    workspace = Workspace(config.workspace)
    refs = Refs(workspace)
    mixture = refs.load(config.mixture)
    opened = open_shards(Store(workspace.store), map(refs.load, config.shards.values()), config.reading)
    store, readers = opened.store, opened.readers
    order = Order(mixture)
    loader = Loader(
        order,
        readers,
        open_layouts(
            store, refs.load, mixture, {name: readers[name].tokens for name in order.buckets if name in readers}
        ),
        global_batch=config.steps,
        micro_batch=config.micro_batch_sequences,
        rank=place_of(config.parallel, config.ranks, rank).data,
        world=config.data_ranks,
    )

    def stream(first_step: int) -> Iterator[Batch]:
        with fetching_ahead(opened, loader, first_step - 1, config.reading.ahead):
            for share in loader.shares(first_step - 1, config.total_steps):
                yield shortened(_batch(share, config.micro_batch_sequences), config.steps.length(share.step))

    return stream


def _batch(share: Share, micro_batch: int) -> Batch:
    """A rank's share of a step, in micro batches: views."""
    size = share.tokens.shape[-1]
    shape = (-1, micro_batch, size)
    tokens, segments = share.tokens.reshape(shape), share.segments.reshape(shape)
    if share.scored is None:
        return Batch(tokens, segments)
    return Batch(tokens, segments, share.scored.reshape(-1, micro_batch, size - 1), share.scored_tokens)


def shortened(batch: Batch, length: int) -> Batch:
    """The same tokens in the same order in rows of `length` tokens and one more: [A, M S / length, length + 1].

    Neighbours share a token as sequences do, so that every target stays one. Rows know nothing of each other:
    attention and positions begin anew in each (Li et al., arXiv:2108.06084, "sequence length warmup").
    """
    sequence_tokens = batch.tokens.shape[-1] - 1
    if length == sequence_tokens:
        return batch
    starts = np.arange(0, sequence_tokens, length)[:, None] + np.arange(length + 1)  # [S / length, length + 1]
    tokens, segments = (
        column[..., starts].reshape(len(column), -1, length + 1) for column in (batch.tokens, batch.segments)
    )
    scored = None if batch.scored is None else batch.scored.reshape(len(tokens), -1, length)
    return Batch(tokens, segments, scored, batch.scored_tokens)


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


def fingerprint_of(batch: Batch, place: Place) -> tuple[int, int]:
    """Two 32-bit words that identify content and position; summed over ranks they stay exact in FP64.

    A sum over the rows of the global batch of a hash of row number and row, so that the total over ranks is the
    same on any number of them, however they divide the model. Ranks that see what another sees add nothing.
    """
    if not place.leads:
        return 0, 0
    tokens, segments = (array.reshape(-1, array.shape[-1]) for array in (batch.tokens, batch.segments))
    scored = None if batch.scored is None else batch.scored.reshape(len(tokens), -1)
    first, second = 0, 0
    for row in range(len(tokens)):
        digest = hashlib.sha256((place.data * len(tokens) + row).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(tokens[row]).data)
        digest.update(np.ascontiguousarray(segments[row]).data)
        if scored is not None:
            digest.update(np.ascontiguousarray(scored[row]).data)
        words = digest.digest()
        first += int.from_bytes(words[:4], "little")
        second += int.from_bytes(words[4:8], "little")
    return first % 2**32, second % 2**32
