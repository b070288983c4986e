"""Suites of expectations on statistics tables, never on documents.

A stage declares a `Suite` as data: a small table of its statistics and expectations of Great Expectations. `evaluate`
compares the table with them before the stage's manifest is published, so a manifest that fails a critical expectation
never becomes an input. `data_docs` has Great Expectations evaluate the same suite afterwards, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from plinth.storage.workspace import Workspace

Severity = Literal["critical", "warning"]


@dataclass(frozen=True)
class Expect:
    """One expectation: the GX class without its `Expect` prefix, its arguments, and how bad a failure is.

    `because` replaces the general sentence when it fails: lines that already name bucket, value and limit.
    """

    kind: str
    arguments: Mapping[str, Any]
    severity: Severity = "critical"
    because: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A statistics table (rows of plain values) and what must hold for it."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    expectations: Sequence[Expect] = field(default_factory=tuple)


@dataclass(frozen=True)
class SuiteOutcome:
    """The result of a suite: whether anything critical failed, and a line for every failure."""

    blocked: bool
    failures: tuple[str, ...]
    warnings: tuple[str, ...]
    evaluated: int


_BETWEEN, _NO_NULLS = "ColumnValuesToBeBetween", "ColumnValuesToNotBeNull"
_ROWS, _EQUAL = "TableRowCountToBeBetween", "ColumnPairValuesToBeEqual"


def between(
    column: str,
    low: float | None,
    high: float | None,
    severity: Severity = "critical",
    because: Iterable[str] = (),
) -> Expect:
    """Every value of a column lies in a closed interval; None leaves a side open."""
    bounds = {"column": column, "min_value": low, "max_value": high}
    return Expect(_BETWEEN, bounds, severity, tuple(because))


def no_nulls(column: str) -> Expect:
    """No value of a column is missing."""
    return Expect(_NO_NULLS, {"column": column})


def rows_between(low: int, high: int | None = None) -> Expect:
    """The table has a number of rows."""
    return Expect(_ROWS, {"min_value": low, "max_value": high})


def equal_columns(left: str, right: str) -> Expect:
    """Two columns agree in every row."""
    return Expect(_EQUAL, {"column_A": left, "column_B": right})


def evaluate(suite: Suite) -> SuiteOutcome:
    """Evaluate a suite over its table, as Great Expectations does: missing values are for `no_nulls` alone.

    Raises:
        ValueError: an expectation is of no known kind; a defect in the suite, not in the data.
    """
    found: dict[str, list[str]] = {"critical": [], "warning": []}
    for item in suite.expectations:
        found[item.severity] += breaches(suite, item)
    failures, warnings = found["critical"], found["warning"]
    return SuiteOutcome(bool(failures), tuple(failures), tuple(warnings), len(suite.expectations))


def breaches(suite: Suite, item: Expect) -> list[str]:
    """Return a sentence for each row that breaks an expectation, named by the row's words; none if it holds."""
    lines = _breaches(suite, item)
    return list(item.because) if lines and item.because else lines


def _breaches(suite: Suite, item: Expect) -> list[str]:
    arguments = item.arguments
    if item.kind == _ROWS:
        held = _inside(len(suite.rows), **arguments)
        return [] if held else [f"{suite.name}: {len(suite.rows)} rows, expected {_interval(**arguments)}"]
    columns = [value for name, value in arguments.items() if name.startswith("column")]
    if absent := [column for column in columns if not any(column in row for row in suite.rows)]:
        return [f"{suite.name}: no column {_words(column)}" for column in absent]
    if item.kind == _EQUAL:
        return [line for row in suite.rows if (line := _unequal(suite, row, *columns))]
    if item.kind == _NO_NULLS:
        lost = [row for row in suite.rows if _missing(row.get(columns[0]))]
        return [f"{_label(suite, row)}: {_words(columns[0])} is missing" for row in lost]
    if item.kind == _BETWEEN:
        low, high = arguments["min_value"], arguments["max_value"]
        return [line for row in suite.rows if (line := _outside(suite, row, columns[0], low, high))]
    raise ValueError(f"suite {suite.name} has an expectation of no known kind: {item.kind}")


def _unequal(suite: Suite, row: Mapping[str, Any], left: str, right: str) -> str:
    one, other = row.get(left), row.get(right)
    if one == other or (_missing(one) and _missing(other)):
        return ""
    return (
        f"{_label(suite, row)}: {_words(left)} is {_shown(one)}, {_words(right)} is {_shown(other)}; "
        "expected equal values"
    )


def _outside(suite: Suite, row: Mapping[str, Any], column: str, low: float | None, high: float | None) -> str:
    value = row.get(column)
    if _missing(value) or (isinstance(value, int | float) and _inside(value, low, high)):
        return ""
    return f"{_label(suite, row)}: {_words(column)} is {_shown(value)}, expected {_interval(low, high)}"


def _label(suite: Suite, row: Mapping[str, Any]) -> str:
    words = [value for value in row.values() if isinstance(value, str)]
    return " ".join(words) or suite.name


def _words(column: str) -> str:
    return column.replace("_", " ")


def _shown(value: Any) -> str:
    if _missing(value):
        return "missing"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _missing(value: Any) -> bool:
    return value is None or value != value


def _inside(value: float, min_value: float | None, max_value: float | None) -> bool:
    return (min_value is None or value >= min_value) and (max_value is None or value <= max_value)


def _interval(min_value: float | None, max_value: float | None) -> str:
    if max_value is None:
        return f"at least {_shown(min_value)}"
    if min_value is None:
        return f"at most {_shown(max_value)}"
    same = min_value == max_value
    return _shown(min_value) if same else f"{_shown(min_value)} to {_shown(max_value)}"


def docs_index(workspace: Workspace) -> Path:
    """First page of the Data Docs."""
    return workspace.root / "gx" / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"
