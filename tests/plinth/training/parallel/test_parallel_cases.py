"""Every combination of ways to divide a run is refused with a reason, or trains as one plain process does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.training.config import RunConfig

sys.path.insert(0, str(Path(__file__).parent))
import parallel_cases
import parallel_tables
import train_parallel_cases

AGAIN = "the refusals have changed: run tests/plinth/training/parallel/train_parallel_cases.py"


def test_every_pair_is_trained_here_or_refused() -> None:
    trained = parallel_cases.covered(parallel_cases.cover((), 2), 2)
    assert set(parallel_cases.interactions(2)) == trained | set(parallel_cases.refused(2))
    assert not trained & set(parallel_cases.refused(2))


def test_every_triple_was_trained_or_is_refused() -> None:
    """The record holds the difference from one process; a refused pair is not repeated for its triples."""
    record = json.loads(parallel_tables.RECORD.read_text())["cases"]
    by_name = {case.name: case for case in parallel_cases.cases()}
    cases = [by_name[name] for name in record]
    assert not [case.name for case in cases if case.refusals()], AGAIN
    no = [set(interaction) for strength in (2, 3) for interaction in parallel_cases.refused(strength)]
    missing = set(parallel_cases.interactions(3)) - parallel_cases.covered(cases, 3)
    assert not [parallel_cases.phrase(each) for each in missing if not any(one <= set(each) for one in no)], AGAIN
    assert not [
        name for name, off in record.items() if train_parallel_cases.Difference(*off).beyond(by_name[name].precision)
    ]


def test_every_refusal_names_what_is_expected() -> None:
    reasons = {reason for case in parallel_cases.cases() for reason in case.refusals()}
    assert len(reasons) > 10
    assert not [reason for reason in reasons if "; " not in reason or " expected " not in reason]


def test_the_documentation_has_these_tables() -> None:
    assert parallel_tables.written() == parallel_tables.tables(), AGAIN


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("strength", [1, 2], ids=["values", "pairs"])
def test_every_value_and_every_pair_trains_as_one_plain_process_does(
    make: Callable[..., RunConfig], strength: int
) -> None:
    cases = parallel_cases.cover((), strength)
    trained = dict(train_parallel_cases.train(cases, make, "aot_eager"))
    wrong = {case.name: difference.beyond(case.precision) for case, difference in trained.items()}
    assert len(trained) == len(cases)
    assert not {name: text for name, text in wrong.items() if text}
