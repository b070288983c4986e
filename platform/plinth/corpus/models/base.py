"""The record that describes a trainer: documents of some buckets to a model's files and measures on held-back ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from plinth.compute.context import Context
from plinth.records import Frozen, Manifest


class Train(Protocol):
    """The work: documents by bucket and lists by name in, the model's files as parts out, measures as statistics."""

    def __call__(
        self,
        ctx: Context,
        asset: str,
        params: Any,
        documents: Mapping[str, Manifest],
        lists: Mapping[str, Manifest],
    ) -> Manifest: ...


@dataclass(frozen=True)
class ModelTrainer:
    """One kind of model that the pipeline can train.

    Args:
        kind: name in the recipe (`corpus.models.NAME.kind`).
        version: of the code; raise it when the same text would give another model.
        description: one sentence for the catalogue.
        source: the paper or project that it follows.
        params: frozen model of the parameters, without `kind`.
        buckets: names of the buckets whose documents it reads, of the parameters.
        lists: names of the lists it reads, of the parameters.
        train: the work; deterministic, memory bounded.
        libraries: names of other people's code that decides the model (`fingerprint.libraries`).
        bounds: of the parameters, `(statistic, least, most)` that a model must keep to be published.
    """

    kind: str
    version: str
    description: str
    source: str
    params: type[Frozen]
    buckets: Callable[[Any], tuple[str, ...]]
    train: Train
    libraries: tuple[str, ...] = ("unicode",)
    lists: Callable[[Any], tuple[str, ...]] = lambda params: ()
    bounds: Callable[[Any], tuple[tuple[str, float | None, float | None], ...]] = lambda params: ()
