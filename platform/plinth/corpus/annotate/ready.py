"""Scores of a document by a ready model of others: a fastText model, or a transformer head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.models import given
from plinth.corpus.models.given import TransformerHead
from plinth.errors import RecipeError
from plinth.records import Frozen, internal
from plinth_text.fasttext.predict import DocumentScorer

# Scores of a document by a ready fastText model: the likeliest label, and the probability of a chosen one.
#
# For models that others trained: quality (DCLM), toxicity (Dolma), topics, languages. A recipe uses it once for each
# model, under a name of its own: `fasttext_quality: {model: quality, target: hq}`.

#: Null where the model knows nothing of a text.
FASTTEXT_SCHEMA = pa.schema(
    [
        pa.field("label", pa.string()),
        pa.field("score", pa.float32()),
        pa.field("target_score", pa.float32()),  # null without a target, too
    ]
)


class FastTextParams(Frozen):
    """Which model, and which of its labels."""

    model: str = Field(description="Name of a model in `corpus.models`, `kind: given` and `of: fasttext`.")
    target: str | None = Field(
        None, description="Label whose probability is `target_score`, without `__label__`; null: none."
    )


def prepare_fasttext(params: FastTextParams, files: Files) -> DocumentScorer:
    """The model from its file.

    Raises:
        ModelFileError: the file is no such model.
        RecipeError: it has no label `target`.
    """
    key = f"models/{params.model}"
    model = given.read_fasttext(files[key], key)
    if params.target is not None and params.target not in model.labels:
        labels = ", ".join(sorted(model.labels)[:20])
        raise RecipeError(f"the fastText model has no label {params.target!r}", expected=labels)
    return DocumentScorer(model, params.target)


def annotate_fasttext(batch: pa.RecordBatch, scorer: DocumentScorer) -> pa.RecordBatch:
    """Label as the model has it, its probability, and that of the target: those of fastText's own `predict`."""
    found = scorer.score(batch.column("text"))
    nothing = found.labels < 0
    labels = pa.array(scorer.model.labels, pa.string()).take(pa.array(found.labels, mask=nothing))
    targets = pa.array(found.targets, mask=nothing | (scorer.target is None))
    return pa.record_batch([labels, pa.array(found.scores, mask=nothing), targets], schema=FASTTEXT_SCHEMA)


def _resources(params: Any) -> tuple[str, ...]:
    return (f"models/{params.model}",)


FASTTEXT = Annotator(
    name="fasttext",
    version="1",
    description="The likeliest label of a ready fastText model, its probability, and that of a chosen label.",
    source="Joulin et al. 2016 (fastText 0.9.2); as DCLM (Li et al. 2024) and Dolma (Soldaini et al. 2024) filter.",
    params=FastTextParams,
    schema=FASTTEXT_SCHEMA,
    reads=("text",),
    annotate=annotate_fasttext,
    resources=_resources,
    prepare=prepare_fasttext,
)


# Scores of a document by a ready transformer head: FineWeb-Edu's kind, and classifiers with labels.
#
# It reads the beginning of a text, 512 tokens by default, on a GPU where there is one. A core scores some documents a
# second, `fasttext` some ten thousand: drop first what a fastText model is sure about (docs/learned-gates.md).

TRANSFORMER_SCHEMA = pa.schema(
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


def prepare_transformer(params: TransformerParams, files: Files) -> _Prepared:
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


def annotate_transformer(batch: pa.RecordBatch, prepared: _Prepared) -> pa.RecordBatch:
    """Of labels the likeliest, its probability, and the target's; of a regression its (first) number as `score`."""
    head, rows = prepared.head, batch.num_rows
    found = head.score(batch.column("text").to_pylist())
    if head.regression:
        labels, scores = pa.nulls(rows, pa.string()), found.scores[:, 0]
    else:
        labels, scores = pa.array(head.labels).take(pa.array(found.scores.argmax(axis=1))), found.scores.max(axis=1)
    targets = pa.nulls(rows, pa.float32()) if prepared.target is None else pa.array(found.scores[:, prepared.target])
    return pa.record_batch([labels, pa.array(scores), targets, pa.array(found.tokens)], schema=TRANSFORMER_SCHEMA)


TRANSFORMER = Annotator(
    name="transformer",
    version="1",
    description="Label and probability, or number, that a ready transformer head gives for the beginning of a text.",
    source="Penedo et al. 2024 (FineWeb-Edu); any `AutoModelForSequenceClassification` of transformers.",
    params=TransformerParams,
    schema=TRANSFORMER_SCHEMA,
    reads=("text",),
    annotate=annotate_transformer,
    resources=_resources,
    libraries=lambda params: given.LIBRARIES,
    prepare=prepare_transformer,
)
