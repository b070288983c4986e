"""Base of every asset: suites of expectations, stages as data, and the up-to-date decision.

    build         Stage -> Dagster asset: resolve inputs once, make, check, publish, present; the workspace and its
                  workers as a Dagster resource; the check of an asset against taints
    arrow_reader  Dagster I/O manager through which a user's asset reads rows of a Plinth asset
    data_docs     the same suites in Great Expectations, in a separate process; their results and pages
    pipes         annotators that run in an external process through Dagster Pipes
    pipes_worker  program that runs an installed annotator in the environment of a Pipes client
    placement     prefix of a recipe's keys and names in a code location with several recipes
    present       manifests as Dagster metadata: results first, digests last
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.errors import SealError
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.workspace import Workspace

# Suites of expectations on statistics tables, never on documents.
#
# A stage declares a `Suite` as data: a small table of its statistics and expectations of Great Expectations. `evaluate`
# compares the table with them before the stage's manifest is published, so a manifest that fails a critical expectation
# never becomes an input. `data_docs` has Great Expectations evaluate the same suite afterward, in a process of its
# own.

Severity = Literal["critical", "warning"]


@dataclass(frozen=True)
class Expect:
    """Expectation about a table: the class of Great Expectations without its `Expect` prefix, the arguments, and the
    severity.

    The lines in `because` name bucket, value and limit; they replace the general failure message.
    """

    kind: str
    arguments: Mapping[str, Any]
    severity: Severity = "critical"
    because: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """Table of an asset's statistics (rows of plain values) with expectations about it."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    expectations: Sequence[Expect] = field(default_factory=tuple)


@dataclass(frozen=True)
class SuiteOutcome:
    """Result of a suite, with a line for each failure or warning. `blocked` is True if a critical expectation has
    failed."""

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
    """Expect all values of a column in a closed interval. If a bound is None, that side is open."""
    bounds = {"column": column, "min_value": low, "max_value": high}
    return Expect(_BETWEEN, bounds, severity, tuple(because))


def no_nulls(column: str) -> Expect:
    """Expect no missing values in a column."""
    return Expect(_NO_NULLS, {"column": column})


def rows_between(low: int, high: int | None = None) -> Expect:
    """Expect the number of rows in a closed interval."""
    return Expect(_ROWS, {"min_value": low, "max_value": high})


def equal_columns(left: str, right: str) -> Expect:
    """Expect the values of two columns to be equal in every row."""
    return Expect(_EQUAL, {"column_A": left, "column_B": right})


def evaluate(suite: Suite) -> SuiteOutcome:
    """Evaluate a suite over its table. As in Great Expectations, only `no_nulls` fails on missing values.

    Raises:
        ValueError: the suite has an unknown kind of expectation, which is a bug in the suite and not in the data.
    """
    found: dict[str, list[str]] = {"critical": [], "warning": []}
    for item in suite.expectations:
        found[item.severity] += breaches(suite, item)
    failures, warnings = found["critical"], found["warning"]
    return SuiteOutcome(bool(failures), tuple(failures), tuple(warnings), len(suite.expectations))


def breaches(suite: Suite, item: Expect) -> list[str]:
    """Return a sentence for each row that breaks an expectation. The sentence starts with the row's text values. The
    result is empty if the expectation is met."""
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
    raise ValueError(f"suite {suite.name} has an unknown kind of expectation: {item.kind}")


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
    """Return the path of the first page of the Data Docs."""
    return workspace.root / "gx" / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"


# A stage of the pipeline as data, and the up-to-date decision.
#
# One record defines the Dagster asset, that decision and the catalog entry. An asset is up to date if its reference has
# the current key of its stage (`Stage.key`: code version, parameters, digests of inputs, identity of outside data), the
# store has every blob of its manifest, files outside the store exist (`Stage.intact`), and its signed statement
# verifies. The Dagster asset, `plinth run`, `plinth status` and the
# arrival sensor read the decision here. The step cache below it only spares the finished items of a stage that has to
# run.

Inputs = Mapping[str, Manifest]


class Statement(Protocol):
    """Statement that is signed when an asset is materialized, and that stays valid while the asset is published."""

    def holds(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> bool:
        """Return True if a valid statement was signed about this manifest and inputs with these digests."""
        ...

    def sign(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> None:
        """Sign the statement about this manifest and inputs with these digests."""
        ...


#: Callback for progress lines of a stage, such as training steps.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """Definition of an asset.

    Args:
        asset: asset key, with slashes.
        deps: keys of the input assets.
        make: function `(context, inputs, say) -> manifest`.
        version: version of the code behind `make`; becomes Dagster's code version.
        params: all recipe values that affect the output.
        libraries: third-party code that affects the output (`fingerprint.libraries`).
        group, kinds, owner, description: shown in the catalog.
        schema: columns of the asset's parts, if they are tables.
        outside: function that returns the identity of data outside the inputs, like source files or the exclusion
            list; None if the stage reads no such data.
        intact: function that returns False if files outside the store are gone; None if the asset has no such files.
        suite: expectations on the asset's statistics; a failed critical expectation stops publication.
        statement: statement that the materializing process signs; if it is missing, the asset is rebuilt.
        present: additional metadata for the UI.
        pool: concurrency pool.
        priority: among ready stages, higher values run first.
        max_price: maximum price of one materialization, if the stage itself enforces a budget.
    """

    asset: str
    deps: tuple[str, ...]
    make: Callable[[Context, Inputs, Say], Manifest]
    version: str
    params: Any
    group: str
    description: str
    owner: str
    kinds: tuple[str, ...] = ("python",)
    libraries: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema | None = None
    outside: Callable[[Context], str | None] | None = None
    intact: Callable[[Context, Manifest], bool] | None = None
    suite: Callable[[Manifest, Inputs], Suite] | None = None
    statement: Statement | None = None
    present: Callable[[Context, Manifest], dict[str, Any]] | None = None
    pool: str = "corpus"
    priority: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    max_price: float | None = None

    @property
    def code_version(self) -> str:
        """Dagster's code version: changes with the code, the parameters or the libraries."""
        facts = {"params": self.params, "libraries": self.libraries} if self.libraries else self.params
        return f"{self.version}-{fingerprint.digest(facts)[:12]}"

    def key(self, ctx: Context, inputs: Mapping[str, str]) -> str:
        """Digest of the stage's work on inputs with these manifest digests. An asset is up to date if its recorded key
        is equal."""
        return fingerprint.digest(
            {
                "asset": self.asset,
                "code": self.code_version,
                "inputs": dict(inputs),
                "outside": self.outside(ctx) if self.outside else None,
            }
        )


@dataclass(frozen=True)
class Stages:
    """Stages that another package adds to the pipeline, as a member of the entry point group `plinth.stages`.

    Args:
        name: name of the entry point.
        stages: function that returns the stages for a recipe; empty if the recipe does not use them.
        with_mixture: True to add them only to recipes with a mixture.
    """

    name: str
    stages: Callable[[Any], Sequence[Stage]]
    with_mixture: bool = False


CHECKPOINT = "checkpoint"
GROUP = "evaluation"


@dataclass(frozen=True)
class MeasurementStatement:
    """Signed statement that a manifest measures the checkpoint among its inputs."""

    recipe: Recipe

    def holds(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> bool:
        from plinth_registry import attestations

        return attestations.is_attested(ctx, inputs[CHECKPOINT], made)

    def sign(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> None:
        from plinth_registry import attestations

        attestations.attest_measurement(ctx, self.recipe, inputs[CHECKPOINT], made)


def attested(recipe: Recipe, stage: Stage) -> Stage:
    """Add a measurement statement to a stage if the stage measures a checkpoint that may be released."""
    measures = recipe.release is not None and stage.group == GROUP and CHECKPOINT in stage.deps
    return replace(stage, statement=MeasurementStatement(recipe)) if measures else stage


# Keys of inputs by bucket, and the owner of assets over all buckets.


def each(recipe: Recipe, *kinds: str) -> tuple[str, ...]:
    """Return the asset keys of the named stages in every bucket: `each(recipe, "documents")` -> `web/documents`, …"""
    return tuple(f"{bucket}/{kind}" for kind in kinds for bucket in recipe.corpus.buckets)


def originals(recipe: Recipe) -> tuple[str, ...]:
    """Return the buckets that are not rewritten from another bucket. Inputs of policies are read from these only, since
    rewritten buckets depend on policies."""
    return tuple(name for name, bucket in recipe.corpus.buckets.items() if not bucket.rewrites)


def by_bucket(recipe: Recipe, inputs: Inputs, kind: str) -> dict[str, Manifest]:
    """Return the manifests of the stage `kind` by bucket."""
    return {bucket: inputs[f"{bucket}/{kind}"] for bucket in recipe.corpus.buckets}


def compares(recipe: Recipe) -> bool:
    """Return True if the recipe compares training text with protected sets: its own sets, or the probes of its run."""
    return bool(recipe.corpus.protected.sets) or recipe.probes is not None


def planted(recipe: Recipe, *kinds: str) -> tuple[str, ...]:
    """Return the asset keys of the named stages for the canaries. The result is empty if the recipe has no canaries."""
    return tuple(f"{CANARIES}/{kind}" for kind in kinds) if recipe.corpus.canaries else ()


def read_by_run(recipe: Recipe, inputs: Inputs, kind: str) -> dict[str, Manifest]:
    """Return the manifests of the stage `kind` for all texts that a run reads: every bucket and the canaries."""
    return by_bucket(recipe, inputs, kind) | {key.partition("/")[0]: inputs[key] for key in planted(recipe, kind)}


def shared_owner(recipe: Recipe) -> str:
    """Return the owner of assets that cover all buckets: the owner of the most buckets. In a tie, the first owner by
    name is returned."""
    owners: Iterable[str] = [bucket.owner for bucket in recipe.corpus.buckets.values()]
    counted = sorted(owners)
    return max(sorted(set(counted)), key=counted.count)


@dataclass(frozen=True)
class Decision:
    """Assets that are up to date, with their manifests, and assets that have to be rebuilt."""

    fresh: tuple[str, ...]
    stale: tuple[str, ...]
    manifests: Mapping[str, Manifest] = field(default_factory=dict, compare=False, repr=False)


def up_to_date(stage: Stage, ctx: Context, digests: Mapping[str, str]) -> Manifest | None:
    """Return the stage's published manifest, or None if the stage did not produce it from inputs with these digests.

    Raises:
        PlinthError: data outside the workspace cannot be read.
    """
    if any(dep not in digests for dep in stage.deps):
        return None
    key = stage.key(ctx, {dep: digests[dep] for dep in stage.deps})
    try:
        ref = ctx.refs.ref(stage.asset)
    except SealError:  # sealed elsewhere: rebuild and publish again
        return None
    if ref is None or ref.key != key:
        return None
    manifest = ctx.refs.load(ref.digest)
    if manifest.misplaced:  # earlier versions kept the names of existing parts
        return None
    if stage.statement and not stage.statement.holds(ctx, digests, manifest):
        return None
    if stage.intact and not stage.intact(ctx, manifest):
        return None
    return manifest if ctx.store.has_all(part.blob for part in manifest.parts) else None


def decide(ctx: Context, stages: Iterable[Stage]) -> Decision:
    """Return the assets that are up to date and the assets that have to be rebuilt. An asset with a stale input also
    counts as stale."""
    digests: dict[str, str] = {}
    manifests: dict[str, Manifest] = {}
    stale = []
    catalog = tuple(stages)
    with ctx.progress.meter("checking assets", len(catalog)) as meter:
        for stage in catalog:
            meter.advance(0, stage.asset)
            manifest = up_to_date(stage, ctx, digests)
            if manifest is None:
                stale.append(stage.asset)
            else:
                digests[stage.asset], manifests[stage.asset] = manifest.digest, manifest
            meter.advance()
    return Decision(tuple(digests), tuple(stale), manifests)
