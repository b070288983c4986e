"""Several kinds of text: domain or function, one label against the rest, for the mixture.

Labels come from buckets (everything in `code` is code) or from patterns of URIs (`*/docs/*` is a manual).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.models.classify import learning, linear, probabilities
from plinth.corpus.models.classify.artefact import FORMAT, ClassifierModel, Head
from plinth.corpus.models.classify.learning import Learning
from plinth.corpus.models.examples import Examples, ExampleSource
from plinth.corpus.models.trainers import ModelTrainer
from plinth.records import Frozen, Manifest, Step

KIND, VERSION = "tagger", "1"


class UriRule(Frozen):
    """Documents whose URI matches have a label."""

    uri: str = Field(min_length=1, description="Pattern with `*`, `?` and `[…]`; the whole URI must match.")
    label: str = Field(pattern=r"^[a-z][a-z0-9_-]*$", description="What such documents are.")


class TaggerParams(Learning):
    """The labels of documents, by bucket or URI."""

    labels: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Buckets by the label that all their documents have."
    )
    rules: tuple[UriRule, ...] = Field((), description="Patterns of URIs with labels; the first that matches counts.")
    rule_buckets: tuple[str, ...] = Field((), description="Buckets whose documents the patterns label.")

    @model_validator(mode="after")
    def _two_labels(self) -> TaggerParams:
        if bool(self.rules) != bool(self.rule_buckets):
            raise ValueError("`rules` need `rule_buckets`, and these need rules")
        if len(self.names) < 2:
            raise ValueError("needs two labels or more")
        if len(self.names) > 100:
            raise ValueError("more than 100 labels")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All labels, sorted."""
        return tuple(sorted({*self.labels, *(rule.label for rule in self.rules)}))


def train(
    ctx: Context, asset: str, params: TaggerParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """Manifest of the model's files. Statistics: `documents`, `label_documents`, `splits`, how training went; on the
    test split `accuracy` and `macro_f1` (labels weighing the same), `auc` (mean over labels), `worst_auc`, `ece` (of
    the winner's probability), and `labels`: `auc`, `average_precision`, `brier`, `ece`, `precision`, `recall` of each.

    Raises:
        StageError: too few examples of a label.
    """
    globs = tuple((rule.uri, params.names.index(rule.label)) for rule in params.rules)
    sources = [
        ExampleSource(name, documents[name], label=params.names.index(label))
        for label, buckets in sorted(params.labels.items())
        for name in buckets
    ]
    sources += [ExampleSource(name, documents[name], globs=globs) for name in params.rule_buckets]
    step = Step(
        name=f"models/{KIND}",
        version=VERSION,
        params=params.model_dump(mode="json"),
        libraries=fingerprint.UNICODE,
    )
    return learning.train(ctx, asset, step, fit, params, params.names, sources)


def fit(params: TaggerParams, found: Examples, labels: tuple[str, ...]) -> tuple[ClassifierModel, dict[str, Any]]:
    """The model and its measures; a pure function of the examples."""
    outputs = len(labels) if len(labels) > 2 else 2
    stage = learning.fitted(params, found, outputs)
    calibration, test = found.of("calibration").documents, found.of("test").documents
    margins = linear.margins(calibration, stage.table, stage.bias)
    truths, weights = linear.truth(calibration.labels, outputs), probabilities.balanced(calibration.labels, outputs)
    curves = tuple(probabilities.fit(params.calibration, margins[:, k], truths[:, k], weights) for k in range(outputs))
    head = Head(
        format=FORMAT,
        kind=KIND,
        labels=labels,
        bits=params.bits,
        window=0,
        bias=tuple(stage.bias.tolist()),
        curves=curves,
        band=(0.0, 1.0),
    )
    return ClassifierModel(head, stage.table), learning.learnt(stage) | _measured(head, stage, test)


def _measured(head: Head, stage: linear.Linear, test: linear.Ragged) -> dict[str, Any]:
    margins = linear.margins(test, stage.table, stage.bias)
    p = np.stack([curve(margins[:, k]) for k, curve in enumerate(head.curves)], axis=1)
    winner, weights = p.argmax(axis=1), probabilities.balanced(test.labels, len(head.labels))
    truths = linear.truth(test.labels, len(head.labels))
    by_label = {}
    for k, name in enumerate(head.labels):
        right = weights[(winner == k) & (test.labels == k)].sum()
        given, there = weights[winner == k].sum(), weights[test.labels == k].sum()
        shares = {"precision": right / given if given else 0.0, "recall": right / there}
        rounded = {key: round(float(share), 6) for key, share in shares.items()}
        by_label[name] = probabilities.quality(truths[:, k], p[:, k], weights) | rounded
    pairs = [(one["precision"], one["recall"]) for one in by_label.values()]
    f1 = [2 * precision * recall / max(precision + recall, 1e-12) for precision, recall in pairs]
    hit = (winner == test.labels).astype(np.float64)
    return {
        "accuracy": round(float(np.average(hit, weights=weights)), 6),
        "macro_f1": round(float(np.mean(f1)), 6),
        "auc": round(float(np.mean([one["auc"] for one in by_label.values()])), 6),
        "worst_auc": min(one["auc"] for one in by_label.values()),
        "ece": round(probabilities.calibration_error(hit, p.max(axis=1), weights), 6),
        "labels": by_label,
    }


TRAINER = ModelTrainer(
    kind=KIND,
    version=VERSION,
    description="Linear tagger on hashed words and pairs of words, one label against the rest, calibrated.",
    source="Joulin et al. 2016 (fastText); Platt 1999. Labels are the recipe's.",
    params=TaggerParams,
    buckets=lambda params: tuple(
        dict.fromkeys([*(name for names in params.labels.values() for name in names), *params.rule_buckets])
    ),
    train=train,
    bounds=lambda params: (("worst_auc", params.min_auc, None), ("ece", None, params.max_ece)),
)
