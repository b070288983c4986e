"""Measurements and gates: the record of one kind of evidence about a checkpoint, the record of a gate that reads it,
and the catalogues of both.

A measurement has

    stages       what the pipeline makes for a recipe that asks for it
    read         the facts that gates read, from the statistics of a manifest
    recount      those figures again, from the rows of the manifest's tables
    pairs        two models' items side by side, for comparisons
    scores       its numbers in MLflow's record of the model
    section      its part of the page of the evaluation

Gates and measurements of this repository and those of installed packages (entry points `plinth.gates`,
`plinth.measurements`) have the same form. The signed gate policy of a release sets the parameters of gates
(`plinth_registry.policy`); no recipe does. How gates are evaluated: `plinth_registry.gates`.
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

#: State of a gate. `skipped`: the sample is too small to decide. `not applicable`: the gate has nothing to compare.
#: Neither is a pass. `waived` is set from a signed waiver only, never by a gate.
GateState = Literal["passed", "waived", "skipped", "not applicable", "pending", "failed"]
#: States that block promotion.
BLOCKING: Final[tuple[GateState, ...]] = ("failed", "pending")


class GateVerdict(Frozen):
    """Decision of a gate: its state, the reason and the numbers behind it.

    Give `passed` or `state`, and the other follows; records written before there were states have `passed` alone.
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

    A gate with a section is asked of every candidate, unless the policy leaves it out with a reason. One without is
    asked where the policy names it under `extensions`, as gates of other packages are.

    Args:
        name: of the result, and key in `extensions`.
        description: one sentence.
        needs: measurements, or fields of `plinth_registry.gates.Evidence`, without which the gate fails unasked.
        judge: `(parameters, evidence) -> verdict`. An exception fails a gate that is asked by name.
        params: frozen model of the parameters in the policy.
        of_exports: it judges forms of a release that are about to be exported, not candidates.
        section: key of the policy that has the parameters; gates may share one.
        always: no policy leaves it out, and no waiver lifts it.
        rests_on: evidence whose figures are counted again before the gate may pass; by default what it needs.
        keys: dotted keys of the recipe without which there is no evidence, beside those of the measurements.
        find: `(context, parameters)` -> evidence that the gate itself finds in the workspace now, as `Evidence.own`.
        shown: False: the dump of a policy has the section only where it is not as by default.
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
        """True if it is asked only where the policy names it."""
        return not (self.section or self.always)

    @property
    def counted(self) -> tuple[str, ...]:
        """Evidence whose figures must be those of its tables."""
        return self.rests_on or self.needs


def release_gate(
    judge: Callable[[Any, Any], GateVerdict],
    params: type[Frozen] = NoParams,
    section: str = "",
    rests_on: tuple[str, ...] = (),
    **more: Any,
) -> Gate:
    """A gate of every candidate, with the name of its function and the first paragraph of its docstring."""
    description = " ".join((judge.__doc__ or "").partition("\n\n")[0].split())
    own: dict[str, Any] = {"params": params, "section": section, "rests_on": rests_on}
    return Gate(name=judge.__name__, description=description, judge=judge, **own, **more)


_ORIGIN, _ASSETS = "plinth_registry.gates.origin", "plinth_assets.measurements"
#: All gates, in the order in which they are asked; those of installed packages (entry points `plinth.gates`) follow.
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
    },
)

F = TypeVar("F", bound=Frozen)

Stats = Mapping[str, Any]
#: What statistics lack or hold wrongly where they are not those of the stage.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError)
#: Stated and counted figures, plain data of the same form.
Figures = tuple[Any, Any]


@dataclass(frozen=True)
class JudgedCheckpoint:
    """The checkpoint that is judged.

    Args:
        evaluation: digest of the evaluation that it was registered with; of another one there are no facts.
        provenance: what its trainer has signed; None where that does not hold.
        trained_on: digests of the curated text in its ancestry; None where nobody knows what it was trained on.
    """

    evaluation: str = ""
    provenance: Mapping[str, Any] | None = None
    trained_on: frozenset[str] | None = None


@dataclass(frozen=True)
class ModelScores:
    """Numbers that MLflow shows with the model: by group and metric, each with `value`, `low` and `high` where it has
    them; and the data that they were measured on, by name and digest."""

    dataset: str
    digest: str
    groups: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One kind of evidence about a checkpoint. Gates read facts alone, so the module of a record imports little.

    Args:
        name: the asset with `_` for `/`.
        description: one sentence.
        asset: of the manifest; of a `family`, what stands before `/NAME`.
        stages: `(recipe)` -> `plinth_assets.framework.Stage`s; none where the recipe does not ask for it.
        key: of the recipe, which asks for it; empty where every recipe does.
        params: model of the parameters below `evaluation.extensions.NAME`, for a measurement of another package.
        facts: the record that gates read; None where no gate does.
        read: `(manifests by asset, the judged checkpoint)` -> facts. An error, or None, is no evidence.
        recount: `(context, manifest, all manifests by asset)` -> figures.
        pairs: `(store, a, b)` -> `plinth.evaluation.comparison.pairs.Pairs`, items of two models side by side.
        beside: a comparison measures the other model too; False where that has no sense for a model from elsewhere.
        own_run: it measures only models of runs on the shards of this workspace.
        headings: of the page of a comparison, by kind of the pairs.
        scores: `(manifest)` -> numbers for MLflow; none where it has nothing to show there.
        section: `(name in the family, statistics)` -> `plinth.report.evaluation.Section`.
        version: of a measurement of another package, for its stages: the catalogue adds where it comes from.
        position: on the page and in comparisons, before those of a higher one.
        statement: kind under which it is attested (`plinth_registry.attestations.KINDS`).
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
    beside: bool = True
    own_run: bool = False
    headings: Mapping[str, str] = field(default_factory=dict)
    scores: Callable[[Manifest], ModelScores] | None = None
    section: Callable[[str, Stats], Frozen] | None = None
    version: str = ""
    position: int = 100
    statement: Literal["measurement", "personal_data"] = "measurement"

    def __post_init__(self) -> None:
        if self.name != self.asset.replace("/", "_"):  # it would never be found by its asset
            raise ValueError(f"the measurement {self.name!r} makes {self.asset}: name it as the asset, with _ for /")

    def has(self, asset: str) -> bool:
        """True if it makes the asset."""
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
    """`stages` of a measurement that another stage makes."""
    return ()


def single(read: Callable[[Stats], F]) -> Callable[[Mapping[str, Manifest], JudgedCheckpoint], F]:
    """`read` of a measurement whose facts are in the statistics of its one manifest."""

    def facts(found: Mapping[str, Manifest], _: JudgedCheckpoint) -> F:
        (made,) = found.values()
        return read(made.stats)

    return facts


def measurement_of(asset: str) -> Measurement | None:
    """The measurement that makes an asset, ours before one of another package; None where it measures no model.

    Raises:
        ExtensionError: the measurement of this name cannot be used.
    """
    names = (asset.replace("/", "_"), asset.partition("/")[0])
    for name in sorted(names, key=lambda name: name not in MEASUREMENTS.built_in):
        if name in MEASUREMENTS and MEASUREMENTS[name].has(asset):
            return MEASUREMENTS[name]
    return None


def is_measured(asset: str) -> bool:
    """True if an asset is what a measurement makes, usable or not: what is marked does not depend on what is usable."""
    try:
        return measurement_of(asset) is not None
    except PlinthError:
        return True


def headings() -> dict[str, str]:
    """Headings of the page of a comparison, by kind of the pairs, of all measurements that can be used."""
    found = dict[str, str]()
    for name in MEASUREMENTS:
        with suppress(ExtensionError):
            found |= MEASUREMENTS[name].headings
    return found


def measurements(recipe: Any) -> Iterator[Measurement]:
    """Measurements of this repository and those of other packages that a recipe names, by their position.

    Raises:
        RecipeError: there is none of a name, or it cannot be used.
    """
    named = sorted(set(recipe.evaluation.extensions) - set(MEASUREMENTS.built_in))
    found = [MEASUREMENTS.find(name) for name in (*MEASUREMENTS.built_in, *named)]
    return iter(sorted(found, key=lambda one: one.position))
