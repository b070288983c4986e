"""Record types and catalogs of measurements and gates. A measurement is one kind of evidence about a checkpoint; a gate
decides from such evidence.

A measurement has

    stages       the pipeline stages that produce it for a recipe that enables it
    read         the facts that gates read, from the statistics of a manifest
    recount      the same figures recomputed from the rows of the manifest's tables
    pairs        paired items of two models, for comparisons
    scores       its metrics for MLflow's model version
    section      its section of the evaluation page

Gates and measurements of this repository and those of installed packages (entry points `plinth.gates`,
`plinth.measurements`) have the same form. The signed gate policy of a release sets the parameters of gates
(`plinth_registry.policy`); recipes cannot set the parameters of gates. Gates are evaluated in `plinth_registry.gates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from pydantic import Field, model_validator

from plinth.errors import ExtensionError, PlinthError
from plinth.extensions import Catalogue, NoParams
from plinth.records import Frozen, Manifest

#: State of a gate. `skipped` means that the sample is too small to decide, `not applicable` that there is nothing to
#: compare.
#: Neither is a pass. `waived` is set from a signed waiver only, never by a gate.
GateState = Literal["passed", "waived", "skipped", "not applicable", "pending", "failed"]
#: States that block promotion.
BLOCKING: Final[tuple[GateState, ...]] = ("failed", "pending")


class GateVerdict(Frozen):
    """Decision of a gate: its state, the reason and the numbers behind it.

    Set either `passed` or `state`; the other field is derived. Records written before states existed have only
    `passed`.
    """

    passed: bool = False
    state: GateState = "failed"
    reason: str
    evidence: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        if "state" not in given:
            other = "waived" if given.get("waived") else "failed"
            return {**given, "state": "passed" if given.get("passed") else other}
        return {"passed": given["state"] == "passed", **given}

    @model_validator(mode="after")
    def _agree(self) -> GateVerdict:
        if self.passed != (self.state == "passed"):
            raise ValueError(f"passed is {self.passed}, but the state is {self.state}")
        return self

    @property
    def blocks(self) -> bool:
        """True if the gate blocks promotion."""
        return self.state in BLOCKING


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A pure function from parameters and evidence to a verdict.

    A gate with a section applies to every candidate, unless the policy omits the gate with a reason. A gate without a
    section, such as a gate of another package, applies if the policy names it under `extensions`.

    Args:
        name: name of the result, and key in `extensions`.
        description: one sentence.
        needs: required measurements or fields of `plinth_registry.gates.Evidence`; if one is missing, the gate fails.
        judge: `(parameters, evidence) -> verdict`. If it raises an exception, a gate named in `extensions` fails.
        params: frozen model of the parameters in the policy.
        of_exports: True if the gate judges exports of a release instead of candidates.
        section: key of the policy that has the parameters; gates may share one.
        always: True if no policy can omit the gate and no waiver applies to it.
        rests_on: evidence whose numbers are recomputed before the gate can pass; default: `needs`.
        keys: dotted recipe keys required for its evidence, in addition to those of the measurements.
        find: `(context, parameters)` -> evidence that the gate reads from the workspace, as `Evidence.own`.
        shown: False if a policy dump omits the section when all its values are defaults.
    """

    name: str
    description: str
    judge: Callable[[Any, Any], GateVerdict]
    params: type[Frozen] = NoParams
    needs: tuple[str, ...] = ()
    of_exports: bool = False
    section: str = ""
    always: bool = False
    rests_on: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    find: Callable[[Any, Any], Any] | None = None
    shown: bool = True

    @property
    def by_name(self) -> bool:
        """True if the gate applies only when the policy names it under `extensions`."""
        return not (self.section or self.always)

    @property
    def counted(self) -> tuple[str, ...]:
        """Evidence whose numbers are recomputed from its tables before the gate can pass."""
        return self.rests_on or self.needs


def release_gate(
    judge: Callable[[Any, Any], GateVerdict],
    params: type[Frozen] = NoParams,
    section: str = "",
    rests_on: tuple[str, ...] = (),
    **more: Any,
) -> Gate:
    """Return a gate that applies to every candidate. Its name and description are the function's name and first
    docstring paragraph."""
    description = " ".join((judge.__doc__ or "").partition("\n\n")[0].split())
    own: dict[str, Any] = {"params": params, "section": section, "rests_on": rests_on}
    return Gate(name=judge.__name__, description=description, judge=judge, **own, **more)


_ORIGIN, _ASSETS = "plinth_registry.gates.origin", "plinth_assets.measurements"
#: All gates, in order of evaluation; those of installed packages (entry points `plinth.gates`) follow.
GATES = Catalogue(
    "plinth.gates",
    "gate",
    Gate,
    {
        "signature": f"{_ORIGIN}:SIGNATURE",
        "lineage": f"{_ORIGIN}:LINEAGE",
        "beats_gzip": f"{_ASSETS}.quality:BEATS_GZIP",
        "beats_trigram": f"{_ASSETS}.quality:BEATS_TRIGRAM",
        "max_bits_per_byte": f"{_ASSETS}.quality:MAX_BITS_PER_BYTE",
        "slices": f"{_ASSETS}.quality:SLICES",
        "probes": f"{_ASSETS}.quality:PROBES_GATE",
        "tasks": f"{_ASSETS}.quality:TASKS_GATE",
        "contamination": f"{_ORIGIN}:CONTAMINATION",
        "pii_data": f"{_ASSETS}.quality:PII_GATE",
        "licence": f"{_ORIGIN}:LICENCE",
        "terms": f"{_ORIGIN}:TERMS",
        "resume": f"{_ORIGIN}:RESUME",
        "stability": f"{_ORIGIN}:STABILITY",
        "cost": f"{_ORIGIN}:COST",
        "taint": f"{_ORIGIN}:TAINT",
        "approvals": "plinth_registry.gates.origin:APPROVALS_GATE",
        "compressed": "plinth_registry.gates.margins:COMPRESSED_GATE",
        "forgetting": "plinth_registry.gates.margins:FORGETTING_GATE",
        "forecast": "plinth_registry.gates.forecast:FORECAST_GATE",
    },
)

F = TypeVar("F", bound=Frozen)

Stats = Mapping[str, Any]
#: Errors of reading statistics whose fields are missing or malformed.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError)
#: Stated and recomputed figures, plain data of the same form.
Figures = tuple[Any, Any]


@dataclass(frozen=True)
class JudgedCheckpoint:
    """Checkpoint that a gate judges.

    Args:
        evaluation: digest of the evaluation that the checkpoint was registered with; other evaluations are ignored.
        provenance: provenance signed by its trainer; None if invalid.
        trained_on: digests of the curated text in its ancestry; None if its training data is unknown.
    """

    evaluation: str = ""
    provenance: Mapping[str, Any] | None = None
    trained_on: frozenset[str] | None = None


@dataclass(frozen=True)
class ModelScores:
    """Metrics for MLflow's model version, with the name and digest of the data on which they were measured.

    `groups` maps each group and metric to `value` and, if known, `low` and `high`.
    """

    dataset: str
    digest: str
    groups: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One kind of evidence about a checkpoint. Gates read only the facts, so the module of a measurement imports
    little.

    Args:
        name: name of the asset with `_` for `/`.
        description: one sentence.
        asset: asset of the manifest; for a `family`, the prefix before `/NAME`.
        stages: `(recipe)` -> `plinth_assets.framework.Stage`s; none if the recipe does not enable the measurement.
        key: recipe key that enables the measurement; empty if it is always enabled.
        params: model of the parameters in `evaluation.extensions.NAME`, for a measurement of another package.
        facts: record read by gates; None if no gate reads it.
        read: `(manifests by asset, the judged checkpoint)` -> facts. An error or None means missing evidence.
        recount: `(context, manifest, all manifests by asset)` -> numbers recomputed from the tables.
        pairs: `(store, a, b)` -> `plinth.evaluation.comparison.pairs.Pairs`, paired items of two models.
        measures_other: True if a comparison also measures the other model; False if external models cannot be measured.
        own_run: True if it measures only models trained on the shards of this workspace.
        headings: headings of the comparison page, by kind of the pairs.
        scores: `(manifest)` -> metrics for MLflow; None if there are none.
        section: `(name in the family, statistics)` -> `plinth.report.evaluation.Section`.
        version: version of the stages, for a measurement from another package; the catalog adds the package name.
        position: sort key on the page and in comparisons.
        statement: kind of its attestation (`plinth_registry.attestations.KINDS`).
    """

    name: str
    description: str
    asset: str
    stages: Callable[[Any], Sequence[Any]]
    family: bool = False
    key: str = ""
    params: type[Frozen] = NoParams
    facts: type[Frozen] | None = None
    read: Callable[[Mapping[str, Manifest], JudgedCheckpoint], Frozen | None] | None = None
    recount: Callable[[Any, Manifest, Mapping[str, Manifest]], Figures] | None = None
    pairs: Callable[[Any, Manifest, Manifest], Iterator[Any]] | None = None
    measures_other: bool = True
    own_run: bool = False
    headings: Mapping[str, str] = field(default_factory=dict)
    scores: Callable[[Manifest], ModelScores] | None = None
    section: Callable[[str, Stats], Frozen] | None = None
    version: str = ""
    position: int = 100
    statement: Literal["measurement", "personal_data"] = "measurement"

    def __post_init__(self) -> None:
        if self.name != self.asset.replace("/", "_"):  # lookup is by asset
            raise ValueError(f"measurement {self.name!r} must be named after its asset {self.asset}, with _ for /")

    def has(self, asset: str) -> bool:
        """Return True if this measurement produces the asset."""
        return asset == self.asset or (self.family and asset.startswith(f"{self.asset}/"))


MEASUREMENTS = Catalogue(
    "plinth.measurements",
    "measurement",
    Measurement,
    {
        "evaluation": f"{_ASSETS}.quality:EVALUATION",
        "evaluation_parent": f"{_ASSETS}.quality:EVALUATION_PARENT",
        "probes": f"{_ASSETS}.quality:PROBES",
        "tasks": f"{_ASSETS}.quality:TASKS",
        "pii_data": f"{_ASSETS}.quality:PII_DATA",
        "serving": f"{_ASSETS}.quality:SERVING",
        "comparison": f"{_ASSETS}.quality:COMPARISON",
    },
)


def no_stages(recipe: Any) -> tuple[()]:
    """Return no stages. This is the default `stages` of a measurement whose asset another stage produces."""
    return ()


def single(read: Callable[[Stats], F]) -> Callable[[Mapping[str, Manifest], JudgedCheckpoint], F]:
    """Return a `read` function for facts that are in the statistics of the measurement's only manifest."""

    def facts(found: Mapping[str, Manifest], _: JudgedCheckpoint) -> F:
        (made,) = found.values()
        return read(made.stats)

    return facts


def measurement_of(asset: str) -> Measurement | None:
    """Return the measurement that produces an asset, or None if no measurement does. Built-in measurements are tried
    first.

    Raises:
        ExtensionError: the measurement cannot be loaded from its package.
    """
    names = (asset.replace("/", "_"), asset.partition("/")[0])
    for name in sorted(names, key=lambda name: name not in MEASUREMENTS.built_in):
        if name in MEASUREMENTS and MEASUREMENTS[name].has(asset):
            return MEASUREMENTS[name]
    return None


def is_measured(asset: str) -> bool:
    """Return True if a measurement produces the asset.

    Measurements that cannot be used count as well, because their assets can still be tainted.
    """
    try:
        return measurement_of(asset) is not None
    except PlinthError:
        return True


def headings() -> dict[str, str]:
    """Return the headings of the comparison page for all usable measurements, by kind of the pairs."""
    found = dict[str, str]()
    for name in MEASUREMENTS:
        with suppress(ExtensionError):
            found |= MEASUREMENTS[name].headings
    return found


def measurements(recipe: Any) -> Iterator[Measurement]:
    """Yield the built-in measurements and the measurements of other packages that a recipe names, sorted by `position`.

    Raises:
        RecipeError: a name is unknown, or its measurement cannot be used.
    """
    named = sorted(set(recipe.evaluation.extensions) - set(MEASUREMENTS.built_in))
    found = [MEASUREMENTS.find(name) for name in (*MEASUREMENTS.built_in, *named)]
    return iter(sorted(found, key=lambda one: one.position))
