"""FineWeb's line rules and FineWeb-2's rules as scores. Thresholds are policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.annotate.rules.gopher import ratio
from plinth.corpus.annotate.rules.language_limits import LanguageLimits, limits_of, read
from plinth.errors import SourceError
from plinth.records import Frozen, internal
from plinth_text.arrays import F64, I64
from plinth_text.rules import c4, fineweb
from plinth_text.rules.fineweb import LANGUAGE_GRAMS, StopWords, language_counts, stop_words
from plinth_text.rules.gopher import BULLETS, ELLIPSES, ELLIPSIS_LINES, HASHES, LINES, gopher_counts
from plinth_text.unicode import utf8

_COLUMNS = ("ended_lines", "short_lines", "duplicate_characters", "newlines_per_word")
FINEWEB_SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in _COLUMNS])

#: C4 as FineWeb applies it (datatrove, examples/fineweb.py). Sentences do not decide which lines stay.
_C4 = {
    profile: c4.Lines(min_words=3, max_word_characters=1000, ends_required=False, english=profile == "datatrove")
    for profile in ("datatrove", "white-space")
}


class FineWebParams(Frozen):
    """The project whose counting is followed."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove", description="Words as datatrove 0.10 has them, by spaCy's English tokenizer, or at white space."
    )
    after_c4: bool = Field(
        False,
        description="Count on what C4 without terminal punctuation leaves of a text, as in FineWeb's order of filters.",
    )
    short_line_characters: int = internal(30, ge=1, description="A line of at most this many characters is short.")


def annotate_fineweb(batch: pa.RecordBatch, params: FineWebParams) -> pa.RecordBatch:
    """Shares of lines that end a sentence and that are short, share of characters in repeated lines, and
    line ends per word. Lines of white space alone do not count."""
    texts, english = batch.column("text"), params.profile == "datatrove"
    (data, offsets), words = utf8(texts), None
    if params.after_c4:
        data, offsets, counted = c4.kept_lines(texts, _C4[params.profile])
        words = counted if english else None
    n = fineweb.fineweb_counts(data, offsets, params.short_line_characters, english, words)
    lines = n[:, fineweb.FULL_LINES]
    columns = [
        ratio(n[:, fineweb.ENDED], lines),
        ratio(n[:, fineweb.SHORT], lines),
        ratio(n[:, fineweb.DUPLICATE_CHARACTERS], n[:, fineweb.CHARACTERS]),
        ratio(n[:, fineweb.NEWLINES], n[:, fineweb.WORDS]),
    ]
    return pa.record_batch([pa.array(column) for column in columns], schema=FINEWEB_SCHEMA)


FINEWEB = Annotator(
    name="fineweb",
    version="2",
    description="Line endings, short lines, repeated lines and line ends per word.",
    source="Penedo et al. 2024 (FineWeb), section 3.4; counted as datatrove 0.10.",
    params=FineWebParams,
    schema=FINEWEB_SCHEMA,
    reads=("text",),
    annotate=annotate_fineweb,
)


# FineWeb-2's rules as scores: text of any language but English, held against the limits of its language.
#
# A score is the value over the language's limit, so that one rule serves all languages: above 1 is too much, and below
# 1 too little. English has rules that were made for it (`gopher_quality`, `fineweb`) and gets no scores here.

LABEL = "language.label"
_COUNTS = ("word_count", "sentences", "stop_words")
_SCORES = (
    "duplicate_lines", "top_n_grams", "duplicate_n_grams", "ended_lines", "newlines_per_word", "letter_words",
    "short_words", "long_words", "duplicate_characters", "hash_ratio", "ellipsis_ratio", "bullet_lines",
    "ellipsis_lines",
)  # fmt: skip
FINEWEB2_SCHEMA = pa.schema(
    [pa.field(name, pa.int32()) for name in _COUNTS] + [pa.field(name, pa.float64()) for name in _SCORES]
)


class FineWeb2Params(Frozen):
    """The limits that documents are held against."""

    limits: str | None = Field(
        None,
        description="A list of `corpus.lists` with limits of yours by language, as `plinth corpus limits` writes them; "
        "the other languages have FineWeb-2's.",
    )


@dataclass(frozen=True)
class PreparedLimits:
    """Limits of the list, by label."""

    own: Mapping[str, LanguageLimits]


def resources_fineweb2(params: FineWeb2Params) -> tuple[str, ...]:
    """The list, when one is named."""
    return (f"lists/{params.limits}",) if params.limits else ()


def prepare_fineweb2(params: FineWeb2Params, files: Files) -> PreparedLimits:
    """Read the list.

    Raises:
        SourceError: a line of the list states no limits of a language, or the list is no UTF-8.
    """
    own: dict[str, LanguageLimits] = {}
    for name, path in files[f"lists/{params.limits}"].items() if params.limits else ():
        try:
            own |= read(path.read_text("utf-8").splitlines(), name)
        except UnicodeDecodeError as error:
            raise SourceError(f"list {params.limits} cannot be read", found=error, expected="UTF-8") from error
    return PreparedLimits(own)


def annotate_fineweb2(batch: pa.RecordBatch, prepared: PreparedLimits) -> pa.RecordBatch:
    """Words, sentences, distinct stop words, and scores; all null for English.

    `duplicate_lines`, `top_n_grams` (2 to 4 words), `duplicate_n_grams` (5 to 10), `newlines_per_word`, `long_words`
    are over their limits above 1; `ended_lines`, `letter_words` and `short_words` below 1. `stop_words` is null where
    the language has no list. The others are plain shares, with one limit for all languages.
    """
    labels = batch.column(LABEL).to_pylist()
    found = {label: limits_of(label, prepared.own) for label in set(labels)}
    rows = np.array([row for row, label in enumerate(labels) if found[label] is not None], dtype=np.int64)
    limits = [limit for row in rows if (limit := found[labels[row]]) is not None]
    texts = batch.column("text").take(pa.array(rows))
    columns = _columns(texts, limits)
    places = np.full(len(labels), -1, dtype=np.int64)
    places[rows] = np.arange(rows.size)
    taken = pa.array(places, mask=places < 0)
    return pa.record_batch([column.take(taken) for column in columns], schema=FINEWEB2_SCHEMA)


def _columns(texts: pa.Array, limits: Sequence[LanguageLimits]) -> list[pa.Array]:
    """The columns of texts that have limits."""
    lists, stops = _stop_words(limits)
    n = language_counts(texts, lists, stops)
    gopher = gopher_counts(texts)
    lines = fineweb.fineweb_counts(*utf8(texts), 0)
    words, characters = n[:, fineweb.LANGUAGE_WORDS], n[:, fineweb.LANGUAGE_CHARACTERS]
    mean = ratio(n[:, fineweb.LANGUAGE_PLAIN_CHARACTERS], n[:, fineweb.LANGUAGE_PLAIN_WORDS])
    grams = n[:, LANGUAGE_GRAMS:] / np.maximum(characters, 1)[:, None]
    counted = [words, n[:, fineweb.LANGUAGE_SENTENCES], n[:, fineweb.LANGUAGE_STOP_WORDS]]
    has_list = np.array([bool(limit.stop_words) for limit in limits], dtype=np.bool_)
    scores = [
        ratio(n[:, fineweb.LANGUAGE_REPEATED_LINES], n[:, fineweb.LANGUAGE_LINES]) / _of(limits, "duplicate_lines"),
        (grams[:, :3] / _of(limits, "top_n_grams")).max(axis=1, initial=0),
        (grams[:, 3:] / _of(limits, "duplicate_n_grams")).max(axis=1, initial=0),
        _reached(ratio(lines[:, fineweb.ENDED], lines[:, fineweb.FULL_LINES]), _of(limits, "ended_lines")),
        ratio(lines[:, fineweb.NEWLINES], words) / _of(limits, "newlines_per_word"),
        _reached(ratio(n[:, fineweb.LANGUAGE_LETTER_WORDS], words), _of(limits, "letter_words")),
        _reached(mean, _of(limits, "min_word_characters")),
        mean / _of(limits, "max_word_characters"),
        ratio(lines[:, fineweb.DUPLICATE_CHARACTERS], lines[:, fineweb.CHARACTERS]),
        ratio(gopher[:, HASHES], words),
        ratio(gopher[:, ELLIPSES], words),
        ratio(gopher[:, BULLETS], gopher[:, LINES]),
        ratio(gopher[:, ELLIPSIS_LINES], gopher[:, LINES]),
    ]
    masks: list[Any] = [None, None, ~has_list]
    integers = [pa.array(one.astype(np.int32), mask=mask) for one, mask in zip(counted, masks, strict=True)]
    return [*integers, *(pa.array(np.ascontiguousarray(one), pa.float64()) for one in scores)]


def _stop_words(limits: Sequence[LanguageLimits]) -> tuple[I64, StopWords]:
    """The list of each text, and the lists."""
    lists = {limit.label: limit.stop_words for limit in limits}
    rows = {label: row for row, label in enumerate(lists)}
    return np.array([rows[limit.label] for limit in limits], dtype=np.int64), stop_words(list(lists.values()))


def _of(limits: Sequence[LanguageLimits], name: str) -> F64:
    values = [getattr(limit, name) for limit in limits]
    width = {"top_n_grams": 3, "duplicate_n_grams": 6}.get(name)
    return np.array(values, dtype=np.float64).reshape((-1, width) if width else (-1,))


def _reached(values: F64, least: F64) -> F64:
    """How far values reach a least value; 1 where nothing is asked for."""
    return np.divide(values, least, out=np.ones_like(values), where=least > 0)


FINEWEB2 = Annotator(
    name="fineweb2",
    version="1",
    description="Words, sentences and repetition in any language, over the limits of that language.",
    source="Penedo et al. 2025 (FineWeb-2); limits and stop words of its repository, words by BudouX.",
    params=FineWeb2Params,
    schema=FINEWEB2_SCHEMA,
    reads=("text",),
    after=(LABEL,),
    annotate=annotate_fineweb2,
    resources=resources_fineweb2,
    prepare=prepare_fineweb2,
)
