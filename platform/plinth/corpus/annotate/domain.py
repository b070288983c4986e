"""Topic or function of a document by a trained model of kind `tagger`: labels for the mixture."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.models.classify import artefact, tagger
from plinth.records import Frozen, internal

SCHEMA = pa.schema([pa.field("label", pa.string(), nullable=False), pa.field("score", pa.float64(), nullable=False)])
OTHER = "other"


class DomainParams(Frozen):
    """Which model."""

    model: str = internal("domain", description="Name of a model of kind `tagger` in `corpus.models`.")
    least: float = internal(0.0, ge=0, le=1, description="A document whose best label is less likely is `other`.")


def prepare(params: DomainParams, files: Files) -> tuple[DomainParams, artefact.ClassifierModel, pa.Array]:
    """The model from its files, and its labels with `other` after them.

    Raises:
        IntegrityError: they are those of another version or kind, or damaged.
    """
    key = f"models/{params.model}"
    model = artefact.read(files[key], key, tagger.KIND)
    return params, model, pa.array([*model.head.labels, OTHER], pa.string())


def annotate(
    batch: pa.RecordBatch, prepared: tuple[DomainParams, artefact.ClassifierModel, pa.Array]
) -> pa.RecordBatch:
    """The likeliest label of a document (of equal ones the first by name) and its calibrated probability."""
    params, model, labels = prepared
    p, _ = model.probabilities(batch.column("text"))
    winner, score = p.argmax(axis=1), p.max(axis=1, initial=0.0)
    winner[score < params.least] = len(labels) - 1
    return pa.record_batch([labels.take(pa.array(winner)), pa.array(score)], schema=SCHEMA)


def _resources(params: Any) -> tuple[str, ...]:
    return (f"models/{params.model}",)


ANNOTATOR = Annotator(
    name="domain",
    version="1",
    description="The likeliest domain or function of a text, of labels that the recipe trains, and its probability.",
    source="Joulin et al. 2016 (fastText), one label against the rest; Platt 1999 for the probabilities.",
    params=DomainParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=_resources,
    prepare=prepare,
)
