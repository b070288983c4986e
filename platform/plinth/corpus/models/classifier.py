"""Classifiers with two classes and taggers with several labels: linear models of hashed words, and boosted trees for
uncertain texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus import lists
from plinth.corpus.models import ModelTrainer, artefact, examples
from plinth.corpus.models.artefact import FORMAT, ClassifierModel, Head, Method, Second, second_features, second_names
from plinth.corpus.models.examples import Drawing, Examples, ExampleSource
from plinth.errors import StageError
from plinth.records import Frozen, Manifest, Part, Step, internal
from plinth.storage.store import Store
from plinth_text.arrays import F64, I64, Bools
from plinth_text.scoring import NAMES


class Learning(Frozen):
    """Parameters for training a linear model of hashed words."""

    documents: int = Field(
        20_000,
        ge=100,
        le=200_000,
        description="Maximum number of documents to sample per bucket or list.",
    )
    max_words: int = internal(
        1000,
        ge=16,
        le=5000,
        description="Number of words to use from the beginning of each document in training.",
    )
    bits: int = internal(
        20,
        ge=8,
        le=24,
        description="Size of the feature table, which has 2^bits rows of 4 bytes per label.",
    )
    epochs: int = internal(
        20,
        ge=1,
        le=100,
        description="Number of passes over the examples; the model of the best pass is kept.",
    )
    seed: int = internal(1, ge=0, description="Seed for the sample of documents.")
    calibration: Method = internal(
        "platt", description="Calibration method: `platt`, or `isotonic` if there are thousands of examples."
    )
    min_documents: int = Field(100, ge=20, description="Minimum number of examples per label.")
    min_auc: float = internal(0.7, ge=0.5, le=1, description="Minimum AUC on the test split to publish a model.")
    max_ece: float = internal(
        0.15,
        gt=0,
        le=1,
        description="Maximum calibration error on the test split to publish a model.",
    )

    @property
    def drawing(self) -> Drawing:
        """Parameters that the sample of examples depends on."""
        return Drawing(documents=self.documents, bits=self.bits, max_words=self.max_words, seed=self.seed)


#: From parameters, examples and the labels' names to a model and what was measured.
Fit = Callable[[Any, Examples, tuple[str, ...]], tuple[ClassifierModel, dict[str, Any]]]


@dataclass(frozen=True)
class _Task:
    fit: Fit
    params: Learning
    labels: tuple[str, ...]
    asset: str
    parts: tuple[Part, ...]


def train_learner(
    ctx: Context,
    asset: str,
    step: Step,
    fit: Fit,
    params: Learning,
    labels: tuple[str, ...],
    sources: Sequence[ExampleSource],
    terms: Manifest | None = None,
) -> Manifest:
    """Sample examples, then fit, evaluate and store a model.

    Args:
        labels: names of the labels; sources refer to them by index.

    Raises:
        StageError: a label has too few examples, or none in one of the splits.
    """
    drawn = tuple(examples.draw(ctx, asset, params.drawing, sources, terms))
    item = Item(tuple(part.blob.sha256 for part in drawn), _Task(fit, params, labels, asset, drawn), 1)
    parts = run_items(ctx, step, _train, [item], label=asset)[0]
    inputs: dict[str, Manifest | str] = {source.made.asset: source.made for source in sources}
    inputs |= {source.judged[0].asset: source.judged[0] for source in sources if source.judged}
    if terms is not None:
        inputs[terms.asset] = terms
    return manifest(asset, step, inputs, parts, parts[0].stats)


def _train(store: Store, task: _Task) -> tuple[Part, ...]:
    found = examples.load(store, task.parts, task.params.documents)
    _require(task, found)
    model, measured = task.fit(task.params, found, task.labels)
    head, *arrays = artefact.write(store, model)
    counts = np.bincount(found.documents.labels, minlength=len(task.labels))
    stats = {
        "documents": int(counts.sum()),
        "label_documents": dict(zip(task.labels, counts.tolist(), strict=True)),
        "splits": {name: int((found.splits == at).sum()) for at, name in enumerate(examples.SPLITS)},
        **measured,
    }
    return (head.model_copy(update={"stats": stats}), *arrays)


def _require(task: _Task, found: Examples) -> None:
    """Raise StageError if a label has too few examples, or none in one of the splits."""
    counts = np.bincount(found.documents.labels, minlength=len(task.labels))
    lacking = {name: int(count) for name, count in zip(task.labels, counts, strict=True)}
    lacking = {name: count for name, count in lacking.items() if count < task.params.min_documents}
    if lacking:
        raise StageError(
            f"{task.asset} cannot be trained: too few examples",
            found=", ".join(f"{count} of {name}" for name, count in lacking.items()),
            expected=f"at least {task.params.min_documents} of every label",
            remedy="use larger buckets or lists in `corpus.models`, or fix rules without matches",
        )
    for at, split in enumerate(examples.SPLITS):
        own = np.bincount(found.documents.labels[found.splits == at], minlength=len(task.labels))
        if own.min() == 0:
            raise StageError(
                f"{task.asset} cannot be trained: no examples of {task.labels[int(own.argmin())]} in the {split} split",
                found=f"{counts[int(own.argmin())]} examples, many of them copies of each other",
                expected="enough distinct texts for separate training and test sets",
                remedy="add examples, or remove the copies",
            )


def fitted(params: Learning, found: Examples, outputs: int) -> examples.Linear:
    """Fit the linear stage on the split `train`, and choose the epoch with the lowest loss on `validation`."""
    train, held = found.of("train").documents, found.of("validation").documents
    return examples.fit(train, held, outputs, params.bits, examples.Sgd(epochs=params.epochs))


def training_metrics(stage: examples.Linear) -> dict[str, Any]:
    """Return the losses of the linear stage by epoch, and other training metrics."""
    return {
        "epoch": int(np.argmin(stage.losses)) + 1,
        "validation_loss": round(min(stage.losses), 6),
        "losses": [round(loss, 6) for loss in stage.losses],
    }


# Two kinds of text: reference against random, or good against bad by a labeled list; in two stages.
#
# The first stage is linear and fast enough for every document. If its calibrated probability is in the uncertain band,
# or below it although lexicon terms match, a second stage decides: boosted trees over the first stage's margin, surface
# features of the text and, with a lexicon, its hits. Each stage is trained, calibrated and measured on disjoint
# documents. A second stage that does not improve the result is dropped.

CLASSIFIER_KIND, CLASSIFIER_VERSION = "classifier", "2"
LIBRARIES = ("unicode", "scikit-learn")

#: Margin around the band for training the second stage, as a share of the documents on either side.
_BESIDE = 0.5
#: Minimum documents per label to fit a second stage, and to calibrate it and show an improvement.
_ENOUGH, _ENOUGH_TO_PROVE = 60, 15


class TwoStages(Learning):
    """Parameters of a classifier's two stages."""

    window: int = Field(
        0,
        ge=0,
        description="Number of words per passage; a document's score is the highest score of its passages. If 0, "
        "whole documents are scored.",
    )
    band: tuple[float, float] = internal(
        (0.3, 0.7), description="Range of the first stage's probability in which the second stage is used."
    )
    second_stage: bool = internal(True, description="Train a second stage.")


class ClassifierParams(TwoStages):
    """Parameters of a classifier: sources of the two labels, and settings of the stages."""

    reference: tuple[str, ...] = Field(
        (),
        description="Buckets with good text, whose documents are the positive examples.",
    )
    random: tuple[str, ...] = Field(
        (),
        description="Buckets with arbitrary text, whose documents are the negative examples.",
    )
    labelled: tuple[str, ...] = Field(
        (),
        description="Labeled lists to use instead of buckets: JSONL files with the fields `text` and `label`.",
    )
    positive: str = Field("bad", description="Value of the field `label` whose probability the classifier predicts.")
    lexicon: str | None = Field(
        None,
        description="List of terms in `corpus.lists`; matches of its terms are features of the second stage.",
    )

    @model_validator(mode="after")
    def _one_way(self) -> ClassifierParams:
        if bool(self.labelled) == bool(self.reference or self.random):
            raise ValueError("set either `labelled`, or `reference` and `random`")
        if not self.labelled and not (self.reference and self.random):
            raise ValueError("set both `reference` and `random`")
        if set(self.reference) & set(self.random):
            raise ValueError("a bucket is both `reference` and `random`")
        if not 0 <= self.band[0] < self.band[1] <= 1:
            raise ValueError("`band` must be two ascending probabilities")
        return self


def train_classifier(
    ctx: Context, asset: str, params: ClassifierParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """Train a classifier and return the manifest of its files.

    Statistics are `documents`, `label_documents`, `splits` and training metrics. `auc`, `average_precision`, `brier`
    and `ece` measure the first stage on the test split. The same names with the prefix `final_` measure both stages
    together. `border_share`, `border_auc` and `border_second_auc` describe uncertain documents.

    Raises:
        StageError: one of the two labels has too few examples.
    """
    values = ((params.positive, 1),)
    sources = [
        *(ExampleSource(name, lists[name], label=0, values=values, is_list=True) for name in params.labelled),
        *(ExampleSource(name, documents[name], label=1) for name in params.reference),
        *(ExampleSource(name, documents[name], label=0) for name in params.random),
    ]
    step = Step(
        name=f"models/{CLASSIFIER_KIND}",
        version=CLASSIFIER_VERSION,
        params=params.model_dump(mode="json"),
        libraries=fingerprint.libraries(*LIBRARIES),
    )
    names = ("other", params.positive) if params.labelled else ("random", "reference")
    terms = lists[params.lexicon] if params.lexicon else None
    return train_learner(ctx, asset, step, fit_classifier, params, names, sources, terms)


def fit_classifier(
    params: ClassifierParams, found: Examples, labels: tuple[str, ...]
) -> tuple[ClassifierModel, dict[str, Any]]:
    """Fit a classifier to the examples, and return it with its metrics. The model depends only on the arguments."""
    model, stage = fit_stages(params, found, labels, params.lexicon)
    return model, training_metrics(stage) | measured_stages(model, stage, found.of("test"))


def fit_stages(
    params: TwoStages, found: Examples, labels: tuple[str, ...], lexicon: str | None = None
) -> tuple[ClassifierModel, examples.Linear]:
    """Fit both stages to the examples; return the model, and its first stage with the training metrics."""
    stage = fitted(params, found, 1)
    curve = artefact.fit_curve(params.calibration, *_judged(stage, found.of("calibration"), params.window))
    head = Head(
        format=FORMAT,
        kind=CLASSIFIER_KIND,
        labels=(labels[1],),
        bits=params.bits,
        window=params.window,
        bias=tuple(stage.bias.tolist()),
        curves=(curve,),
        band=params.band,
        lexicon=lexicon,
    )
    return _with_second(params, ClassifierModel(head, stage.table), stage, found), stage


def _judged(stage: examples.Linear, some: Examples, window: int) -> tuple[F64, I64, F64]:
    """Return the margins, the true labels and the weights of the examples."""
    truth = some.documents.labels
    margins = examples.margins(some.documents, stage.table, stage.bias, window)[:, 0]
    return margins, truth, artefact.balanced(truth, 2)


def _with_second(
    params: TwoStages, model: ClassifierModel, stage: examples.Linear, found: Examples
) -> ClassifierModel:
    """Return the model with a second stage if the second stage improves it. There must be enough uncertain documents,
    and the second stage must have a lower loss than the first stage on uncertain documents that were not used for
    training."""
    if not params.second_stage:
        return model
    border = found.of("border")
    margins, truth, weights = _judged(stage, border, params.window)
    hits = _hits(model.head.lexicon, border)
    chosen = _near(model.head.curves[0](margins), params.band, hits, truth)
    if chosen is None:
        return model
    forest = artefact.fit_trees(second_features(margins, border.dense)[chosen], truth[chosen], weights[chosen])
    calibration = found.of("calibration")
    margins, truth, weights = _judged(stage, calibration, params.window)
    first = model.head.curves[0](margins)
    doubt = doubtful(first, params.band, _hits(model.head.lexicon, calibration))
    if not _both(truth[doubt], _ENOUGH_TO_PROVE):
        return model
    raw = forest.margins(second_features(margins, calibration.dense)[doubt])
    curve = artefact.platt(raw, truth[doubt], weights[doubt])
    losses = [artefact.log_loss(truth[doubt], p, weights[doubt]) for p in (curve(raw), first[doubt])]
    if losses[0] >= losses[1]:
        return model
    names = second_names(lists.FEATURES if model.head.lexicon else ())
    head = model.head.model_copy(update={"second": Second(features=names, base=forest.base, curve=curve)})
    return ClassifierModel(head, model.table, forest)


def _hits(terms: str | None, some: Examples) -> Bools | None:
    """Return a mask of the examples that contain a term of the lexicon, or None if there is no lexicon."""
    return None if terms is None else np.asarray(some.dense[:, len(NAMES)] > 0)


def _near(
    p: F64, band: tuple[float, float], hits: Bools | None, truth: I64
) -> Bools | None:
    """Return a mask of the documents in and near the uncertainty band. If there are too few, return a mask of all
    documents. If all documents are too few, return None."""
    wide = doubtful(p, (band[0] * (1 - _BESIDE), band[1] + (1 - band[1]) * _BESIDE), hits)
    for chosen in (wide, np.ones_like(wide)):
        if _both(truth[chosen], _ENOUGH):
            return chosen
    return None


def _both(truth: I64, least: int) -> bool:
    return bool(min((truth == 0).sum(), (truth == 1).sum()) >= least)


def doubtful(p: F64, band: tuple[float, float], hits: Bools | None = None) -> Bools:
    """Return a mask of the documents whose probability is in the uncertainty band. A document with a lower probability
    is included if `hits` is True for it."""
    inside = (p >= band[0]) & (p <= band[1])
    return np.asarray(inside if hits is None else inside | (hits & (p < band[0])))


def final_probabilities(model: ClassifierModel, stage: examples.Linear, some: Examples) -> F64:
    """Return the probability of each example after both stages, [D]."""
    margins = examples.margins(some.documents, stage.table, stage.bias, model.head.window)[:, 0]
    first = model.head.curves[0](margins)
    if model.forest is None:
        return first
    doubt = doubtful(first, model.head.band, _hits(model.head.lexicon, some))
    first[doubt] = model.second(margins[doubt], some.dense[doubt])
    return first


def measured_stages(model: ClassifierModel, stage: examples.Linear, test: Examples) -> dict[str, Any]:
    """Return the metrics of the first stage, of both stages, and of uncertain documents, on the test split."""
    margins, truth, weights = _judged(stage, test, model.head.window)
    first = model.head.curves[0](margins)
    doubt = doubtful(first, model.head.band, _hits(model.head.lexicon, test))
    final = final_probabilities(model, stage, test)
    border: dict[str, Any] = {"border_share": round(float(np.average(doubt, weights=weights)), 6)}
    if _both(truth[doubt], 1):
        own = truth[doubt], weights[doubt]
        border["border_auc"] = round(artefact.auc(own[0], first[doubt], own[1]), 6)
        border["border_second_auc"] = round(artefact.auc(own[0], final[doubt], own[1]), 6)
    whole = {f"final_{name}": value for name, value in artefact.quality(truth, final, weights).items()}
    return artefact.quality(truth, first, weights) | whole | border | {"second_stage": model.forest is not None}


CLASSIFIER = ModelTrainer(
    kind=CLASSIFIER_KIND,
    version=CLASSIFIER_VERSION,
    description="Calibrated linear classifier on hashed words and word pairs, with boosted trees for uncertain texts.",
    source="Joulin et al. 2016 (fastText); Li et al. 2024 (DCLM), reference against random; Platt; Ke et al. 2017.",
    params=ClassifierParams,
    buckets=lambda params: (*params.reference, *params.random),
    lists=lambda params: (*params.labelled, *((params.lexicon,) if params.lexicon else ())),
    train=train_classifier,
    libraries=LIBRARIES,
    bounds=lambda params: (("auc", params.min_auc, None), ("final_auc", params.min_auc, None),
                           ("final_ece", None, params.max_ece)),
)  # fmt: skip


# Several kinds of text: domain or function, one label against the rest, for the mixture.
#
# Labels come from buckets (everything in `code` is code) or from patterns of URIs (`*/docs/*` is a manual).

TAGGER_KIND, VERSION = "tagger", "2"


class UriRule(Frozen):
    """URI pattern, and the label of documents whose URI matches it."""

    uri: str = Field(
        min_length=1,
        description="Pattern with `*`, `?` and `[…]` that the whole URI of a document must match.",
    )
    label: str = Field(pattern=r"^[a-z][a-z0-9_-]*$", description="Label of documents whose URI matches the pattern.")


class TaggerParams(Learning):
    """Parameters of a tagger: labels of documents, by bucket or by URI."""

    labels: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Buckets by label; all documents of a bucket get the label of the bucket."
    )
    rules: tuple[UriRule, ...] = Field(
        (),
        description="URI patterns with labels; a document gets the label of the first pattern that matches.",
    )
    rule_buckets: tuple[str, ...] = Field((), description="Buckets whose documents are labeled by the patterns.")

    @model_validator(mode="after")
    def _two_labels(self) -> TaggerParams:
        if bool(self.rules) != bool(self.rule_buckets):
            raise ValueError("`rules` and `rule_buckets` require each other")
        if len(self.names) < 2:
            raise ValueError("a tagger needs at least two labels")
        if len(self.names) > 100:
            raise ValueError("more than 100 labels")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Return all labels of the tagger, sorted."""
        return tuple(sorted({*self.labels, *(rule.label for rule in self.rules)}))


def train_tagger(
    ctx: Context, asset: str, params: TaggerParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """Train a tagger and return the manifest of its files.

    Statistics are `documents`, `label_documents`, `splits` and training metrics. The following are measured on the test
    split: `accuracy`, `macro_f1` (labels with equal weight), `auc` (mean over labels), `worst_auc`, `ece` (of the most
    probable label), and `labels`, which has `auc`, `average_precision`, `brier`, `ece`, `precision` and `recall` of
    each label.

    Raises:
        StageError: a label has too few examples.
    """
    globs = tuple((rule.uri, params.names.index(rule.label)) for rule in params.rules)
    sources = [
        ExampleSource(name, documents[name], label=params.names.index(label))
        for label, buckets in sorted(params.labels.items())
        for name in buckets
    ]
    sources += [ExampleSource(name, documents[name], globs=globs) for name in params.rule_buckets]
    step = Step(
        name=f"models/{TAGGER_KIND}",
        version=VERSION,
        params=params.model_dump(mode="json"),
        libraries=fingerprint.UNICODE,
    )
    return train_learner(ctx, asset, step, fit_tagger, params, params.names, sources)


def fit_tagger(
    params: TaggerParams, found: Examples, labels: tuple[str, ...]
) -> tuple[ClassifierModel, dict[str, Any]]:
    """Fit a tagger to the examples, and return it with its metrics. The model depends only on the arguments."""
    outputs = len(labels) if len(labels) > 2 else 2
    stage = fitted(params, found, outputs)
    calibration, test = found.of("calibration").documents, found.of("test").documents
    margins = examples.margins(calibration, stage.table, stage.bias)
    truths, weights = examples.truth(calibration.labels, outputs), artefact.balanced(calibration.labels, outputs)
    curves = tuple(artefact.fit_curve(params.calibration, margins[:, k], truths[:, k], weights) for k in range(outputs))
    head = Head(
        format=FORMAT,
        kind=TAGGER_KIND,
        labels=labels,
        bits=params.bits,
        window=0,
        bias=tuple(stage.bias.tolist()),
        curves=curves,
        band=(0.0, 1.0),
    )
    return ClassifierModel(head, stage.table), training_metrics(stage) | _measured(head, stage, test)


def _measured(head: Head, stage: examples.Linear, test: examples.Ragged) -> dict[str, Any]:
    margins = examples.margins(test, stage.table, stage.bias)
    p = np.stack([curve(margins[:, k]) for k, curve in enumerate(head.curves)], axis=1)
    winner, weights = p.argmax(axis=1), artefact.balanced(test.labels, len(head.labels))
    truths = examples.truth(test.labels, len(head.labels))
    by_label = {}
    for k, name in enumerate(head.labels):
        right = weights[(winner == k) & (test.labels == k)].sum()
        given, there = weights[winner == k].sum(), weights[test.labels == k].sum()
        shares = {"precision": right / given if given else 0.0, "recall": right / there}
        rounded = {key: round(float(share), 6) for key, share in shares.items()}
        by_label[name] = artefact.quality(truths[:, k], p[:, k], weights) | rounded
    pairs = [(one["precision"], one["recall"]) for one in by_label.values()]
    f1 = [2 * precision * recall / max(precision + recall, 1e-12) for precision, recall in pairs]
    hit = (winner == test.labels).astype(np.float64)
    return {
        "accuracy": round(float(np.average(hit, weights=weights)), 6),
        "macro_f1": round(float(np.mean(f1)), 6),
        "auc": round(float(np.mean([one["auc"] for one in by_label.values()])), 6),
        "worst_auc": min(one["auc"] for one in by_label.values()),
        "ece": round(artefact.calibration_error(hit, p.max(axis=1), weights), 6),
        "labels": by_label,
    }


TAGGER = ModelTrainer(
    kind=TAGGER_KIND,
    version=VERSION,
    description="Calibrated linear tagger on hashed words and word pairs, one label against the rest.",
    source="Joulin et al. 2016 (fastText); Platt 1999. The recipe defines the labels.",
    params=TaggerParams,
    buckets=lambda params: tuple(
        dict.fromkeys([*(name for names in params.labels.values() for name in names), *params.rule_buckets])
    ),
    train=train_tagger,
    bounds=lambda params: (("worst_auc", params.min_auc, None), ("ece", None, params.max_ece)),
)
