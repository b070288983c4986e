"""Suites run for real through Great Expectations."""

import json
import os

import pytest

from assets.framework import expectations
from assets.framework.expectations import Suite, between, build_docs, equal_columns, no_nulls, rows_between, validate
from plinth.errors import CheckFailedError
from plinth.storage import locks
from plinth.storage.workspace import Workspace

pytestmark = pytest.mark.slow
ROWS = [{"documents": 5, "sidecar": 5, "rate": 0.01}, {"documents": 7, "sidecar": 6, "rate": 0.9}]


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path).ensure()


def test_critical_failures_block_and_name_what_was_found(workspace):
    outcome = validate(Suite("s", ROWS, [equal_columns("documents", "sidecar"), between("rate", 0, 0.05)]), workspace)
    assert outcome.blocked
    assert outcome.evaluated == 2
    assert any("0.9" in line for line in outcome.failures)


def test_each_expectation_is_built_and_stored_once(workspace, monkeypatch):
    import great_expectations as gx

    built = []

    class Counted(gx.expectations.ExpectColumnValuesToBeBetween):
        def __init__(self, **arguments):
            built.append(arguments["column"])
            super().__init__(**arguments)

    monkeypatch.setattr(gx.expectations, "ExpectColumnValuesToBeBetween", Counted)
    columns = ["documents", "sidecar", "rate"]
    assert validate(Suite("s", ROWS, [between(column, 0, 9) for column in columns]), workspace).evaluated == 3
    assert built[:3] == columns
    first = len(built)
    assert validate(Suite("s", ROWS, [between("rate", 0, 9)]), workspace).evaluated == 1
    assert built[first] == "rate"


def test_a_suite_emptied_in_the_workspace_while_it_runs_blocks_and_is_stored_whole(workspace, monkeypatch):
    from great_expectations.data_context.store import ExpectationsStore

    suite = Suite("s", ROWS, [equal_columns("documents", "sidecar"), between("rate", 0, 0.05)])
    validate(suite, workspace)
    (stored,) = workspace.root.glob("gx/**/expectations/s.json")
    whole = json.loads(stored.read_text())
    assert len(whole["expectations"]) == 2
    real = ExpectationsStore.get

    def emptied(store, key):
        stored.write_text(json.dumps({**whole, "expectations": []}))
        return real(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(ExpectationsStore, "get", emptied)
        outcome = validate(suite, workspace)
    assert (outcome.blocked, outcome.evaluated) == (True, 2)
    validate(suite, workspace)
    assert len(json.loads(stored.read_text())["expectations"]) == 2


def test_a_suite_of_which_expectations_are_not_evaluated_is_refused(workspace, monkeypatch):
    import great_expectations as gx

    run = gx.ValidationDefinition.run

    def short(definition, **arguments):
        done = run(definition, **arguments)
        done.results.pop()
        return done

    monkeypatch.setattr(gx.ValidationDefinition, "run", short)
    with pytest.raises(CheckFailedError, match="suite s was not evaluated in full"):
        validate(Suite("s", ROWS, [rows_between(1), no_nulls("rate")]), workspace, keep=False)


def test_an_expectation_that_is_declared_twice_is_evaluated_twice(workspace):
    assert validate(Suite("s", ROWS, [rows_between(1), rows_between(1)]), workspace, keep=False).evaluated == 2


def test_warnings_do_not_block(workspace):
    outcome = validate(Suite("s", ROWS, [between("rate", 0, 0.05, "warning"), rows_between(1)]), workspace)
    assert not outcome.blocked
    assert len(outcome.warnings) == 1


def test_each_failure_is_a_sentence_with_bucket_value_and_limit(workspace):
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
    outcome = validate(Suite("s", rows, expected), workspace, keep=False)
    assert sorted(outcome.failures) == [
        "few: half of it failed",
        "few: in is 3, out is 2; expected equal values",
        "few: trained is 0, expected at least 1",
        "many: rate is missing",
        "s: 2 rows, expected at least 3",
    ]
    assert outcome.warnings == ("few: trained is 0, expected 1 to 5", "many: trained is 1,000, expected 1 to 5")


def test_a_missing_column_is_a_failure_not_a_pass(workspace):
    assert validate(Suite("s", ROWS, [no_nulls("absent")]), workspace).blocked


def test_an_empty_table_is_a_failure_where_rows_are_expected(workspace):
    assert validate(Suite("s", [], [rows_between(1)]), workspace).blocked


def test_the_same_suite_runs_again_in_another_context_and_docs_are_built(workspace):
    from assets.framework import expectations

    for _ in range(2):
        expectations._validator.cache_clear()
        assert not validate(Suite("s", ROWS, [rows_between(2, 2)]), workspace).blocked
    assert "s" in build_docs(workspace).read_text()


def test_what_the_import_puts_off_is_there_at_first_use(workspace):
    validate(Suite("s", ROWS, [rows_between(1)]), workspace)
    from great_expectations.expectations.core import expect_column_kl_divergence_to_be_less_than as divergence

    assert divergence.stats.entropy([1, 1], base=2) == pytest.approx(1)
    assert divergence.alt.Chart().mark_bar().to_dict()["mark"] == {"type": "bar"}


def test_what_is_stored_is_stored_by_one_process_at_a_time(workspace, monkeypatch):
    free, run = [], expectations._validated

    def watched(suite, root):
        fd = locks.try_take(workspace.root / expectations.LOCK)
        free.append(fd is not None)
        if fd is not None:
            os.close(fd)
        return run(suite, root)

    monkeypatch.setattr(expectations, "_validated", watched)
    for keep in (True, False):
        validate(Suite("s", ROWS, [no_nulls("documents")]), workspace, keep=keep)
    assert free == [False, True]
