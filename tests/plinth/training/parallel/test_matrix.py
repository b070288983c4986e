"""Every combination of ways to divide a run is refused with a reason, or trains as one plain process does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.training.config import RunConfig

sys.path.insert(0, str(Path(__file__).parent))
import matrix
import matrix_tables
import matrix_train

AGAIN = "what is refused has changed: run tests/plinth/training/parallel/matrix_train.py"


def test_every_pair_is_trained_here_or_refused() -> None:
    trained = matrix.covered(matrix.cover((), 2), 2)
    assert set(matrix.interactions(2)) == trained | set(matrix.refused(2))
    assert not trained & set(matrix.refused(2))


def test_every_triple_was_trained_or_is_refused() -> None:
    """On the record, with how far it was from one process; a refused pair is not said again of its triples."""
    record = json.loads(matrix_tables.RECORD.read_text())["cases"]
    by_name = {case.name: case for case in matrix.cases()}
    cases = [by_name[name] for name in record]
    assert not [case.name for case in cases if case.refusals()], AGAIN
    no = [set(interaction) for strength in (2, 3) for interaction in matrix.refused(strength)]
    missing = set(matrix.interactions(3)) - matrix.covered(cases, 3)
    assert not [matrix.phrase(each) for each in missing if not any(one <= set(each) for one in no)], AGAIN
    assert not [name for name, off in record.items() if matrix_train.Difference(*off).beyond(by_name[name].precision)]


def test_every_refusal_says_what_would_do() -> None:
    reasons = {reason for case in matrix.cases() for reason in case.refusals()}
    assert len(reasons) > 10
    assert not [reason for reason in reasons if "; " not in reason or " expected " not in reason]


def test_the_page_has_these_tables() -> None:
    assert matrix_tables.written() == matrix_tables.tables(), AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("strength", [1, pytest.param(2, marks=pytest.mark.exhaustive)], ids=["values", "pairs"])
def test_every_value_and_every_pair_trains_as_one_plain_process_does(
    make: Callable[..., RunConfig], strength: int
) -> None:
    cases = matrix.cover((), strength)
    trained = dict(matrix_train.train(cases, make, "aot_eager"))
    wrong = {case.name: difference.beyond(case.precision) for case, difference in trained.items()}
    assert len(trained) == len(cases)
    assert not {name: text for name, text in wrong.items() if text}
