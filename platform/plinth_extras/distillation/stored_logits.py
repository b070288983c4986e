"""Stored logits of a teacher, read by position: one record of fixed size per token, in memory-mapped part files.

    S  tokens of a sequence    k  stored tokens of a position    n  sequences

    part     positions of the data order, one after another; a position is a sequence of S records
    record   k token ids, ascending, 16 or 32 bits each | k + 1 log-probabilities: of these tokens, and of all others

Does not belong here: computing the logits (teacher); code that imports torch.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.extensions import late
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.sections import of
from plinth.storage.store import Store
from plinth.tokens.shards.index import map_file
from plinth.training import initial
from plinth.training.parameters.run import Training
from plinth_assets.framework import Stage, Stages, each, planted, shared_owner
from plinth_extras.distillation import Distillation

ASSET = "teacher_logits"
VERSION = "1"

#: Approximate size of a part, in bytes.
PART_BYTES = 64 * 2**20

PRECISIONS = {"fp16": np.float16, "fp32": np.float32}


class LogitRows(NamedTuple):
    """Logits of a teacher for several sequences: token ids [n, S, k], and log-probabilities [n, S, k + 1]."""

    ids: NDArray[Any]
    log_p: NDArray[Any]


def identified(training: Training) -> dict[str, int | float | str | bool]:
    """Return the parameters that, together with mixture and teacher, determine the stored bytes.

    `precision` is the teacher's precision: BF16 if the recipe sets BF16 for the run, otherwise FP32.
    """
    params = of(training, "distillation", Distillation)
    assert params is not None
    assert params.top_k is not None
    return {
        "top_k": params.top_k,
        "stored": params.stored,
        "temperature": params.temperature,
        "precision": "bf16" if training.precision == "bf16" else "fp32",
        "document_mask": training.model.document_mask,
    }


def record_of(top_k: int, vocab_size: int, precision: str) -> np.dtype[np.void]:
    """Return the NumPy dtype of the record of one token."""
    ids = np.uint16 if vocab_size <= 2**16 else np.int32
    return np.dtype([("ids", ids, (top_k,)), ("log_p", PRECISIONS[precision], (top_k + 1,))])


def part_positions(record: np.dtype[np.void], sequence_tokens: int) -> int:
    """Return the number of positions (sequences) in one part file."""
    return max(1, PART_BYTES // (record.itemsize * sequence_tokens))


class StoredLogits:
    """Reader of a teacher's stored logits, by position in the run's data order.

    Each part file is opened and verified when it is first read.

    Args:
        store: content store with the parts.
        made: manifest of `teacher_logits`.
    """

    def __init__(self, store: Store, made: Manifest) -> None:
        self._store, self._parts, self._mapped = store, made.parts, dict[int, NDArray[np.void]]()
        self._record = record_of(made.params["top_k"], made.stats["vocab_size"], made.params["stored"])
        self._tokens = int(made.stats["sequence_tokens"])
        self._count = made.parts[0].rows  # the same in every part except the last
        self._positions = int(made.stats["positions"])

    def rows(self, first: int, stop: int) -> LogitRows:
        """Return the stored logits of the positions from `first` up to, but not including, `stop`.

        Raises:
            MissingError: a position is not stored, or a part file is missing.
            IntegrityError: a part file has changed.
        """
        if not 0 <= first <= stop <= self._positions:
            raise MissingError(
                f"stored logits of positions {first} to {stop} do not exist",
                expected=f"positions from 0 to {self._positions}",
            )
        out = np.empty((stop - first, self._tokens), self._record)
        at = first
        while at < stop:
            number, offset = divmod(at, self._count)
            taken = self._part(number)[offset : offset + stop - at]
            out[at - first : at - first + len(taken)] = taken
            at += len(taken)
        return LogitRows(np.ascontiguousarray(out["ids"]), np.ascontiguousarray(out["log_p"]))

    def _part(self, number: int) -> NDArray[np.void]:
        if number not in self._mapped:
            data = map_file(self._store.open_path(self._parts[number].blob))
            self._mapped[number] = data.view(self._record).reshape(-1, self._tokens)
        return self._mapped[number]


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that stores the teacher's logits, or an empty list if the recipe does not set `top_k`."""
    learns = of(recipe.training, "distillation", Distillation)
    if learns is None or learns.top_k is None:
        return []
    return [
        Stage(
            asset=ASSET,
            deps=("mixture", "tokenizer", initial.TEACHER, *each(recipe, "shards"), *planted(recipe, "shards")),
            make=partial(late("plinth_extras.distillation.teacher:make"), recipe),
            version=VERSION,
            params=identified(recipe.training),
            group="training",
            description="The teacher's most probable next tokens at every position, and the total probability of all "
            "other tokens.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            present=_present,
            pool="training",
        )
    ]


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    return {name: made.stats[name] for name in ("positions", "bytes_per_token")} | {"bytes": made.bytes}


STAGES = Stages(name="teacher_logits", stages=stages, with_mixture=True)
