"""Suites are decided by plain comparisons; a process is started for none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plinth_assets.framework import Expect, Suite, between, equal_columns, evaluate, no_nulls, rows_between

ROWS = [{"documents": 5, "sidecar": 5, "rate": 0.01}, {"documents": 7, "sidecar": 6, "rate": 0.9}]


def test_critical_failures_block_and_name_what_was_found() -> None:
    outcome = evaluate(Suite("s", ROWS, [equal_columns("documents", "sidecar"), between("rate", 0, 0.05)]))
    assert outcome.blocked
    assert outcome.evaluated == 2
    assert outcome.failures == (
        "s: documents is 7, sidecar is 6; expected equal values",
        "s: rate is 0.9, expected 0 to 0.05",
    )


def test_warnings_do_not_block() -> None:
    outcome = evaluate(Suite("s", ROWS, [between("rate", 0, 0.05, "warning"), rows_between(1)]))
    assert not outcome.blocked
    assert len(outcome.warnings) == 1


def test_an_expectation_that_is_declared_twice_is_evaluated_twice() -> None:
    assert evaluate(Suite("s", ROWS, [rows_between(1), rows_between(1)])).evaluated == 2


def test_each_failure_is_a_sentence_with_bucket_value_and_limit() -> None:
    rows = [
        {"bucket": "few", "trained": 0, "rate": 0.5, "in": 3, "out": 2},
        {"bucket": "many", "trained": 1_000, "rate": None, "in": 1, "out": 1},
    ]
    expected = [
        between("trained", 1, None),
        between("trained", 1, 5, "warning"),
        no_nulls("rate"),
        rows_between(3),
        equal_columns("in", "out"),
        between("rate", None, 0.05, because=["few: half of it failed"]),
    ]
    outcome = evaluate(Suite("s", rows, expected))
    assert outcome.failures == (
        "few: trained is 0, expected at least 1",
        "many: rate is missing",
        "s: 2 rows, expected at least 3",
        "few: in is 3, out is 2; expected equal values",
        "few: half of it failed",
    )
    assert outcome.warnings == ("few: trained is 0, expected 1 to 5", "many: trained is 1,000, expected 1 to 5")


@pytest.mark.parametrize("item", [no_nulls("absent"), between("absent", 0, 1), equal_columns("rate", "absent")])
def test_a_missing_column_is_a_failure_not_a_pass(item: Expect) -> None:
    assert evaluate(Suite("s", ROWS, [item])).failures == ("s: no column absent",)
    assert evaluate(Suite("s", [], [item])).blocked


def test_an_empty_table_is_a_failure_where_rows_are_expected() -> None:
    assert evaluate(Suite("s", [], [rows_between(1)])).failures == ("s: 0 rows, expected at least 1",)


def test_text_is_outside_every_interval() -> None:
    outcome = evaluate(Suite("s", [{"n": "many"}], [between("n", 0, 1)]))
    assert outcome.failures == ("many: n is many, expected 0 to 1",)


def test_an_expectation_of_no_known_kind_is_a_defect() -> None:
    with pytest.raises(ValueError, match="ColumnValuesToBeNull"):
        evaluate(Suite("s", ROWS, [Expect("ColumnValuesToBeNull", {"column": "rate"})]))


def test_the_process_that_decides_imports_neither_great_expectations_nor_pandas() -> None:
    code = (
        "import sys; from plinth_assets.framework import *\n"
        "import plinth_assets.framework.data_docs\n"
        "assert evaluate(Suite('s', [{'n': 1}], [between('n', 2, 3)])).blocked\n"
        "print([name for name in ('great_expectations', 'pandas', 'dagster') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
