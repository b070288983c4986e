"""Where batches come from: the smallest interface between data order and training loop."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from plinth.errors import TrainingError
from plinth.training.config import RunConfig


class Batch(NamedTuple):
    """What one rank sees in one optimizer step.

    A  micro batches    M  sequences of a micro batch    S  tokens of a sequence
    """

    tokens: npt.NDArray[np.int64]  # [A, M, S + 1]: inputs and, shifted by one, targets
    segments: npt.NDArray[np.int32]  # [A, M, S + 1]: number of the document within its sequence


class Batches(Protocol):
    """Batches of one rank from any step on (steps count from 1)."""

    def __call__(self, first_step: int) -> Iterator[Batch]: ...


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
