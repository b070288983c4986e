"""Student of a language model: a classifier trained on the labels in an annotator's columns.

    documents ─► llm (a sample) ─► rule over its columns ─► label ─► classifier ─► annotator `student` (all documents)

Documents without a label are skipped. The agreement with the labels is measured on documents that neither training nor
calibration reads; copies of a text are in the same split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.annotate.base import available
from plinth.corpus.models import ModelTrainer, artefact, classifier
from plinth.corpus.models.classifier import TwoStages, fit_stages, measured_stages, train_learner, training_metrics
from plinth.corpus.models.examples import Examples, ExampleSource
from plinth.corpus.policy.compiled_policy import columns_of
from plinth.corpus.policy.expressions import parse
from plinth.corpus.slices.rates import wilson
from plinth.records import Manifest, Step
from plinth_text.arrays import I64, Bools

KIND, VERSION = "student", "1"
#: Probability from which the student's label is positive.
POSITIVE = 0.5
_COLUMN = re.compile(r"\b([a-z][a-z0-9_]*)\.[a-z]")


class StudentParams(TwoStages):
    """Parameters of a student: the labeled buckets, and the rule that turns an annotator's columns into a label."""

    buckets: tuple[str, ...] = Field(min_length=1, description="Buckets whose labeled documents are the examples.")
    positive: str = Field(
        description="Rule over the columns of one annotator, such as `llm.score >= 3`; documents that match it are the "
        "positive examples, and documents with nulls in its columns are skipped."
    )
    min_agreement: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Minimum agreement with the labels on the test split, at the lower end of its interval, to publish "
        "a model.",
    )

    @field_validator("positive")
    @classmethod
    def _reads_one_annotator(cls, rule: str) -> str:
        if len(set(_COLUMN.findall(rule))) != 1:
            raise ValueError("the rule must read columns of exactly one annotator, such as `llm.score >= 3`")
        return rule

    @property
    def annotator(self) -> str:
        """Annotator whose columns the rule reads."""
        return str(_COLUMN.findall(self.positive)[0])


def train(
    ctx: Context, asset: str, params: StudentParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """Train a student and return the manifest of its files.

    Statistics are those of a classifier, and `agreement`, the share of test documents on which student and label agree,
    with `agreement_low` and `agreement_high` (95%), `kappa` (Cohen), and `majority`, the share of the more frequent
    label.

    Raises:
        RecipeError: the rule cannot be parsed, or names a column that the annotator does not write.
        StageError: one of the two labels has too few examples.
    """
    sources = []
    for bucket in params.buckets:
        sidecar = documents[f"{bucket}/{params.annotator}"]
        types = columns_of(available({params.annotator: sidecar}))
        rule = parse(params.positive, types, f"corpus.{asset.replace('/', '.')}.positive")
        sources.append(ExampleSource(bucket, documents[bucket], judged=(sidecar, rule)))
    step = Step(
        name=f"models/{KIND}",
        version=VERSION,
        params=params.model_dump(mode="json"),
        libraries=fingerprint.libraries(*classifier.LIBRARIES),
    )
    return train_learner(ctx, asset, step, fit, params, ("other", "positive"), sources)


def fit(
    params: StudentParams, found: Examples, labels: tuple[str, ...]
) -> tuple[artefact.ClassifierModel, dict[str, Any]]:
    """Fit a student to the examples, and return it with its metrics. The model depends only on the arguments."""
    model, stage = fit_stages(params, found, labels)
    test = found.of("test")
    judged = classifier.final_probabilities(model, stage, test) >= POSITIVE
    measured = measured_stages(model, stage, test) | agreement(judged, test.documents.labels)
    return model, training_metrics(stage) | measured


def agreement(judged: Bools, labels: I64) -> dict[str, Any]:
    """Return the agreement of two judges of the same documents, [D], with its interval and Cohen's kappa."""
    hits, trials = int((judged == labels).sum()), int(labels.size)
    low, high = wilson(hits, trials)
    own, theirs = float(np.mean(judged)), float(np.mean(labels))
    chance = own * theirs + (1 - own) * (1 - theirs)
    kappa = (hits / trials - chance) / (1 - chance) if chance < 1 else 0.0
    shares = {"agreement": hits / trials, "agreement_low": low, "agreement_high": high, "kappa": kappa}
    shares["majority"] = max(theirs, 1 - theirs)
    return {name: round(value, 6) for name, value in shares.items()} | {"test_documents": trials}


TRAINER = ModelTrainer(
    kind=KIND,
    version=VERSION,
    description="Classifier that learns an annotator's labels, such as those of a language model.",
    source="Penedo et al. 2024 (FineWeb-Edu) for the method; the classifier is that of `kind: classifier`.",
    params=StudentParams,
    buckets=lambda params: params.buckets,
    sidecars=lambda params: tuple(f"{bucket}/{params.annotator}" for bucket in params.buckets),
    train=train,
    libraries=classifier.LIBRARIES,
    bounds=lambda params: (("auc", params.min_auc, None), ("agreement_low", params.min_agreement, None)),
)
