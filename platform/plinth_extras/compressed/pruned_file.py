"""Magnitude pruning without retraining: the smallest weights of every matrix are zero.

    pruned-50    half of every matrix of the blocks, wherever they lie in it
    pruned-2:4   two of every four neighbours in a row, the pattern that sparse tensor cores compute

As in the magnitude baseline of SparseGPT (arXiv:2301.00774, section 4) and Wanda (arXiv:2306.11695, `prune_magnitude`):
each matrix has its own threshold; embeddings, output and gains stay. The layout is unchanged, and so is the size of the
file: what is gained is gained by whoever computes with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torch import Tensor

from plinth.errors import CheckpointError
from plinth.model.folder import SavedWeights
from plinth.model.hugging_face import WEIGHTS
from plinth_extras.compressed.forms import write_tensors
from plinth_extras.compressed.torchao_file import is_quantised

#: Of four neighbours, those that stay.
_KEPT, _OF = 2, 4

_SHARE: Final = 0.5


def write(plain: Path, folder: Path, form: str) -> list[str]:
    """Write the model with its small weights at zero, in one file, everything else unchanged.

    Raises:
        CheckpointError: rows that do not divide into fours.
    """
    with SavedWeights(plain) as saved:
        tensors = {name: saved.tensor(name) for name in saved}
        for name, tensor in tensors.items():
            if is_quantised(name, tuple(tensor.shape)):
                tensors[name] = _pruned(tensor, name, form)
        write_tensors(folder / WEIGHTS, tensors)
    for path in sorted(plain.glob("*.json")):
        if not path.name.endswith("index.json"):
            shutil.copyfile(path, folder / path.name)
    return [WEIGHTS]


def read(plain: Path, folder: Path, form: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the file."""
    with SavedWeights(folder) as saved:
        for name in saved:
            yield name, saved.tensor(name)


def unstructured(weight: Tensor, share: float = _SHARE) -> Tensor:
    """`weight` with this share of its elements, the smallest in magnitude, at zero; of equal ones the first."""
    count = int(weight.numel() * share)
    smallest = weight.float().abs().flatten().argsort(stable=True)[:count]
    return weight.flatten().index_fill(0, smallest, 0).view_as(weight)


def structured(weight: Tensor) -> Tensor:
    """`weight` [rows, columns] with the two smallest of every four neighbours in a row at zero."""
    fours = weight.reshape(-1, _OF)
    smallest = fours.float().abs().argsort(dim=1, stable=True)[:, : _OF - _KEPT]
    return fours.scatter(1, smallest, 0).view_as(weight)


def _pruned(tensor: Tensor, name: str, form: str) -> Tensor:
    if form == "pruned-50":
        return unstructured(tensor)
    if tensor.shape[1] % _OF:
        found, expected = f"rows of {tensor.shape[1]} weights", f"a multiple of {_OF}"
        raise CheckpointError(f"{name} cannot be pruned 2:4", found=found, expected=expected)
    return structured(tensor)
