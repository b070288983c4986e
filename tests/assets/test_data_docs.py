"""Great Expectations evaluates what has been decided, for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from plinth import processes
from plinth.errors import CheckFailedError
from plinth.storage import atomic
from plinth.storage.workspace import Workspace
from plinth_assets.framework import Suite, between, data_docs, docs_index, equal_columns, no_nulls, rows_between
from plinth_assets.framework.data_docs import contradictions, store, write_pages

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
ROWS = [{"documents": 5, "sidecar": 5, "rate": 0.01}, {"documents": 7, "sidecar": 6, "rate": 0.9}]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Workspace(tmp_path).ensure().root


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started."""
    found, start = list[subprocess.Popen[bytes]](), processes.start

    def kept(command: list[str], *needs: str, **options: Any) -> Any:
        found.append(start(command, *needs, **options))
        return found[-1]

    data_docs.end()
    monkeypatch.setattr(processes, "start", kept)
    yield found
    data_docs.end()


def test_it_agrees_with_the_plain_comparisons(root: Path) -> None:
    cells = (None, 1, 2, -0.5, float("inf"), True)
    pairs = dict(enumerate(product(cells, repeat=2)))
    row = {f"{side}{at}": cell for at, pair in pairs.items() for side, cell in zip("ab", pair, strict=True)}
    suites = [Suite("pairs", [row], [equal_columns(f"a{at}", f"b{at}") for at in pairs])]
    expected = [
        *(between("a", low, high) for low, high in ((0, 1), (0, None), (None, 1.5), (1, 1), (0.5, float("inf")))),
        *(no_nulls("b"), rows_between(1), rows_between(0, 1), rows_between(2, 2), equal_columns("a", "b")),
    ]
    tables = [[{"a": cell, "b": cell}] for cell in cells]
    tables += [[{"a": 1, "b": 1}, {"a": 2}], [{"a": 1}], [{"a": None}, {"a": 3, "b": 3.0}], [], [{"a": "text", "b": 1}]]
    for suite in (*suites, *(Suite("s", rows, expected) for rows in tables)):
        assert contradictions(suite, store(suite, root)) == [], suite.rows


def test_one_process_stores_and_shows_the_suites_of_a_run_and_one_that_dies_is_a_line(
    root: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    lost = Suite("lost", ROWS, [rows_between(2, 2)])
    data_docs.file(Workspace(root), lost)
    started[0].kill()
    data_docs.file(Workspace(root), lost)
    assert data_docs.finish() == ["Data Docs are incomplete: the process that writes them exited with -9"]
    for name in ("first", "second"):
        data_docs.file(Workspace(root), Suite(name, ROWS, [rows_between(2, 2), no_nulls("rate")]))
    assert data_docs.finish() == []
    pages = docs_index(Workspace(root))
    assert "first" in pages.read_text()
    assert len(list(pages.parent.glob("validations/second/**/*.html"))) == 1
    assert data_docs.finish() == []
    data_docs.file(Workspace(root), Suite("second", ROWS, [rows_between(2, 2)]))
    assert data_docs.finish() == []
    assert len(list(pages.parent.glob("validations/second/**/*.html"))) == 2
    assert len(started) == 2
    (root / "gx").rename(root / "gx.kept")
    (root / "gx").write_text("no folder")
    data_docs.file(Workspace(root), lost)
    assert data_docs.finish() == ["Data Docs are incomplete: the process that writes them exited with 1"]


def test_the_process_answers_what_differs_once() -> None:
    """Where Great Expectations finds a failure that the run did not; the next question hears of it no more."""
    suite = Suite("s", [{"a": 1}], [between("a", 0, 2)])
    code = (
        "from plinth_assets.framework import data_docs as d\n"
        "d.store = lambda suite, root: frozenset({('ExpectColumnValuesToBeBetween', d._arguments("
        "suite.expectations[0].arguments))})\n"
        "d._great_expectations = d.write_pages = lambda *_: None\n"
        "d.main()\n"
    )
    asked = json.dumps({"root": "/nowhere", "suite": asdict(suite)}) + "\n\n\n"
    done = subprocess.run([sys.executable, "-c", code], input=asked, capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    assert [one.partition(" on ")[0] for one in first] == ["s: Great Expectations disagrees"]
    assert second == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_process_that_was_begun_in_vain_is_ended_at_once(root: Path, started: list[subprocess.Popen[bytes]]) -> None:
    data_docs.begin()
    data_docs.begin()
    assert len(started) == 1
    assert data_docs.finish() == []
    data_docs.end()
    assert started[0].returncode == -signal.SIGKILL
    data_docs.begin()
    data_docs.file(Workspace(root), Suite("first", ROWS, [rows_between(2, 2)]))
    assert data_docs.finish() == []
    assert len(started) == 2


def test_a_verdict_that_differs_is_named() -> None:
    suite = Suite("s", ROWS, [rows_between(2, 2), no_nulls("rate")])
    named = contradictions(suite, frozenset({("ExpectColumnValuesToNotBeNull", "[('column', 'rate')]")}))
    what = "ExpectColumnValuesToNotBeNull [('column', 'rate')]"
    assert named == [f"s: Great Expectations disagrees on {what}"]


def test_only_what_has_no_page_gets_one(root: Path) -> None:
    suite = Suite("s", ROWS, [rows_between(2, 2)])
    store(suite, root)
    (page,) = write_pages(root, ["s"]).parent.glob("validations/s/**/*.html")
    page.write_text("kept")
    store(suite, root)
    write_pages(root, ["s"])
    assert page.read_text() == "kept"
    assert len(list(page.parents[2].glob("**/*.html"))) == 2


def test_each_expectation_is_built_and_stored_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import great_expectations as gx

    built = []

    class Counted(gx.expectations.ExpectColumnValuesToBeBetween):
        def __init__(self, **arguments: Any) -> None:
            built.append(arguments["column"])
            super().__init__(**arguments)

    monkeypatch.setattr(gx.expectations, "ExpectColumnValuesToBeBetween", Counted)
    columns = ["documents", "sidecar", "rate"]
    store(Suite("s", ROWS, [between(column, 0, 9) for column in columns]), root)
    assert built[:3] == columns
    first = len(built)
    store(Suite("s", ROWS, [between("rate", 0, 9)]), root)
    assert built[first] == "rate"


def test_a_suite_emptied_in_the_workspace_while_it_runs_is_evaluated_and_stored_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from great_expectations.data_context.store import ExpectationsStore

    suite = Suite("s", ROWS, [equal_columns("documents", "sidecar"), between("rate", 0, 0.05)])
    store(suite, root)
    (stored,) = root.glob("gx/**/expectations/s.json")
    whole = json.loads(stored.read_text())
    assert len(whole["expectations"]) == 2
    real = ExpectationsStore.get

    def emptied(kept: Any, key: Any) -> Any:
        stored.write_text(json.dumps({**whole, "expectations": []}))
        return real(kept, key)

    with monkeypatch.context() as patched:
        patched.setattr(ExpectationsStore, "get", emptied)
        assert len(store(suite, root)) == 2
    store(suite, root)
    assert len(json.loads(stored.read_text())["expectations"]) == 2


def test_a_suite_of_which_expectations_are_not_evaluated_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import great_expectations as gx

    run = gx.ValidationDefinition.run

    def short(definition: Any, **arguments: Any) -> Any:
        done = run(definition, **arguments)
        done.results.pop()
        return done

    monkeypatch.setattr(gx.ValidationDefinition, "run", short)
    with pytest.raises(CheckFailedError, match="suite s was not evaluated in full"):
        store(Suite("s", ROWS, [rows_between(1), no_nulls("rate")]), root)


def test_what_the_import_puts_off_is_there_at_first_use(root: Path) -> None:
    store(Suite("s", ROWS, [rows_between(1)]), root)
    from great_expectations.expectations.core import expect_column_kl_divergence_to_be_less_than as divergence

    assert divergence.stats.entropy([1, 1], base=2) == pytest.approx(1)
    assert divergence.alt.Chart().mark_bar().to_dict()["mark"] == {"type": "bar"}


def test_a_grammar_is_compiled_when_it_is_used(tmp_path: Path) -> None:
    grammar = "print('compiled')\ndef is_valid_syntax(term, text): return term == 'iri' and ' ' not in text\n"
    (tmp_path / "rfc3987_syntax.py").write_text(grammar)
    code = (
        "from plinth_assets.framework.data_docs import PUT_OFF, put_off\nwith put_off(PUT_OFF): import jsonschema\n"
        "print('imported')\nchecker = jsonschema.FormatChecker()\n"
        "print(*(checker.conforms(text, 'iri') for text in ('https://example.org', 'no iri')))"
    )
    path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "platform")))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.split() == ["imported", "compiled", "True", "False"]


def test_what_is_stored_is_stored_by_one_process_at_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import great_expectations as gx

    free, run = [], gx.ValidationDefinition.run

    def watched(definition: Any, **arguments: Any) -> Any:
        fd = atomic.try_take(root / data_docs.LOCK)
        free.append(fd is not None)
        if fd is not None:
            os.close(fd)
        return run(definition, **arguments)

    monkeypatch.setattr(gx.ValidationDefinition, "run", watched)
    store(Suite("s", ROWS, [no_nulls("documents")]), root)
    assert free == [False]
