"""Likeness of a document to the reference, by a trained model of kind `classifier`.

The first stage scores every document, the second only those in the band of doubt; `final` is the deciding score.
Thresholds on it, and on the tiers, are policy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import model_validator

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.models.classify import artefact, classifier
from plinth.corpus.models.examples import second_look
from plinth.corpus.models.lexicon import Lexicon
from plinth.records import Frozen, internal
from plinth_text.arrays import F64, Bools

SCHEMA = pa.schema(
    [
        pa.field("score", pa.float64(), nullable=False),
        pa.field("second_score", pa.float64()),  # null where the first stage is sure
        pa.field("final", pa.float64(), nullable=False),
        pa.field("tier", pa.string(), nullable=False),
    ]
)
TIERS = ("low", "medium", "high")


class QualityClassifierParams(Frozen):
    """Which model, and where its tiers begin."""

    model: str = internal("quality", description="Name of a model of kind `classifier` in `corpus.models`.")
    medium: float = internal(0.3, ge=0, le=1, description="Least final probability of tier `medium`; below is `low`.")
    high: float = internal(0.7, ge=0, le=1, description="Least final probability of tier `high`.")

    @model_validator(mode="after")
    def _rising(self) -> QualityClassifierParams:
        if self.medium > self.high:
            raise ValueError("`medium` lies above `high`")
        return self


def prepare(params: QualityClassifierParams, files: Files) -> tuple[QualityClassifierParams, artefact.ClassifierModel]:
    """The model from its files.

    Raises:
        IntegrityError: they are those of another version or kind, or damaged.
    """
    key = f"models/{params.model}"
    return params, artefact.read(files[key], key, classifier.KIND)


def annotate(
    batch: pa.RecordBatch, prepared: tuple[QualityClassifierParams, artefact.ClassifierModel]
) -> pa.RecordBatch:
    """Calibrated probability that a document is of the reference, of either stage; tier of the final score."""
    params, model = prepared
    score, second, final = staged(model, batch.column("text"), None)
    tier = pa.array(TIERS).take(pa.array((final >= params.medium).astype(np.int8) + (final >= params.high)))
    return pa.record_batch([pa.array(score), second, pa.array(final), tier], schema=SCHEMA)


def staged(
    model: artefact.ClassifierModel, texts: pa.Array, lexicon: Lexicon | None, hits: Bools | None = None
) -> tuple[F64, pa.Array, F64]:
    """Both stages of a classifier: the first's probability, the second's (null where it was not used), the final score.

    Args:
        lexicon: the one that the model was trained with; `hits`: in which texts it found anything.
    """
    p, margins = model.probabilities(texts)
    score, second = p[:, 0], np.zeros(len(texts))
    doubt = classifier.doubtful(score, model.head.band, hits) & (model.forest is not None)
    at = np.flatnonzero(doubt)
    if at.size:
        second[at] = model.second(margins[at, 0], second_look(texts.take(pa.array(at)), lexicon))
    return score, pa.array(second, mask=~doubt), np.where(doubt, second, score)


def _resources(params: Any) -> tuple[str, ...]:
    return (f"models/{params.model}",)


ANNOTATOR = Annotator(
    name="quality_classifier",
    version="1",
    description="Probability that a text is of the reference rather than random, in two stages, and a tier.",
    source="Li et al. 2024 (DCLM) for reference against random; Joulin et al. 2016 (fastText) for the first stage.",
    params=QualityClassifierParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=_resources,
    prepare=prepare,
)
