"""A stage of the pipeline as data: one record from which the Dagster asset, the up-to-date decision and the
catalogue are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite

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
