"""Great Expectations suites on statistics tables, never on documents.

A stage declares a `Suite` as data: a small table of its statistics and expectations by name. It is
validated before the stage's manifest is published, so a manifest that fails a critical expectation never becomes
an input. Results land in Data Docs under the workspace.

GX takes seconds to import and is imported only here, when a suite is run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from plinth.storage.workspace import Workspace

Severity = Literal["critical", "warning"]


@dataclass(frozen=True)
class Expect:
    """One expectation: the GX class without its `Expect` prefix, its arguments, and how bad a failure is."""

    kind: str
    arguments: Mapping[str, Any]
    severity: Severity = "critical"


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


def between(column: str, low: float | None, high: float | None, severity: Severity = "critical") -> Expect:
    """Every value of a column lies in a closed interval; None leaves a side open."""
    bounds = {"column": column, "min_value": low, "max_value": high}
    return Expect("ColumnValuesToBeBetween", bounds, severity)


def no_nulls(column: str) -> Expect:
    """No value of a column is missing."""
    return Expect("ColumnValuesToNotBeNull", {"column": column})


def rows_between(low: int, high: int | None = None) -> Expect:
    """The table has a number of rows."""
    return Expect("TableRowCountToBeBetween", {"min_value": low, "max_value": high})


def equal_columns(left: str, right: str) -> Expect:
    """Two columns agree in every row."""
    return Expect("ColumnPairValuesToBeEqual", {"column_A": left, "column_B": right})


def docs_index(workspace: Workspace) -> Path:
    """First page of the Data Docs."""
    return workspace.root / "gx" / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"


def validate(suite: Suite, workspace: Workspace) -> SuiteOutcome:
    """Run a suite over its table and store the result for Data Docs.

    Raises:
        AttributeError: for an expectation that GX lacks; a defect in the suite, not in the data.
    """
    import great_expectations as gx
    import pandas as pd

    context = _context(workspace.root)
    frame = pd.DataFrame([dict(row) for row in suite.rows])
    expectations = [
        getattr(gx.expectations, f"Expect{item.kind}")(**item.arguments, severity=item.severity)
        for item in suite.expectations
    ]
    stored = context.suites.add_or_update(gx.ExpectationSuite(name=suite.name, expectations=expectations))
    definition = gx.ValidationDefinition(name=suite.name, data=_batch_definition(context), suite=stored)
    context.validation_definitions.add_or_update(definition)
    checkpoint = gx.Checkpoint(name=suite.name, validation_definitions=[definition])
    result = context.checkpoints.add_or_update(checkpoint).run(batch_parameters={"dataframe": frame})
    (validation,) = result.run_results.values()
    return _outcome(validation.results)


def build_docs(workspace: Workspace) -> Path:
    """Build the Data Docs pages; returns their first page."""
    _context(workspace.root).build_data_docs()
    return docs_index(workspace)


def _outcome(results: Sequence[Any]) -> SuiteOutcome:
    failures: list[str] = []
    warnings: list[str] = []
    for result in results:
        if result.success:
            continue
        config = result.expectation_config
        arguments = {key: value for key, value in config.kwargs.items() if key != "batch_id"}
        observed = result.result.get("observed_value", result.result.get("partial_unexpected_list"))
        raised = (result.exception_info or {}).get("exception_message")
        line = f"{config.type} {arguments}: found {raised or observed}"
        (warnings if str(config.severity).upper().endswith("WARNING") else failures).append(line)
    return SuiteOutcome(bool(failures), tuple(failures), tuple(warnings), len(results))


@lru_cache(maxsize=4)
def _context(root: Path) -> Any:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="file", project_root_dir=str(root / "gx"))
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def _batch_definition(context: Any) -> Any:
    source = context.data_sources.add_or_update_pandas("statistics")
    asset = source.add_dataframe_asset("table")
    return asset.add_batch_definition_whole_dataframe("whole")
