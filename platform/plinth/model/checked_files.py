"""Files of a model folder whose SHA-256 is known: the bytes in use are the bytes that were compared.

A file can be exchanged after it was verified. So it is read once, into memory of this process alone, and hashed there;
its tensors are views of that memory.

Does not belong here: who signed the digests (registry).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.storage import tensor_file
from plinth.storage.tensor_file import DTYPES

CHUNK_BYTES = 1 << 20
_TORCH = {safetensors: getattr(torch, ours) for ours, safetensors in DTYPES.items()}


def read(folder: Path, name: str, digests: Mapping[str, str]) -> NDArray[np.uint8]:
    """The bytes of a file, [bytes].

    Raises:
        CheckpointError: its digest is not known, or its bytes have another.
        OSError: it cannot be read.
    """
    digest, path = hashlib.sha256(), folder / name
    with path.open("rb", buffering=0) as stream:
        data = np.empty(os.fstat(stream.fileno()).st_size, np.uint8)
        view, at = data.data, 0
        while size := stream.readinto(view[at : at + CHUNK_BYTES]):
            digest.update(view[at : at + size])
            at += size
    if digest.hexdigest() != digests.get(name):
        raise CheckpointError(
            f"{path} is not the file that was verified",
            found=f"SHA-256 {digest.hexdigest()}",
            expected=f"SHA-256 {digests[name]}" if name in digests else f"one of {', '.join(sorted(digests))}",
            remedy="do not use this model: somebody exchanged the file after it was verified, or now",
        )
    return data


class CheckedTensors:
    """The tensors of a safetensors file in memory, with the methods of `safetensors.safe_open`.

    Raises:
        ValueError, KeyError, TypeError, RuntimeError: the bytes are not of that form.
    """

    def __init__(self, data: NDArray[np.uint8]) -> None:
        start, body = 8 + int.from_bytes(data[:8].tobytes(), "little"), torch.from_numpy(data)
        found = tensor_file.read_header(data[8:start].tobytes(), len(data))
        self._tensors = {name: _tensor(body, place) for name, place in found.items()}

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> Tensor:
        """A tensor, a view of the file's bytes."""
        return self._tensors[name]

    def get_slice(self, name: str) -> CheckedRows:
        """A tensor to be sliced."""
        return CheckedRows(self._tensors[name])


class CheckedRows:
    """A tensor of a file, as safetensors has slices."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        return list(self._tensor.shape)

    def __getitem__(self, rows: Any) -> Tensor:
        return self._tensor[rows]


def _tensor(body: Tensor, place: tensor_file.TensorPlace) -> Tensor:
    found, kind = body[place.at : place.end], _TORCH[place.dtype]
    aligned = found if place.at % kind.itemsize == 0 else found.clone()
    return aligned.view(kind).reshape(place.shape)
