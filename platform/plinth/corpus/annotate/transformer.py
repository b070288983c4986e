"""Scores of a document by a ready transformer head: FineWeb-Edu's kind, and classifiers with labels.

It reads the beginning of a text, 512 tokens by default, on a GPU where there is one. A core scores some documents a
second, `fasttext` some ten thousand: drop first what a fastText model is sure about (docs/learned-gates.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.models import ready_transformer
from plinth.corpus.models.ready_transformer import TransformerHead
from plinth.errors import RecipeError
from plinth.records import Frozen, internal

SCHEMA = pa.schema(
    [
        pa.field("label", pa.string()),  # null for a regression
        pa.field("score", pa.float32(), nullable=False),
        pa.field("target_score", pa.float32()),  # null without a target
        pa.field("tokens", pa.int32(), nullable=False),
    ]
)


class TransformerParams(Frozen):
    """Which model, and which of its labels."""

    model: str = Field(description="Name of a model in `corpus.models`, `kind: given` and `of: transformer`.")
    target: str | None = Field(None, description="Label whose probability is `target_score`; null: none.")
    max_tokens: int = internal(512, ge=8, description="Tokens of a text that are read, at most the model's positions.")


@dataclass(frozen=True)
class _Prepared:
    head: TransformerHead
    target: int | None


def prepare(params: TransformerParams, files: Files) -> _Prepared:
    """The head from its folder.

    Raises:
        IntegrityError: the files are no such head.
        MissingError: `transformers` is not installed.
        RecipeError: it has no label `target`.
    """
    key = f"models/{params.model}"
    head = TransformerHead(files[key], key, params.max_tokens)
    if params.target is not None and params.target not in head.labels:
        raise RecipeError(f"{key} has no label {params.target!r}", expected=", ".join(head.labels))
    return _Prepared(head, None if params.target is None else head.labels.index(params.target))


def annotate(batch: pa.RecordBatch, prepared: _Prepared) -> pa.RecordBatch:
    """Of labels the likeliest, its probability, and the target's; of a regression its (first) number as `score`."""
    head, rows = prepared.head, batch.num_rows
    found = head.score(batch.column("text").to_pylist())
    if head.regression:
        labels, scores = pa.nulls(rows, pa.string()), found.scores[:, 0]
    else:
        labels, scores = pa.array(head.labels).take(pa.array(found.scores.argmax(axis=1))), found.scores.max(axis=1)
    targets = pa.nulls(rows, pa.float32()) if prepared.target is None else pa.array(found.scores[:, prepared.target])
    return pa.record_batch([labels, pa.array(scores), targets, pa.array(found.tokens)], schema=SCHEMA)


def _resources(params: Any) -> tuple[str, ...]:
    return (f"models/{params.model}",)


ANNOTATOR = Annotator(
    name="transformer",
    version="1",
    description="Label and probability, or number, that a ready transformer head gives for the beginning of a text.",
    source="Penedo et al. 2024 (FineWeb-Edu); any `AutoModelForSequenceClassification` of transformers.",
    params=TransformerParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=_resources,
    libraries=lambda params: ready_transformer.LIBRARIES,
    prepare=prepare,
)
