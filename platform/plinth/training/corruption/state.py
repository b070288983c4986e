"""Digests of tensors on their device, and a copy of a rank's state that can be put back.

A digest has 64 bits. It is not cryptographic, because hardware is not an attacker. A change of a single word is always
found, because each word is multiplied by an odd number (modulo 2^64); other changes are missed with a probability of
about 2^-32.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

import torch
from torch import Tensor

from plinth.errors import TrainingError
from plinth.training.checkpoint.staging import ALIGN, Arena, StagingLayout
from plinth.training.checkpoint.universal import COUNTERS, refresh_weights
from plinth.training.engine.engine import TrainingEngine

#: Words that share their factors with the words of other rows, and rows that are multiplied at once.
COLUMNS: Final = 4096
_ROWS: Final = 1024

_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the digest of tensors in order, as an int64 scalar on a device. The host does not wait for the device."""
    each = [digest_of(tensor).to(device) for tensor in tensors]
    return digest_of(torch.stack(each)) if each else torch.zeros((), dtype=torch.int64, device=device)


def digest_of(tensor: Tensor) -> Tensor:
    """Return the digest of one tensor's bytes, as an int64 scalar on its device."""
    words = tensor.detach().contiguous().view(-1).view(_WORDS[tensor.element_size()])
    if not len(words):
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    while True:
        words = torch.cat([_row_sums(block) for block in torch.split(words, COLUMNS * _ROWS)])
        if len(words) == 1:
            return words[0]


def _row_sums(words: Tensor) -> Tensor:
    """Return the weighted sum of each row of `COLUMNS` words."""
    whole = len(words) // COLUMNS * COLUMNS
    factors, rows, rest = _factors(words.device), words[:whole].view(-1, COLUMNS), words[whole:]
    sums = [(rows.long() * factors).sum(1)] if whole else []
    if len(rest):
        sums.append((rest.long() * factors[: len(rest)]).sum().view(1))
    return torch.cat(sums)


@cache
def _factors(device: torch.device) -> Tensor:
    """Return an odd factor for each column [COLUMNS]."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(-(2**62), 2**62, (COLUMNS,), generator=generator) * 2 + 1).to(device)


def weights_of(engine: TrainingEngine) -> list[Tensor]:
    """Return this rank's weights as the forward pass uses them. ZeRO-3 keeps its part, and small parameters whole."""
    parameters = list(engine.module.parameters())
    parts = [parameter.ds_tensor.data for parameter in parameters if hasattr(parameter, "ds_tensor")]
    return parts + [parameter.data for parameter in parameters if parameter.numel()]


class StateCopy:
    """Copy of this rank's master weights and optimizer state in host memory. All other weights follow from them."""

    def __init__(self) -> None:
        self._arena = Arena()
        self._layout = StagingLayout([])
        self._counters: dict[str, int] = {}

    def take(self, engine: TrainingEngine) -> None:
        """Copy the state as it is now."""
        tensors = list(engine.optimizer_tensors())
        if not all(tensor.is_contiguous() for tensor in tensors):  # a copy of it would not be put back
            raise TrainingError("a tensor of the training state is not contiguous, so no step can be replayed")
        self._layout = StagingLayout(tensors)
        self._layout.copy(self._arena.reserve(self._layout.bytes))
        self._counters = {name: int(getattr(engine.deepspeed, name)) for name in COUNTERS}

    @torch.no_grad()
    def put_back(self, engine: TrainingEngine) -> None:
        """Overwrite the state with the copy. All ranks must call this."""
        at = 0
        for span in self._layout.spans:
            size = span.end - span.begin
            target = torch.empty(0, dtype=torch.uint8, device=span.owner.device)
            target.set_(span.owner.untyped_storage(), span.begin, (size,), (1,))
            target.copy_(self._arena.block[at : at + size])
            at += -(-size // ALIGN) * ALIGN
        for name, value in self._counters.items():
            setattr(engine.deepspeed, name, value)
        refresh_weights(engine.deepspeed.optimizer)

    def release(self) -> None:
        """Forget the tensors, which the engine may replace."""
        self._layout = StagingLayout([])

    def close(self) -> None:
        """Free the memory of the copy."""
        self.release()
        self._arena.close()


def bits(number: Tensor) -> Tensor:
    """Return the bits of a scalar as int64."""
    return number.detach().double().reshape(1).view(torch.int64)[0]
