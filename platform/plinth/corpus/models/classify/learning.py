"""Shared by classifier and tagger: parameters, the checks before training, and training as one cached item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.models import examples
from plinth.corpus.models.classify import artefact, linear
from plinth.corpus.models.classify.artefact import ClassifierModel
from plinth.corpus.models.classify.probabilities import Method
from plinth.corpus.models.examples import Drawing, Examples, ExampleSource
from plinth.errors import StageError
from plinth.records import Frozen, Manifest, Part, Step, internal
from plinth.storage.store import Store


class Learning(Frozen):
    """How a linear model is trained."""

    documents: int = Field(20_000, ge=100, le=200_000, description="Most documents of a bucket or list.")
    max_words: int = internal(1000, ge=16, le=5000, description="Words of a document that are learnt from.")
    bits: int = internal(20, ge=8, le=24, description="The table of features has 2^bits rows of 4 bytes a label.")
    epochs: int = internal(20, ge=1, le=100, description="Passes over the examples; the best one is kept.")
    seed: int = internal(1, ge=0, description="Of the sample.")
    calibration: Method = internal("platt", description="`platt`, or `isotonic` where there are thousands of examples.")
    min_documents: int = Field(100, ge=20, description="Fewer examples of a label are refused.")
    min_auc: float = internal(0.7, ge=0.5, le=1, description="Least held-out AUC of a model that is published.")
    max_ece: float = internal(0.15, gt=0, le=1, description="Most calibration error of a model that is published.")

    @property
    def drawing(self) -> Drawing:
        """How examples are made."""
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


def train(
    ctx: Context,
    asset: str,
    step: Step,
    fit: Fit,
    params: Learning,
    labels: tuple[str, ...],
    sources: Sequence[ExampleSource],
    terms: Manifest | None = None,
) -> Manifest:
    """Draw examples, fit, measure, and store the model.

    Args:
        labels: names of the labels that sources number.

    Raises:
        StageError: a label, or a split of one, has too few examples.
    """
    drawn = tuple(examples.draw(ctx, asset, params.drawing, sources, terms))
    item = Item(tuple(part.blob.sha256 for part in drawn), _Task(fit, params, labels, asset, drawn), 1)
    parts = run_items(ctx, step, _train, [item], label=asset)[0]
    inputs: dict[str, Manifest | str] = {source.made.asset: source.made for source in sources}
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
    """Every label has examples enough, and some in every split."""
    counts = np.bincount(found.documents.labels, minlength=len(task.labels))
    lacking = {name: int(count) for name, count in zip(task.labels, counts, strict=True)}
    lacking = {name: count for name, count in lacking.items() if count < task.params.min_documents}
    if lacking:
        raise StageError(
            f"{task.asset} cannot be trained: too few examples",
            found=", ".join(f"{count} of {name}" for name, count in lacking.items()),
            expected=f"at least {task.params.min_documents} of every label",
            remedy="name larger buckets or lists in `corpus.models`, or correct rules that match nothing",
        )
    for at, split in enumerate(examples.SPLITS):
        own = np.bincount(found.documents.labels[found.splits == at], minlength=len(task.labels))
        if own.min() == 0:
            raise StageError(
                f"{task.asset} cannot be trained: nothing of {task.labels[int(own.argmin())]} fell into {split}",
                found=f"{counts[int(own.argmin())]} examples, many of them copies of each other",
                expected="different texts enough to measure the model on others than it learnt from",
                remedy="give it more, or remove the copies",
            )


def fitted(params: Learning, found: Examples, outputs: int) -> linear.Linear:
    """The linear stage, trained on `train`, its best epoch chosen on `validation`."""
    train, held = found.of("train").documents, found.of("validation").documents
    return linear.fit(train, held, outputs, params.bits, linear.Sgd(epochs=params.epochs))


def learnt(stage: linear.Linear) -> dict[str, Any]:
    """How the training of the linear stage went."""
    return {
        "epoch": int(np.argmin(stage.losses)) + 1,
        "validation_loss": round(min(stage.losses), 6),
        "losses": [round(loss, 6) for loss in stage.losses],
    }
