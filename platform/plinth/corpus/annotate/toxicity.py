"""Toxicity in layers: a lexicon of yours, a classifier trained on labels of yours, a second stage where it doubts.

The lexicon finds terms, openly or in thin disguise, and where they stand; by itself it knows no context, so anatomy
and court reports hit it, too. The classifier scores the worst stretch of a text (its model's `window`), and its
second stage also reads the lexicon's hits; it scores where the first is in doubt, or below doubt although terms were
found. `final` is the score of the last layer, or without a model the weight of the lexicon's hits. Plinth brings no
list of words: see docs/learned-gates.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.annotate.quality_classifier import staged
from plinth.corpus.models import lexicon
from plinth.corpus.models.classify import artefact, classifier
from plinth.corpus.models.lexicon import Lexicon
from plinth.errors import RecipeError
from plinth.records import Frozen, internal
from plinth.schemas import EDIT_TYPE
from plinth_text.arrays import F64
from plinth_text.terms.lexicon import TermHits

SCHEMA = pa.schema(
    [
        pa.field("lexicon_hits", pa.int32(), nullable=False),
        pa.field("lexicon_density", pa.float64(), nullable=False),  # summed weight of hits per 100 words
        pa.field("score", pa.float64()),  # null without a model
        pa.field("second_score", pa.float64()),  # null where the first stage is sure, or there is no model
        pa.field("final", pa.float64(), nullable=False),
        pa.field("label", pa.string(), nullable=False),
        pa.field("category", pa.string()),  # of the hits that weigh most together; null without hits
        pa.field("spans", EDIT_TYPE, nullable=False),
    ]
)
LABELS = ("clean", "uncertain", "toxic")


class ToxicityParams(Frozen):
    """The layers; `null` takes one away."""

    lexicon: str | None = Field("toxic", description="Name of a list of terms in `corpus.lists`.")
    model: str | None = internal("toxicity", description="Name of a model of kind `classifier` in `corpus.models`.")
    disguised: bool = internal(True, description="Whether terms are found in disguise (`sp4m`, `s.p.a.m`).")
    saturation: float = internal(
        2.0, gt=0, description="Without a model: weight per 100 words at which `final` reaches 1."
    )
    uncertain: float = internal(0.3, ge=0, le=1, description="Least `final` of label `uncertain`; below is `clean`.")
    toxic: float = internal(0.7, ge=0, le=1, description="Least `final` of label `toxic`.")

    @model_validator(mode="after")
    def _some_layer(self) -> ToxicityParams:
        if self.lexicon is None and self.model is None:
            raise ValueError("needs `lexicon`, `model` or both")
        if self.uncertain > self.toxic:
            raise ValueError("`uncertain` lies above `toxic`")
        return self


@dataclass(frozen=True)
class ToxicityLayers:
    """The layers ready for use."""

    params: ToxicityParams
    lexicon: Lexicon | None
    model: artefact.ClassifierModel | None


def prepare(params: ToxicityParams, files: Files) -> ToxicityLayers:
    """Lexicon and model from their files.

    Raises:
        SourceError: the lexicon is refused; names the line.
        IntegrityError: the model's files are those of another version or kind, or damaged.
        RecipeError: the model was trained with another lexicon.
    """
    terms, model = None, None
    if params.lexicon is not None:
        key = f"lists/{params.lexicon}"
        terms = lexicon.read(files[key], key)
    if params.model is not None:
        key = f"models/{params.model}"
        model = artefact.read(files[key], key, classifier.KIND)
        if model.head.lexicon is not None and model.head.lexicon != params.lexicon:
            raise RecipeError(
                f"corpus.annotate.toxicity: {key} was trained with another lexicon",
                found=params.lexicon,
                expected=model.head.lexicon,
                remedy="give annotator and model the same `lexicon`",
            )
    return ToxicityLayers(params, terms, model)


def annotate(batch: pa.RecordBatch, layers: ToxicityLayers) -> pa.RecordBatch:
    """Hits of the lexicon with their spans (code points; nothing replaces them unless a policy says so), both
    stages' probabilities, the final score, its label, and the category whose hits weigh most."""
    texts, params, rows = batch.column("text"), layers.params, batch.num_rows
    hits, density = np.zeros(rows, np.int32), np.zeros(rows)
    categories: list[str | None] = [None] * rows
    spans: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
    if layers.lexicon is not None:
        found = layers.lexicon.find(texts, params.disguised)
        hits, density = np.diff(found.starts).astype(np.int32), _density(layers.lexicon, found, texts)
        for row in np.flatnonzero(hits).tolist():
            categories[row], spans[row] = _told(layers.lexicon, found, row)
    score, second = pa.nulls(rows, pa.float64()), pa.nulls(rows, pa.float64())
    final = np.minimum(density / params.saturation, 1.0)
    if layers.model is not None:
        known = layers.lexicon if layers.model.head.lexicon else None
        first, second, final = staged(layers.model, texts, known, hits > 0 if known else None)
        score = pa.array(first)
    label = pa.array(LABELS).take(pa.array((final >= params.uncertain).astype(np.int8) + (final >= params.toxic)))
    columns = [pa.array(hits), pa.array(density), score, second, pa.array(final), label,
               pa.array(categories, pa.string()), pa.array(spans, EDIT_TYPE)]  # fmt: skip
    return pa.record_batch(columns, schema=SCHEMA)


def _density(terms: Lexicon, found: TermHits, texts: pa.Array) -> F64:
    """Summed weight of hits per 100 words, [documents]."""
    out = np.zeros(len(texts))
    at = np.flatnonzero(np.diff(found.starts))
    if at.size:
        words = terms.terms.word_counts(texts.take(pa.array(at)))
        sums = np.add.reduceat(terms.weights[found.terms], found.starts[at])
        out[at] = 100 * sums / np.maximum(words, 1)
    return out


def _told(terms: Lexicon, found: TermHits, row: int) -> tuple[str, list[dict[str, Any]]]:
    weights: dict[str, float] = {}
    spans = []
    for at in range(found.starts[row], found.starts[row + 1]):
        term = int(found.terms[at])
        category = terms.categories[term]
        weights[category] = weights.get(category, 0.0) + float(terms.weights[term])
        start, end = found.spans[at].tolist()
        spans.append({"start_cp": start, "end_cp": end, "replacement": "", "reason": category})
    return min(weights, key=lambda name: (-weights[name], name)), spans


def _resources(params: Any) -> tuple[str, ...]:
    wanted = (f"lists/{params.lexicon}" if params.lexicon else "", f"models/{params.model}" if params.model else "")
    return tuple(key for key in wanted if key)


ANNOTATOR = Annotator(
    name="toxicity",
    version="1",
    description="Hits of your lexicon with spans, a trained classifier's probability, and a second stage's in doubt.",
    source="Layers after Soldaini et al. 2024 (Dolma): a linear classifier on stretches of text. Words are yours.",
    params=ToxicityParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=_resources,
    learned=("score", "second_score", "final", "label"),
    prepare=prepare,
)
