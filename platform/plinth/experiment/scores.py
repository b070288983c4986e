"""Scores of one run of an arm: what effects, stopping and the page of an experiment read.

D  documents of the test text
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError

Floats = NDArray[np.float64]
Status = Literal["finished", "failed", "diverged", "stopped"]

FINISHED: Status = "finished"


@dataclass(frozen=True)
class ArmScores:
    """One run: an arm at a size with a seed.

    Args:
        arm, size, seed: of which run.
        status: `finished`, or how it ended otherwise; `reason` says why.
        documents: identifiers of the test documents, 32 hexadecimal digits each, [D].
        slices: the slice of each document, [D].
        bytes: of each document, [D]; 1 where a score is averaged instead of divided by length.
        bits: of each document under the model, [D]; empty where the run did not finish.
        tokens, flops, seconds: what it cost; seconds are rank-seconds.
        curve: optimizer step, tokens so far, bits per byte.

    Raises:
        IntegrityError: columns of different lengths, a document twice, or a size that is not above 0.
    """

    arm: str
    size: str
    seed: int
    status: Status
    reason: str = ""
    documents: NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=np.str_))
    slices: NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=np.str_))
    bytes: Floats = field(default_factory=lambda: np.empty(0))
    bits: Floats = field(default_factory=lambda: np.empty(0))
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    curve: Sequence[tuple[int, int, float]] = ()

    def __post_init__(self) -> None:
        columns = {"documents": self.documents, "slices": self.slices, "bytes": self.bytes}
        if self.status == FINISHED or len(self.bits):
            columns["bits"] = self.bits
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise IntegrityError(
                f"the scores of {self.name} are not of one set of documents",
                found=", ".join(f"{count} {name}" for name, count in lengths.items()),
                expected="columns of one length",
            )
        if len(np.unique(self.documents)) < len(self.documents):
            raise IntegrityError(f"the scores of {self.name} name a document twice")
        if len(self.bytes) and not (np.isfinite(self.bytes) & (self.bytes > 0)).all():
            raise IntegrityError(f"the scores of {self.name} hold a document without bytes", expected="at least 1 each")

    @property
    def name(self) -> str:
        """The run in words."""
        return f"arm {self.arm}, size {self.size}, seed {self.seed}"

    @property
    def trouble(self) -> str:
        """Why no score of this run can be used, or nothing; a score that is no number is such a reason."""
        if self.status != FINISHED:
            return f"{self.status}: {self.reason}" if self.reason else self.status
        if not len(self.bits):
            return "failed: no document was scored"
        bad = int((~np.isfinite(self.bits)).sum())
        return f"diverged: the loss of {bad} of {len(self.bits)} documents is no number" if bad else ""
