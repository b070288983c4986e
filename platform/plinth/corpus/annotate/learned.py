"""Annotators that score documents with a model trained by the pipeline (`corpus.models`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from plinth.corpus import lists
from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.lists import Lexicon
from plinth.corpus.models import artefact, classifier, ngram
from plinth.corpus.models.examples import second_look
from plinth.errors import RecipeError
from plinth.records import Frozen, internal
from plinth.storage.parts import EDIT_TYPE
from plinth_text.arrays import F64, Bools
from plinth_text.terms import TermHits

PERPLEXITY_SCHEMA = pa.schema(
    [
        pa.field("perplexity", pa.float32()),  # per token, including sentence ends; null for a text without tokens
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("unknown", pa.float32(), nullable=False),  # share of tokens that the model does not know
        pa.field("band", pa.string()),  # head, middle, tail; null if perplexity is null
    ]
)
BANDS = ("head", "middle", "tail")


class PerplexityParams(Frozen):
    """Parameters of the annotator `perplexity`: the n-gram model."""

    model: str = internal("perplexity", description="Name of an `ngram` model in `corpus.models`.")


def annotate_perplexity(batch: pa.RecordBatch, model: ngram.NgramModel) -> pa.RecordBatch:
    """Annotate each text with its perplexity under the n-gram model. Each line counts as a sentence."""
    values, counts = model.perplexity(batch.column("text"))
    none = ~np.isfinite(values)
    band = np.searchsorted(np.asarray(model.head["bands"]), np.where(none, 0.0, values), side="right")
    unknown = counts[:, 2] / np.maximum(counts[:, 0], 1)
    columns = [
        pa.array(values.astype(np.float32), mask=none),
        pa.array(counts[:, 0].astype(np.int32)),
        pa.array(unknown.astype(np.float32)),
        pa.array(BANDS).take(pa.array(band, mask=none)),
    ]
    return pa.record_batch(columns, schema=PERPLEXITY_SCHEMA)


def prepare_perplexity(params: PerplexityParams, files: Files) -> ngram.NgramModel:
    """Load the n-gram model.

    Raises:
        IntegrityError: the model has a different version, or is damaged.
    """
    key = f"models/{params.model}"
    return ngram.read(files[key], key)


def _resources(params: Any) -> tuple[str, ...]:
    return (f"models/{params.model}",)


PERPLEXITY = Annotator(
    name="perplexity",
    version="1",
    description="Perplexity under an n-gram model of reference text, with its band: head, middle or tail.",
    source="CCNet (Wenzek et al. 2020); modified Kneser-Ney (Chen and Goodman 1998).",
    params=PerplexityParams,
    schema=PERPLEXITY_SCHEMA,
    reads=("text",),
    annotate=annotate_perplexity,
    resources=_resources,
    prepare=prepare_perplexity,
)


# Similarity of a document to the reference, computed by a trained model of kind `classifier`.
#
# The first stage scores every document, the second only uncertain documents; `final` is the score that decides.
# Thresholds on `final` and on the tiers are set in policies.

QUALITY_CLASSIFIER_SCHEMA = pa.schema(
    [
        pa.field("score", pa.float64(), nullable=False),
        pa.field("second_score", pa.float64()),  # null where the first stage is sure
        pa.field("final", pa.float64(), nullable=False),
        pa.field("tier", pa.string(), nullable=False),
    ]
)
TIERS = ("low", "medium", "high")


class QualityClassifierParams(Frozen):
    """Parameters of the annotator `quality_classifier`: the model, and the thresholds of the tiers."""

    model: str = internal("quality", description="Name of a model of kind `classifier` in `corpus.models`.")
    medium: float = internal(
        0.3,
        ge=0,
        le=1,
        description="Minimum final probability for tier `medium`; a text with a lower probability gets tier `low`.",
    )
    high: float = internal(0.7, ge=0, le=1, description="Minimum final probability for tier `high`.")

    @model_validator(mode="after")
    def _rising(self) -> QualityClassifierParams:
        if self.medium > self.high:
            raise ValueError("the threshold `medium` is above `high`")
        return self


def prepare_quality_classifier(
    params: QualityClassifierParams, files: Files
) -> tuple[QualityClassifierParams, artefact.ClassifierModel]:
    """Load the model from its files.

    Raises:
        IntegrityError: the version or kind of the files differs, or the files are damaged.
    """
    key = f"models/{params.model}"
    return params, artefact.read(files[key], key, classifier.CLASSIFIER_KIND)


def annotate_quality_classifier(
    batch: pa.RecordBatch, prepared: tuple[QualityClassifierParams, artefact.ClassifierModel]
) -> pa.RecordBatch:
    """Annotate each text with the calibrated probability of the reference class after each stage, and with the tier of
    the final probability."""
    params, model = prepared
    score, second, final = staged(model, batch.column("text"), None)
    tier = pa.array(TIERS).take(pa.array((final >= params.medium).astype(np.int8) + (final >= params.high)))
    return pa.record_batch([pa.array(score), second, pa.array(final), tier], schema=QUALITY_CLASSIFIER_SCHEMA)


def staged(
    model: artefact.ClassifierModel, texts: pa.Array, lexicon: Lexicon | None, hits: Bools | None = None
) -> tuple[F64, pa.Array, F64]:
    """Return for each text the probability from the first stage, the probability from the second stage (null if the
    stage was not needed), and the final score.

    Args:
        lexicon: lexicon that the model was trained with.
        hits: [texts] True if the text has a match in the lexicon.
    """
    p, margins = model.probabilities(texts)
    score, second = p[:, 0], np.zeros(len(texts))
    doubt = classifier.doubtful(score, model.head.band, hits) & (model.forest is not None)
    at = np.flatnonzero(doubt)
    if at.size:
        second[at] = model.second(margins[at, 0], second_look(texts.take(pa.array(at)), lexicon))
    return score, pa.array(second, mask=~doubt), np.where(doubt, second, score)


QUALITY_CLASSIFIER = Annotator(
    name="quality_classifier",
    version="1",
    description="Probability, computed in two stages, that a text is reference text rather than random text; its tier.",
    source="Li et al. 2024 (DCLM) for reference against random; Joulin et al. 2016 (fastText) for the first stage.",
    params=QualityClassifierParams,
    schema=QUALITY_CLASSIFIER_SCHEMA,
    reads=("text",),
    annotate=annotate_quality_classifier,
    resources=_resources,
    prepare=prepare_quality_classifier,
)

DOMAIN_SCHEMA = pa.schema(
    [pa.field("label", pa.string(), nullable=False), pa.field("score", pa.float64(), nullable=False)]
)
OTHER = "other"


class DomainParams(Frozen):
    """Parameters of the annotator `domain`: the tagger, and the minimum probability of a label."""

    model: str = internal("domain", description="Name of a model of kind `tagger` in `corpus.models`.")
    least: float = internal(
        0.0,
        ge=0,
        le=1,
        description="Minimum probability of the most likely label; if the probability is lower, the text gets the "
        "label `other`.",
    )


def prepare_domain(params: DomainParams, files: Files) -> tuple[DomainParams, artefact.ClassifierModel, pa.Array]:
    """Load the tagger from its files, and return it with its labels followed by `other`.

    Raises:
        IntegrityError: the version or kind of the files differs, or the files are damaged.
    """
    key = f"models/{params.model}"
    model = artefact.read(files[key], key, classifier.TAGGER_KIND)
    return params, model, pa.array([*model.head.labels, OTHER], pa.string())


def annotate_domain(
    batch: pa.RecordBatch, prepared: tuple[DomainParams, artefact.ClassifierModel, pa.Array]
) -> pa.RecordBatch:
    """Annotate each text with its most probable label and the calibrated probability of this label. In a tie, the label
    that is first by name is used."""
    params, model, labels = prepared
    p, _ = model.probabilities(batch.column("text"))
    winner, score = p.argmax(axis=1), p.max(axis=1, initial=0.0)
    winner[score < params.least] = len(labels) - 1
    return pa.record_batch([labels.take(pa.array(winner)), pa.array(score)], schema=DOMAIN_SCHEMA)


DOMAIN = Annotator(
    name="domain",
    version="1",
    description="Most likely domain or function of a text, with its probability. The recipe defines the labels.",
    source="Joulin et al. 2016 (fastText), one label against the rest; Platt 1999 for the probabilities.",
    params=DomainParams,
    schema=DOMAIN_SCHEMA,
    reads=("text",),
    annotate=annotate_domain,
    resources=_resources,
    prepare=prepare_domain,
)


# Toxicity in three layers: your lexicon, a classifier trained on your labels, and a second stage for uncertain texts.
#
# The lexicon matches terms, including obfuscated ones, and records their spans. It ignores context, so anatomy texts
# and court reports match too. The classifier scores the worst passage of a text (`window` of its model). Its second
# stage, which also reads the lexicon's hits, scores texts that are uncertain after the first stage, or clean although
# terms match. `final` is the score of the last layer or, without a model, the weight of the lexicon's hits. Plinth
# contains no word lists; see docs/learned-gates.md.

TOXICITY_SCHEMA = pa.schema(
    [
        pa.field("lexicon_hits", pa.int32(), nullable=False),
        pa.field("lexicon_density", pa.float64(), nullable=False),  # summed weight of hits per 100 words
        pa.field("score", pa.float64()),  # null without a model
        pa.field("second_score", pa.float64()),  # null if the first stage is certain, or if there is no model
        pa.field("final", pa.float64(), nullable=False),
        pa.field("label", pa.string(), nullable=False),
        pa.field("category", pa.string()),  # category with the largest total weight of hits; null without hits
        pa.field("spans", EDIT_TYPE, nullable=False),
    ]
)
LABELS = ("clean", "uncertain", "toxic")


class ToxicityParams(Frozen):
    """Parameters of the annotator `toxicity`: the lexicon, the model, and the thresholds. Set `lexicon` or `model` to
    null to disable it."""

    lexicon: str | None = Field("toxic", description="Name of a list of terms in `corpus.lists`.")
    model: str | None = internal("toxicity", description="Name of a model of kind `classifier` in `corpus.models`.")
    disguised: bool = internal(True, description="Match obfuscated terms, such as `sp4m` or `s.p.a.m`.")
    saturation: float = internal(
        2.0,
        gt=0,
        description="Total weight of lexicon matches per 100 words at which `final` reaches 1, if there is no model.",
    )
    uncertain: float = internal(
        0.3,
        ge=0,
        le=1,
        description="Minimum of the score `final` for label `uncertain`; a text with a lower score is labeled "
        "`clean`.",
    )
    toxic: float = internal(0.7, ge=0, le=1, description="Minimum of the score `final` for label `toxic`.")

    @model_validator(mode="after")
    def _some_layer(self) -> ToxicityParams:
        if self.lexicon is None and self.model is None:
            raise ValueError("set `lexicon`, `model` or both")
        if self.uncertain > self.toxic:
            raise ValueError("the threshold `uncertain` is above `toxic`")
        return self


@dataclass(frozen=True)
class ToxicityLayers:
    """Loaded lexicon and model of the toxicity annotator."""

    params: ToxicityParams
    lexicon: Lexicon | None
    model: artefact.ClassifierModel | None


def prepare_toxicity(params: ToxicityParams, files: Files) -> ToxicityLayers:
    """Load the lexicon and the model of the toxicity annotator.

    Raises:
        SourceError: the lexicon is invalid; the error names the line.
        IntegrityError: the model's files have another version or kind, or are damaged.
        RecipeError: the model was trained with a different lexicon.
    """
    terms, model = None, None
    if params.lexicon is not None:
        key = f"lists/{params.lexicon}"
        terms = lists.read(files[key], key)
    if params.model is not None:
        key = f"models/{params.model}"
        model = artefact.read(files[key], key, classifier.CLASSIFIER_KIND)
        if model.head.lexicon is not None and model.head.lexicon != params.lexicon:
            raise RecipeError(
                f"corpus.annotate.toxicity: the model {key} was trained with another lexicon",
                found=params.lexicon,
                expected=model.head.lexicon,
                remedy="set the same `lexicon` for the annotator and the model",
            )
    return ToxicityLayers(params, terms, model)


def annotate_toxicity(batch: pa.RecordBatch, layers: ToxicityLayers) -> pa.RecordBatch:
    """Annotate each text with its lexicon matches and their spans, the probabilities of both stages, the final score
    and its label, and the category whose matches have the largest total weight. Spans are in code points. A policy may
    replace the text in the spans."""
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
    return pa.record_batch(columns, schema=TOXICITY_SCHEMA)


def _density(terms: Lexicon, found: TermHits, texts: pa.Array) -> F64:
    """Return, for each document, the total weight of its lexicon matches per 100 words."""
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


def _resources_toxicity(params: Any) -> tuple[str, ...]:
    wanted = (f"lists/{params.lexicon}" if params.lexicon else "", f"models/{params.model}" if params.model else "")
    return tuple(key for key in wanted if key)


TOXICITY = Annotator(
    name="toxicity",
    version="1",
    description="Lexicon matches with spans; probability of a trained classifier, with a second stage if uncertain.",
    source="Layers after Soldaini et al. 2024 (Dolma): a linear classifier on passages of text. You supply the words.",
    params=ToxicityParams,
    schema=TOXICITY_SCHEMA,
    reads=("text",),
    annotate=annotate_toxicity,
    resources=_resources_toxicity,
    learned=("score", "second_score", "final", "label"),
    prepare=prepare_toxicity,
)
