"""Measurements: one record for each kind of evidence about a checkpoint, and the catalogue in which all are found.

    stages       what the pipeline makes for a recipe that asks for it
    read         the facts that gates read, from the statistics of a manifest
    recount      those figures again, from the rows of the manifest's tables
    pairs        two models' items side by side, for comparisons
    scores       its numbers in MLflow's record of the model
    section      its part of the page of the evaluation

A gate that reads the facts is in the catalogue of gates (`plinth.evaluation.gate`). Measurements of this repository and
those of installed packages (entry points `plinth.measurements`) are used alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from plinth.errors import ExtensionError, PlinthError
from plinth.extensions import Catalogue, NoParams
from plinth.records import Frozen, Manifest

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


_OURS = "plinth_assets.measurements"
MEASUREMENTS = Catalogue(
    "plinth.measurements",
    "measurement",
    Measurement,
    {
        "evaluation": f"{_OURS}.quality:EVALUATION",
        "evaluation_parent": f"{_OURS}.quality:EVALUATION_PARENT",
        "probes": f"{_OURS}.quality:PROBES",
        "tasks": f"{_OURS}.quality:TASKS",
        "pii_data": f"{_OURS}.pii:MEASUREMENT",
        "serving": f"{_OURS}.quality:SERVING",
        "comparison": f"{_OURS}.quality:COMPARISON",
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
