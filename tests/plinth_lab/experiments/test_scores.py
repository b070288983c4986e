"""Scores of a run are whole, or are refused by name."""

from typing import Any

import numpy as np
import pytest

from plinth.errors import IntegrityError
from plinth_lab.experiments.effects import ArmScores

GIVEN: dict[str, Any] = {
    "arm": "web",
    "size": "4m",
    "seed": 1,
    "status": "finished",
    "documents": np.array(["a", "b"]),
    "slices": np.array(["x", "y"]),
    "bytes": np.array([3.0, 5.0]),
    "bits": np.array([2.0, 4.0]),
}
COLUMNS = ("documents", "slices", "bytes", "bits")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bits": np.ones(1)}, "have columns of different lengths"),
        ({"slices": np.array(["x"])}, "have columns of different lengths"),
        ({"documents": np.array(["a", "a"])}, "have a duplicate document"),
        ({"bytes": np.array([3.0, 0.0])}, "without bytes"),
        ({"bytes": np.array([3.0, np.nan])}, "without bytes"),
    ],
)
def test_broken_columns_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(IntegrityError, match=f"arm web, size 4m, seed 1 .*{said}"):
        ArmScores(**{**GIVEN, **changed})


@pytest.mark.parametrize(
    ("changed", "trouble"),
    [
        ({}, ""),
        ({"bits": np.array([2.0, np.nan])}, "diverged: the loss of 1 of 2 documents is not a number"),
        ({"status": "failed", "reason": "disk full", "bits": np.empty(0)}, "failed: disk full"),
        ({"status": "stopped", "bits": np.empty(0)}, "stopped"),
        ({name: GIVEN[name][:0] for name in COLUMNS}, "failed: no document was scored"),
    ],
)
def test_what_cannot_be_used_says_why(changed: dict[str, Any], trouble: str) -> None:
    assert ArmScores(**{**GIVEN, **changed}).trouble == trouble
