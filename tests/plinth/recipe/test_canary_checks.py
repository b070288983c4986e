"""Canaries that could not be measured are found when the recipe is read: rows that cut them, sequences of no step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.recipe.load import check
from plinth_jobs.recipes import find

#: 64 sequences of 64 tokens, sixteen steps of four.
RIGHT = {"sequence_tokens": 64, "total_tokens": 64 * 64}


def problems(folder: Path, mixture: dict[str, int], training: dict[str, Any], canaries: bool = True) -> dict[str, str]:
    """Key and message of all that is wrong with a recipe."""
    path = folder / "recipe.yaml"
    corpus = {"corpus": {"canaries": {"count": 128}}} if canaries else {}
    text = {"extends": str(find("tiny.yaml")), "name": "planted", "mixture": mixture, "training": training, **corpus}
    path.write_text(yaml.safe_dump(text))
    return {problem.key: problem.message for problem in check(path)[1]}


STEPS = {"global_batch_sequences": 4, "micro_batch_sequences": 2}


def test_rows_that_documents_divide_and_steps_that_take_all(tmp_path: Path) -> None:
    assert problems(tmp_path, RIGHT, STEPS) == {}


def test_rows_that_no_document_divides(tmp_path: Path) -> None:
    mixture = {"sequence_tokens": 67, "total_tokens": 67 * 64}
    found = problems(tmp_path, mixture, STEPS)
    assert "lengths 67 have no common divisor from 12 to 48" in found.pop("corpus.canaries")
    assert found == {}
    assert problems(tmp_path, mixture, STEPS, canaries=False) == {}


@pytest.mark.parametrize(("sequences", "left"), [(65, 1), (67, 3)])
def test_the_last_step_takes_every_sequence(tmp_path: Path, sequences: int, left: int) -> None:
    mixture = RIGHT | {"total_tokens": 64 * sequences}
    found = problems(tmp_path, mixture, STEPS)
    assert f"the last {left} sequences do not fill a step" in found["mixture.total_tokens"]
    assert found["mixture.total_tokens"].endswith("expected 4096")
    assert problems(tmp_path, mixture, STEPS, canaries=False) == {}
