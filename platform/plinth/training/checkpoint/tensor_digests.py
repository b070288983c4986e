"""Digests of the memory of tensors, also while that memory is filled.

A restore reads a piece of a file straight into the engine's memory and hashes that memory at once, while the cache
holds it: one pass proves the file and the copy, since what is hashed is what the engine holds.

Does not belong here: which tensors (snapshot), the reading (sharded_state).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from plinth.training.checkpoint.digest_tree import CHUNK_BYTES, Beat, silent
from plinth.training.checkpoint.writer.rank_part import digest_of_lines, tensor_line


def tensors_digest(tensors: Iterable[Tensor], beat: Beat = silent) -> str:
    """SHA-256 over tensors in order; equal to what a writer computes from the staged memory."""
    return digest_of_lines(line_of(str(index), tensor, beat) for index, tensor in enumerate(tensors))


def line_of(name: str, tensor: Tensor, beat: Beat = silent) -> str:
    """The line of a tensor in a digest of several."""
    return _Hashed(tensor).line(name, beat)


class FilledTensors:
    """Tensors that are filled, from front to back in whatever pieces, and hashed as they are.

    The result is that of `tensors_digest` after the last piece: a tensor on a device, and one of which a part was
    filled again after it was hashed, is hashed then.
    """

    def __init__(self) -> None:
        self._tensors: list[_Hashed] = []
        self._by_address: list[_Hashed] = []
        self._addresses: list[int] = []

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Begin with tensors, none of which is filled."""
        self._tensors = [_Hashed(tensor) for tensor in tensors]
        on_host = (one for one in self._tensors if one.tensor.is_cpu and one.tensor.is_contiguous())
        self._by_address = sorted(on_host, key=lambda one: one.address)
        self._addresses = [one.address for one in self._by_address]

    def filled(self, address: int, size: int) -> None:
        """Hash so many bytes of a tensor, which were filled, and what lies before them and was not.

        What is on a device, or of no tensor that is followed, is passed over.
        """
        index = bisect_right(self._addresses, address) - 1
        if index >= 0 and address + size <= self._addresses[index] + self._by_address[index].bytes:
            begin = address - self._addresses[index]
            self._by_address[index].reach(begin, begin + size)

    def digest(self, beat: Beat = silent) -> str:
        """SHA-256 over the tensors in order."""
        return digest_of_lines(one.line(str(index), beat) for index, one in enumerate(self._tensors))


class _Hashed:
    """A tensor whose first bytes are hashed."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.address, self.bytes = tensor, tensor.data_ptr(), tensor.numel() * tensor.element_size()
        self._digest, self._done, self._again = blake3(), 0, False
        self._data: Any = None  # its bytes, from the first use on

    def reach(self, begin: int, end: int) -> None:
        """The bytes from `begin` to `end` have come: hash all up to there, or all at last where some come again."""
        self._again |= begin < self._done
        if not self._again:
            self._hash(end, silent)

    def line(self, name: str, beat: Beat) -> str:
        """Its line, once no more changes."""
        if self._again:
            self._digest, self._done = blake3(), 0
        self._hash(self.bytes, beat)
        self._data = None  # of a tensor on a device it is a copy
        return tensor_line(name, str(self.tensor.dtype), self.tensor.shape, self._digest.hexdigest())

    def _hash(self, end: int, beat: Beat) -> None:
        self._data = bytes_of(self.tensor) if self._data is None else self._data
        for at in range(self._done, end, CHUNK_BYTES):
            self._digest.update(self._data[at : min(at + CHUNK_BYTES, end)])
            beat()
        self._done = max(self._done, end)


def bytes_of(tensor: Tensor) -> Any:
    """The tensor's memory, of one on the host without a copy."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
