"""Scores of a document by a ready fastText model: the likeliest label, and the probability of a chosen one.

For models that others trained: quality (DCLM), toxicity (Dolma), topics, languages. A recipe uses it once for each
model, under a name of its own: `fasttext_quality: {model: quality, target: hq}`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.models import ready_fasttext
from plinth.errors import RecipeError
from plinth.records import Frozen
from plinth_text.fasttext.predict import DocumentScorer

#: Null where the model knows nothing of a text.
SCHEMA = pa.schema(
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


def prepare(params: FastTextParams, files: Files) -> DocumentScorer:
    """The model from its file.

    Raises:
        ModelFileError: the file is no such model.
        RecipeError: it has no label `target`.
    """
    key = f"models/{params.model}"
    model = ready_fasttext.read(files[key], key)
    if params.target is not None and params.target not in model.labels:
        labels = ", ".join(sorted(model.labels)[:20])
        raise RecipeError(f"the fastText model has no label {params.target!r}", expected=labels)
    return DocumentScorer(model, params.target)


def annotate(batch: pa.RecordBatch, scorer: DocumentScorer) -> pa.RecordBatch:
    """Label as the model has it, its probability, and that of the target: those of fastText's own `predict`."""
    found = scorer.score(batch.column("text"))
    nothing = found.labels < 0
    labels = pa.array(scorer.model.labels, pa.string()).take(pa.array(found.labels, mask=nothing))
    targets = pa.array(found.targets, mask=nothing | (scorer.target is None))
    return pa.record_batch([labels, pa.array(found.scores, mask=nothing), targets], schema=SCHEMA)


def _resources(params: Any) -> tuple[str, ...]:
    return (f"models/{params.model}",)


ANNOTATOR = Annotator(
    name="fasttext",
    version="1",
    description="The likeliest label of a ready fastText model, its probability, and that of a chosen label.",
    source="Joulin et al. 2016 (fastText 0.9.2); as DCLM (Li et al. 2024) and Dolma (Soldaini et al. 2024) filter.",
    params=FastTextParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=_resources,
    prepare=prepare,
)
