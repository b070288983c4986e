"""Batches on a rank. Each batch is sent to the ranks that divide a model, and expanded on the device to the model's
input.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from plinth.errors import PlinthError
from plinth.model.loss import IGNORED
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.parallel.topology import Axis, place_of, ranks_of

# Batches of one data replica: its first rank reads them and sends them to the others.
#
#     first rank   shards ─► reader ─► exchange thread ─┬─► queue ─► step
#                                                       │ gloo, host to host
#     the others                       exchange thread ◄┴─► queue ─► step
#
# Ranks that divide a model (tensor, sequence and pipeline ranks) train on the same rows, so one of them opens, checks
# and reads each shard. A batch is sent as stored, about two bytes per token, `DEPTH` steps ahead, by a thread and a
# process group of its own, independent of the steps' collectives and the device.
#
# Every rank of a replica takes the same steps. The number of sent batches follows from the number of taken ones, so the
# ranks also agree on it if the stream is left early (a rollback, a stop), without another message.
#
# Does not belong here: selection of rows (data), reading (tokens.reading).

#: Number of batches that are sent ahead.
DEPTH = 2

#: Seconds that a rank that leaves a stream waits for the other ranks to leave. A failed rank never leaves.
LEAVE_S = 5.0

REPLICA: tuple[Axis, ...] = ("pipeline", "sequence", "tensor")

Wanted = SimpleQueue[bool]
Ready = SimpleQueue[StepBatch | BaseException | None]


def replica_batches(config: RunConfig, rank: int, opened: Callable[[], Batches]) -> Batches:
    """Return the batches of a rank, read once per replica. All ranks must call this.

    Args:
        opened: opens the batches of this rank's replica; only the first rank of each replica calls it.
    """
    replicas = ranks_of(config.parallel, config.ranks, REPLICA)
    if len(replicas[0]) == 1:
        return opened()
    groups = {tuple(members): dist.new_group(list(members), backend="gloo") for members in replicas}
    mine = next(members for members in groups if rank in members)
    return ReplicaBatches(groups[mine], opened() if place_of(config.parallel, config.ranks, rank).leads else None)


class ReplicaBatches:
    """Batches that the first rank of a group reads and sends to all ranks of the group, from any start step.

    Args:
        group: a gloo group of the replica that is used only here.
        source: the batches on the group's first rank; None on other ranks.
    """

    def __init__(self, group: Any, source: Batches | None) -> None:
        self._group, self._source = group, source
        self._before: threading.Thread | None = None

    def __call__(self, first_step: int) -> Iterator[StepBatch]:
        """Yield the batches from a start step. An error of the reader is raised on every rank of the replica."""
        wanted, ready = Wanted(), Ready()
        for _ in range(DEPTH):
            wanted.put(True)
        arguments = (self._before, first_step, wanted, ready)
        thread = threading.Thread(target=self._work, args=arguments, name="replica batches", daemon=True)
        self._before = thread
        thread.start()
        return _taken(thread, wanted, ready)

    def _work(self, before: threading.Thread | None, first_step: int, wanted: Wanted, ready: Ready) -> None:
        """Run in the thread: once the previous stream has ended, send or receive one batch per request."""
        if before is not None:
            before.join()
        source = None if self._source is None else self._source(first_step)
        try:
            while wanted.get():
                item = self._exchanged(None if source is None else _next(source))
                ready.put(item)
                if not isinstance(item, StepBatch):
                    return
        except BaseException as error:  # such as a lost rank: the error must reach the consumer of the thread
            ready.put(error)
        finally:
            if isinstance(source, Generator):
                source.close()

    def _exchanged(self, item: StepBatch | Exception | None) -> StepBatch | Exception | None:
        """Return the first rank's item on every rank, by a broadcast."""
        box = [item]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]


def _next(source: Iterator[StepBatch]) -> StepBatch | Exception | None:
    """Return the next batch, or None at the end. If the reader fails, return an error that can be sent to other
    ranks."""
    try:
        return next(source, None)
    except PlinthError as error:
        return error
    except Exception as error:
        return RuntimeError("".join(traceback.format_exception(error)))


def _taken(thread: threading.Thread, wanted: Wanted, ready: Ready) -> Iterator[StepBatch]:
    """Yield the batches that a thread prepares, and request one more batch for each."""
    try:
        while True:
            item = ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            wanted.put(True)
            yield item
    finally:
        wanted.put(False)
        thread.join(LEAVE_S)


# Expands stored rows, on the device, to the input of the model.
#
#     B  sequences    S  targets of a sequence    l  tokens of a row of the model, B S / l rows
#
# Two bytes per token are copied to the device. Nothing here waits for it.

#: Signed integer types of the same width, because devices support few operations on unsigned types. Ids of 32 bits are
# below 2^31.
_SIGNED = {2: np.int16, 4: np.int32, 8: np.int64}


class ModelInput(NamedTuple):
    """Input tensors of the model.

    Attributes:
        inputs, targets: ids [B S / l, l], int64; targets that are not scored are `IGNORED`.
        segments: [B S / l, l] int32, one number per document; None if not requested.
    """

    inputs: Tensor
    segments: Tensor | None
    targets: Tensor


def expand_batch(rows: CompactBatch, length: int, device: torch.device, *, segments: bool) -> ModelInput:
    """Return a batch on a device as 64-bit ids in rows of `length` tokens. If `segments`, also return each token's
    document."""
    width = rows.tokens.shape[1]
    ids = to_device(signed(rows.tokens), device).long()
    if rows.tokens.itemsize == 2:
        ids &= 0xFFFF
    targets = ids[:, 1:]
    if rows.unscored is not None:
        targets = targets.masked_fill(_mask_of_runs(rows.unscored, targets.shape, device), IGNORED)
    return ModelInput(
        _cut(ids[:, :-1], length),
        _cut(_segments(rows, device)[:, : width - 1], length) if segments else None,
        _cut(targets, length),
    )


def _segments(rows: CompactBatch, device: torch.device) -> Tensor:
    """Return, for each token, the number of documents that have started in its sequence so far [B, S + 1].

    The numbers are one higher than in `Expanded`.
    """
    begins = torch.zeros(rows.tokens.shape, dtype=torch.int32, device=device)
    begins.view(-1)[to_device(rows.starts, device).long()] = 1
    return begins.cumsum(1, dtype=torch.int32)


def _mask_of_runs(runs: np.ndarray, shape: torch.Size, device: torch.device) -> Tensor:
    """Return a bool mask that is True at the positions inside `runs` (begin and end, ascending, disjoint) of the flat
    array."""
    edges = torch.zeros(shape.numel() + 1, dtype=torch.int32, device=device)
    places = to_device(runs, device).long()
    edges.index_add_(0, places[:, 0], torch.ones_like(places[:, 0], dtype=torch.int32))
    edges.index_add_(0, places[:, 1], torch.full_like(places[:, 1], -1, dtype=torch.int32))
    return (edges.cumsum(0, dtype=torch.int32)[:-1] > 0).view(shape)


def _cut(array: Tensor, length: int) -> Tensor:
    return array if array.shape[1] == length else array.reshape(-1, length)


def signed(array: np.ndarray) -> np.ndarray:
    """Reinterpret unsigned integers as signed integers with the same bits."""
    return array.view(_SIGNED[array.itemsize])


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device without waiting. A copy of more than 64 KB from pageable memory may wait for the
    device."""
    held = torch.from_numpy(array)
    return (held.pin_memory() if device.type == "cuda" else held).to(device, non_blocking=True)
