"""Expands stored rows, on the device, to the input of the model.

    B  sequences    S  targets of a sequence    l  tokens of a row of the model, B S / l rows

Two bytes a token travel to the device. Nothing here waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plinth.model.loss import IGNORED
from plinth.tokens.reading.compact_batch import CompactBatch

#: Signed types of the same width; devices compute little with unsigned ones. Ids of 32 bits are below 2^31.
_SIGNED = {2: np.int16, 4: np.int32, 8: np.int64}


class ModelInput(NamedTuple):
    """The input of the model.

    Attributes:
        inputs, targets: ids [B S / l, l], int64; a target that is not scored is `IGNORED`.
        segments: [B S / l, l] int32, equal numbers are of one document; None where they were not requested.
    """

    inputs: Tensor
    segments: Tensor | None
    targets: Tensor


def expand_batch(rows: CompactBatch, length: int, device: torch.device, *, segments: bool) -> ModelInput:
    """Ids of 64 bits on a device, in rows of `length` tokens; with `segments`, the document of each token."""
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
    """[B, S + 1] how many documents of the sequence have begun: one more than their numbers in `Expanded`."""
    begins = torch.zeros(rows.tokens.shape, dtype=torch.int32, device=device)
    begins.view(-1)[to_device(rows.starts, device).long()] = 1
    return begins.cumsum(1, dtype=torch.int32)


def _mask_of_runs(runs: np.ndarray, shape: torch.Size, device: torch.device) -> Tensor:
    """Positions of the flat array that lie in runs (begin and end, ascending, apart or adjacent), as bool."""
    edges = torch.zeros(shape.numel() + 1, dtype=torch.int32, device=device)
    places = to_device(runs, device).long()
    edges.index_add_(0, places[:, 0], torch.ones_like(places[:, 0], dtype=torch.int32))
    edges.index_add_(0, places[:, 1], torch.full_like(places[:, 1], -1, dtype=torch.int32))
    return (edges.cumsum(0, dtype=torch.int32)[:-1] > 0).view(shape)


def _cut(array: Tensor, length: int) -> Tensor:
    return array if array.shape[1] == length else array.reshape(-1, length)


def signed(array: np.ndarray) -> np.ndarray:
    """Integers as signed ones of the same width and bits."""
    return array.view(_SIGNED[array.itemsize])


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """On a device, without a wait: from pageable memory a copy of more than 64 KB may wait for the device."""
    held = torch.from_numpy(array)
    return (held.pin_memory() if device.type == "cuda" else held).to(device, non_blocking=True)
