"""Data order of a run as `torch` datasets, for a trainer that gives its rank, its world and its micro batch.

    B  sequences of a micro batch    S  tokens of a sequence    m  documents

A step's global batch has the sequences that `plinth run batch RUN STEP` lists. Rank r of W takes rows r G / W to
(r + 1) G / W of the G rows. The state is the number of steps taken. Both datasets open the shards in the process that
reads, so they can be sent to the workers of a `DataLoader`.

Batches are dictionaries in one of two forms. Labels are already shifted: label i is the token after input i, or -100
if it does not count in the loss. Attention must stay within documents.

    padded   `input_ids`, `labels` and `position_ids` [B, S]; positions restart at each document
    flat     the same as [B S], with `cu_seqlens` [m + 1] (int32) and `max_seqlen` for attention over ragged documents
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from plinth.errors import MissingError
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.tokens.reading.loader import Loader, prefetched
from plinth.tokens.reading.shard_sources import proved_batches
from plinth.training.config import RunConfig
from plinth.training.data import run_loader

Form = Literal["padded", "flat"]

#: Label of a target that does not count in the loss.
IGNORED = -100


def padded(batch: CompactBatch) -> dict[str, Any]:
    """Return a micro batch with one row per sequence."""
    rows, width = batch.tokens.shape
    shape = (rows, width - 1)
    return {name: column.reshape(shape) for name, column in _columns(batch).items()}


def flat(batch: CompactBatch) -> dict[str, Any]:
    """Return a micro batch as one row without padding between documents, with the starts of the documents."""
    starts = _starts(batch)
    return {
        **_columns(batch),
        "cu_seqlens": torch.from_numpy(starts.astype(np.int32)),
        "max_seqlen": int(np.diff(starts).max()),
    }


_FORMS = {"padded": padded, "flat": flat}


class StepBatches(IterableDataset[dict[str, Any]]):
    """Micro batches of one rank, in order, from any step. Use it with `DataLoader(…, batch_size=None)`.

    Each item also has `step`, counted from 1, and `scored_tokens`, the number of targets of the whole step that count
    in the loss, over all ranks: the sum of a step's losses divided by it is the step's mean loss on any number of
    ranks. With n workers, each yields every n-th micro batch, so the order of the loader is the same.

    Args:
        config: configuration of the run, for example `run.config`.
        rank, world: this rank among the ranks that read different data.
        micro_batch: number of sequences per micro batch.
        done: number of steps already taken, for example `run.resumed`.

    Raises:
        RecipeError: the global batch does not divide into ranks and micro batches; raised on reading.
        MissingError, IntegrityError: manifests or shards are absent or have changed; raised on reading.
    """

    def __init__(
        self, config: RunConfig, *, rank: int, world: int, micro_batch: int, done: int = 0, form: Form = "padded"
    ) -> None:
        self.config, self.rank, self.world, self.micro_batch = config, rank, world, micro_batch
        self.done, self.form = done, form

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        loader = run_loader(self.config, self.rank, self.world, self.micro_batch)
        steps = proved_batches(loader, self.done, self.config.total_steps, self.config.reading.ahead)
        number = 0
        for share in prefetched(steps, loader.prefetch):
            for index in range(len(share) // self.micro_batch):
                if number % stride == first:
                    made = _FORMS[self.form](share.micro_batch(index, self.micro_batch))
                    yield {**made, "step": share.step + 1, "scored_tokens": share.scored_tokens}
                number += 1

    def state_dict(self) -> dict[str, int]:
        """Return the state: the number of steps taken before the first item."""
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Start after the steps of a state, for example `{"done": run.resumed}`."""
        self.done = int(state["done"])


class OrderedSequences(Dataset[dict[str, Any]]):
    """Sequences of the whole run in order, for trainers that need a map-style dataset.

    Read without shuffling, with a constant global batch of G sequences, step n (counted from 1) has items (n - 1) G to
    n G, however the trainer divides them among its ranks. `batch_schedule` changes G.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def __len__(self) -> int:
        return self.config.steps.used

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items at several indices, which `DataLoader` asks for together."""
        return [self._item(index) for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config}  # workers open the shards themselves

    @cached_property
    def _loader(self) -> Loader:
        return run_loader(self.config, 0, 1, 1)

    def _item(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise MissingError(f"no sequence {index}", expected=f"0 to {len(self) - 1}")
        return {name: column[0] for name, column in padded(self._loader.at(index, index + 1)).items()}


def _columns(batch: CompactBatch) -> dict[str, torch.Tensor]:
    """Return inputs, labels and positions of a micro batch as flat int64 tensors."""
    labels = batch.tokens[:, 1:].astype(np.int64).reshape(-1)
    for begin, end in () if batch.unscored is None else batch.unscored.tolist():
        labels[begin:end] = IGNORED
    starts = _starts(batch)
    positions = np.arange(len(labels)) - np.repeat(starts[:-1], np.diff(starts))
    made = {"input_ids": batch.tokens[:, :-1].astype(np.int64).reshape(-1), "labels": labels, "position_ids": positions}
    return {name: torch.from_numpy(column) for name, column in made.items()}


def _starts(batch: CompactBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the first index of each document in the inputs [B S], and B S. A document that begins with a row's last
    token has no input."""
    width = batch.tokens.shape[1]
    rows, columns = np.divmod(batch.starts.astype(np.int64), width)
    inside = columns < width - 1
    return np.append(rows[inside] * (width - 1) + columns[inside], len(batch) * (width - 1))
