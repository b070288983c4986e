"""Great Expectations suites on statistics tables, never on documents.

A stage declares a `Suite` as data: a small table of its statistics and expectations by name. It is
validated before the stage's manifest is published, so a manifest that fails a critical expectation never becomes
an input. Results land in Data Docs under the workspace.

GX takes seconds to import and is imported only here, when a suite is run.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from plinth.errors import CheckFailedError
from plinth.storage import locks
from plinth.storage.workspace import Workspace

Severity = Literal["critical", "warning"]

#: Arguments that tell expectations of one kind apart.
_NAMED = frozenset({"column", "column_A", "column_B", "min_value", "max_value"})
#: In the workspace.
LOCK = "gx.lock"
#: GX keeps state of the process, and arms of an experiment may be checked at once.
_ONE_AT_A_TIME = threading.Lock()


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


def sentences(suite: Suite, failed: Expect) -> list[str]:
    """Describe a failed expectation in a sentence for each row that breaks it, named by the row's words."""
    if failed.because:
        return list(failed.because)
    arguments = failed.arguments
    if failed.kind == _ROWS:
        return [f"{suite.name}: {len(suite.rows)} rows, expected {_interval(**arguments)}"]
    if failed.kind == _EQUAL:
        left, right = arguments["column_A"], arguments["column_B"]
        return [
            f"{_label(suite, row)}: {_words(left)} is {_shown(row.get(left))}, {_words(right)} is "
            f"{_shown(row.get(right))}; expected equal values"
            for row in suite.rows
            if row.get(left) != row.get(right)
        ]
    column = arguments["column"]
    if failed.kind == _NO_NULLS:
        return [f"{_label(suite, row)}: {_words(column)} is missing" for row in suite.rows if _missing(row.get(column))]
    low, high = arguments["min_value"], arguments["max_value"]
    return [
        f"{_label(suite, row)}: {_words(column)} is {_shown(row[column])}, expected {_interval(low, high)}"
        for row in suite.rows
        if not _missing(row.get(column)) and not _inside(row[column], low, high)
    ]


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


def _inside(value: Any, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


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


def validate(suite: Suite, workspace: Workspace, *, keep: bool = True) -> SuiteOutcome:
    """Run a suite over its table and store the result for Data Docs.

    Args:
        keep: store it; not where several processes run the same suites.

    Raises:
        AttributeError: for an expectation that GX lacks; a defect in the suite, not in the data.
        CheckFailedError: GX did not evaluate each expectation once.
    """
    # Runs of Dagster are processes, and two may check one asset: GX writes its files without a lock of its own.
    with _ONE_AT_A_TIME, locks.locked(workspace.root / LOCK) if keep else nullcontext():
        return _validated(suite, workspace.root if keep else None)


def _validated(suite: Suite, root: Path | None) -> SuiteOutcome:
    gx, validator = _great_expectations(), _validator(root)
    import pandas as pd

    context = validator.context
    frame = pd.DataFrame([dict(row) for row in suite.rows])
    expectations = [
        getattr(gx.expectations, f"Expect{item.kind}")(**item.arguments, severity=item.severity)
        for item in suite.expectations
    ]
    stored = context.suites.add_or_update(gx.ExpectationSuite(name=suite.name, expectations=expectations))
    definition = gx.ValidationDefinition(name=suite.name, data=validator.batch, suite=stored)
    context.validation_definitions.add_or_update(definition)
    results = definition.run(batch_parameters={"dataframe": frame}).results
    if len(results) != len(suite.expectations):
        raise CheckFailedError(
            f"suite {suite.name} was not evaluated in full",
            found=f"{len(results)} results",
            expected=f"{len(suite.expectations)}, one per expectation",
            remedy="run the stage again; report it if it happens again",
        )
    if root:
        _docs(root).suites.add_or_update(stored)
    return _outcome(suite, results)


def build_docs(workspace: Workspace) -> Path:
    """Build the Data Docs pages; returns their first page."""
    _docs(workspace.root).build_data_docs()
    return docs_index(workspace)


def _outcome(suite: Suite, results: Sequence[Any]) -> SuiteOutcome:
    failures: list[str] = []
    warnings: list[str] = []
    known = {(f"Expect{item.kind}", _arguments(item.arguments)): item for item in suite.expectations}
    for result in results:
        if result.success:
            continue
        config = result.expectation_config
        item = known.get((_class_name(config.type), _arguments(config.kwargs)))
        raised = (result.exception_info or {}).get("exception_message")
        observed = result.result.get("observed_value", result.result.get("partial_unexpected_list"))
        lines = sentences(suite, item) if item and not raised else []
        warned = str(config.severity).upper().endswith("WARNING")
        (warnings if warned else failures).extend(lines or [f"{config.type}: found {raised or observed}"])
    return SuiteOutcome(bool(failures), tuple(failures), tuple(warnings), len(results))


def _class_name(kind: str) -> str:
    """The class of an expectation: GX reports `expect_column_values_to_be_between`."""
    return "".join(word.capitalize() for word in kind.split("_"))


def _arguments(given: Mapping[str, Any]) -> str:
    """Arguments that were given, in one form: GX drops None and writes bounds as floats."""
    own = {key: value for key, value in given.items() if value is not None and key in _NAMED}
    return repr(sorted((key, float(value) if isinstance(value, int) else value) for key, value in own.items()))


@dataclass(frozen=True)
class _Validator:
    """What validates the suites of a workspace in this process: a context, and the table of each run as a batch."""

    context: Any
    batch: Any


@lru_cache(maxsize=4)
def _validator(root: Path | None) -> _Validator:
    """Results are kept in the workspace (without a root in memory). Suites and definitions are kept in memory: GX reads
    them again before it evaluates them, and whoever writes the workspace could have emptied them."""
    context = _context(root, ("expectations_store", "validation_definition_store"))
    table = context.data_sources.add_pandas("statistics").add_dataframe_asset("table")
    return _Validator(context, table.add_batch_definition_whole_dataframe("whole"))


@lru_cache(maxsize=4)
def _docs(root: Path) -> Any:
    """Context of the Data Docs: suites and results in the workspace, shown and never evaluated."""
    return _context(root, ())


def _context(root: Path | None, in_memory: Iterable[str]) -> Any:
    """A GX context whose stores are files of the workspace, except those named."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    gx = _great_expectations()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        FilesystemStoreBackendDefaults,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    kept = FilesystemStoreBackendDefaults(root / "gx" / "gx") if root else InMemoryStoreBackendDefaults()
    for name in in_memory:
        kept.stores[name]["store_backend"] = {"class_name": "InMemoryStoreBackend"}
    bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return gx.get_context(
        mode="ephemeral", project_config=DataContextConfig(store_backend_defaults=kept, progress_bars=bars)
    )


class _ImportedAtFirstUse(ModuleType):
    """Stands for a module until an attribute of it is read."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _great_expectations() -> Any:
    """GX, without importing what only its tests of distributions and their charts use: two fifths of its time."""
    put_off = [_ImportedAtFirstUse(name) for name in ("scipy.stats", "altair") if name not in sys.modules]
    sys.modules.update({module.__name__: module for module in put_off})
    try:
        import great_expectations
    finally:
        for module in put_off:  # whoever imports one from here on gets it
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
    return great_expectations
