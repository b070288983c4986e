"""The mechanism under every asset: suites of expectations, stages as data, and the one decision of what is up to date.

    build         Stage -> Dagster asset: resolve inputs once, make, check, publish, present; the workspace and its
                  workers as a Dagster resource; the check of an asset against taints
    data_docs     the same suites in Great Expectations, in a process of its own; their results and pages
    present       manifests as metadata that people look at: results first, digests last
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
# never becomes an input. `data_docs` has Great Expectations evaluate the same suite afterwards, in a process of its
# own.

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


# A stage of the pipeline as data, and the one decision of what is up to date.
#
# From one record come the Dagster asset, that decision and the catalogue. An asset is up to date when its reference
# holds the key that its stage has now (`Stage.key`: code version, parameters, digests of the inputs, identity of what
# is read from outside), the store has every blob of its manifest, what it names outside the store is there
# (`Stage.intact`), and what must be signed about it holds. The Dagster asset, `plinth run`, `plinth status` and the
# arrival sensor read the decision here. The step cache below it only spares the finished items of a stage that has to
# run.

Inputs = Mapping[str, Manifest]


class Statement(Protocol):
    """What must be signed about an asset when it is made, and hold for as long as it is published."""

    def holds(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> bool:
        """Whether it was signed about this manifest, made of inputs with these digests."""
        ...

    def sign(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> None:
        """Sign it."""
        ...


#: Called with lines worth reading while a stage works (a training run's steps, for one).
Say = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """The definition of an asset.

    Args:
        asset: its key, with slashes.
        deps: keys of the assets it reads.
        make: the work: `(context, inputs, say) -> manifest`.
        version: version of the code behind `make`; becomes Dagster's code version.
        params: everything of the recipe that the work depends on.
        libraries: other people's code that decides the output (`fingerprint.libraries`).
        group, kinds, owner, description: shown in the catalogue.
        schema: columns of its parts, where they are tables.
        outside: identity of what the work reads beside its inputs (source files, the exclusion list); None for nothing.
        intact: False where something outside the store that the manifest names is gone; None for nothing to look at.
        suite: expectations on its statistics; blocking ones stop publication.
        statement: what is signed about it in the process that makes it; without it the asset is made again.
        present: further metadata for the UI.
        pool: concurrency pool.
        priority: of stages that are ready at the same time, the greater go first.
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

    @property
    def code_version(self) -> str:
        """Dagster's code version: changes with the code, the parameters or the libraries."""
        facts = {"params": self.params, "libraries": self.libraries} if self.libraries else self.params
        return f"{self.version}-{fingerprint.digest(facts)[:12]}"

    def key(self, ctx: Context, inputs: Mapping[str, str]) -> str:
        """Identity of the work for inputs with these manifest digests; equal keys mean up to date."""
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
    """Stages that a package of the ring, or anyone's, adds to the pipeline: a member of the group `plinth.stages`.

    Args:
        name: the entry point's.
        stages: `(recipe)` -> stages; none where the recipe does not ask for them.
        with_mixture: only for a recipe that has a mixture.
    """

    name: str
    stages: Callable[[Any], Sequence[Stage]]
    with_mixture: bool = False


CHECKPOINT = "checkpoint"
GROUP = "evaluation"


@dataclass(frozen=True)
class MeasurementStatement:
    """The statement that a manifest is what was measured of the checkpoint among its inputs."""

    recipe: Recipe

    def holds(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> bool:
        from plinth_registry import attestations

        return attestations.is_attested(ctx, inputs[CHECKPOINT], made)

    def sign(self, ctx: Context, inputs: Mapping[str, str], made: Manifest) -> None:
        from plinth_registry import attestations

        attestations.attest_measurement(ctx, self.recipe, inputs[CHECKPOINT], made)


def attested(recipe: Recipe, stage: Stage) -> Stage:
    """The stage with its statement, where it measures a checkpoint that may be released."""
    measures = recipe.release is not None and stage.group == GROUP and CHECKPOINT in stage.deps
    return replace(stage, statement=MeasurementStatement(recipe)) if measures else stage


# Keys of inputs by bucket, and the owner of assets that span buckets.


def each(recipe: Recipe, *kinds: str) -> tuple[str, ...]:
    """Keys of these stages in every bucket: `each(recipe, "documents")` -> `web/documents`, …"""
    return tuple(f"{bucket}/{kind}" for kind in kinds for bucket in recipe.corpus.buckets)


def by_bucket(recipe: Recipe, inputs: Inputs, kind: str) -> dict[str, Manifest]:
    """The manifests of one stage, by bucket."""
    return {bucket: inputs[f"{bucket}/{kind}"] for bucket in recipe.corpus.buckets}


def compares(recipe: Recipe) -> bool:
    """Whether training text is compared with protected sets: the recipe's own, or the probes of its run."""
    return bool(recipe.corpus.protected.sets) or recipe.probes is not None


def planted(recipe: Recipe, *kinds: str) -> tuple[str, ...]:
    """Keys of these stages of the planted text, where the recipe has canaries."""
    return tuple(f"{CANARIES}/{kind}" for kind in kinds) if recipe.corpus.canaries else ()


def read_by_run(recipe: Recipe, inputs: Inputs, kind: str) -> dict[str, Manifest]:
    """The manifests of one stage of all that a run reads: by bucket, and of the planted text."""
    return by_bucket(recipe, inputs, kind) | {key.partition("/")[0]: inputs[key] for key in planted(recipe, kind)}


def shared_owner(recipe: Recipe) -> str:
    """The owner of assets that span the buckets: the owner of most buckets, first by name in a tie."""
    owners: Iterable[str] = [bucket.owner for bucket in recipe.corpus.buckets.values()]
    counted = sorted(owners)
    return max(sorted(set(counted)), key=counted.count)


@dataclass(frozen=True)
class Decision:
    """Assets that are up to date, and assets that must or may have to run; the manifests of those up to date."""

    fresh: tuple[str, ...]
    stale: tuple[str, ...]
    manifests: Mapping[str, Manifest] = field(default_factory=dict, compare=False, repr=False)


def up_to_date(stage: Stage, ctx: Context, digests: Mapping[str, str]) -> Manifest | None:
    """The published manifest if this very work made it from inputs with these digests, else None.

    Raises:
        PlinthError: what the stage reads from outside the workspace cannot be read.
    """
    if any(dep not in digests for dep in stage.deps):
        return None
    key = stage.key(ctx, {dep: digests[dep] for dep in stage.deps})
    try:
        ref = ctx.refs.ref(stage.asset)
    except SealError:  # somebody else's word: the work is done again, and published anew
        return None
    if ref is None or ref.key != key:
        return None
    manifest = ctx.refs.load(ref.digest)
    if manifest.misplaced:  # by an earlier version, which kept the names of parts that had been made before
        return None
    if stage.statement and not stage.statement.holds(ctx, digests, manifest):
        return None
    if stage.intact and not stage.intact(ctx, manifest):
        return None
    return manifest if ctx.store.has_all(part.blob for part in manifest.parts) else None


def decide(ctx: Context, stages: Iterable[Stage]) -> Decision:
    """Decide for all stages, upstream first; an asset that reads a stale one is stale until that one has run."""
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
