"""FineWeb's line rules and FineWeb-2's rules as scores, with limits and stop words by language. Thresholds are set in
policies.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationError

from plinth.compute.context import Context
from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.annotate.rules.gopher import ratio
from plinth.corpus.sidecars import slots
from plinth.errors import MissingError, SourceError, StageError
from plinth.records import Frozen, internal
from plinth.storage.parts import iter_aligned
from plinth_text.arrays import F64, I64
from plinth_text.rules import c4, fineweb
from plinth_text.rules.fineweb import LANGUAGE_GRAMS, MAX_STOP_WORDS, StopWords, language_counts, stop_words
from plinth_text.rules.gopher import BULLETS, ELLIPSES, ELLIPSIS_LINES, HASHES, LINES, gopher_counts
from plinth_text.unicode import utf8
from plinth_text.words.script_words import words

# Limits and stop words by language: as published for FineWeb-2, from your list, or fitted on reference text with
# FineWeb-2's method.
#
# `language_limits.jsonl` has the values of Penedo et al. 2025 for the languages of lid.176, one per line
# (written by tests/agreement/language_limits.py from github.com/huggingface/fineweb-2, Apache License 2.0). A language
# that is not in the file gets the median of each limit, and no stop words.

FILE = Path(__file__).with_name("language_limits.jsonl")
#: Label of the line that applies to all languages without their own line.
OTHER = "other"
#: English has its own rules, so these limits do not apply.
ENGLISH = ("en", "eng_Latn")
#: Language codes of other models, mapped to FineWeb-2's more specific names.
_CODES = {
    "zho": "cmn", "ara": "arb", "msa": "zsm", "est": "ekk", "lav": "lvs", "uzb": "uzn", "aze": "azj", "mon": "khk",
    "pes": "fas", "tgl": "fil", "swa": "swh", "nep": "npi", "ori": "ory", "nor": "nob", "yid": "ydd", "pus": "pbt",
    "mlg": "plt", "kur": "kmr",
}  # fmt: skip
#: Scripts that share a name in FineWeb-2.
_SCRIPTS = {"Hans": "Hani", "Hant": "Hani", "Kore": "Hang"}


class LanguageLimits(Frozen):
    """Filter thresholds and stop words for documents of one language."""

    label: str = Field(description="Language, spelled as in `language.label`.")
    name: str = Field(
        "",
        description="Name of the language in FineWeb-2, which consists of its ISO 639-3 and ISO 15924 codes.",
    )
    duplicate_lines: float = Field(gt=0, description="Maximum share of duplicate lines.")
    top_n_grams: tuple[float, float, float] = Field(
        description="Maximum share of characters in copies of the most frequent n-gram of 2, 3 and 4 words.",
    )
    duplicate_n_grams: tuple[float, float, float, float, float, float] = Field(
        description="Maximum share of characters in repeated n-grams of 5 to 10 words."
    )
    ended_lines: float = Field(description="Minimum share of lines that end a sentence.")
    newlines_per_word: float = Field(gt=0, description="Maximum number of line ends per word.")
    letter_words: float = Field(description="Minimum share of words that contain a letter.")
    min_word_characters: float = Field(description="Minimum mean number of characters per word.")
    max_word_characters: float = Field(gt=0, description="Maximum mean number of characters per word.")
    stop_words: tuple[str, ...] = Field(
        (),
        max_length=MAX_STOP_WORDS,
        description="Stop words, which are the most frequent words of the language.",
    )


def read(lines: Iterable[str], where: str) -> dict[str, LanguageLimits]:
    """Parse JSON lines with the limits of one language each, and return the limits by language label.

    Raises:
        SourceError: a line is not valid.
    """
    found: dict[str, LanguageLimits] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = LanguageLimits.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise SourceError(
                f"{where}: line {number} does not contain valid limits of a language",
                found=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
                expected="a JSON object with the fields of docs/languages-and-pii.md",
                remedy="write it with `plinth corpus limits --bucket BUCKET --out FILE`",
            ) from error
        found[one.label] = one
    return found


@lru_cache(maxsize=1)
def published() -> Mapping[str, LanguageLimits]:
    """Return FineWeb-2's limits by language. The medians of these limits apply to languages that FineWeb-2 does not
    list. Keys include FineWeb-2's names and ISO 639-3 codes."""
    own = read(FILE.read_text("utf-8").splitlines(), FILE.name)
    named = {one.name: one for one in reversed(own.values())}
    codes = {one.name.partition("_")[0]: one for one in reversed(own.values())}
    return {OTHER: _median(list(own.values())), **codes, **named, **own}


def _median(rows: list[LanguageLimits]) -> LanguageLimits:
    plain = {
        key: statistics.median(getattr(row, key) for row in rows)
        for key in ("duplicate_lines", "ended_lines", "newlines_per_word", "letter_words")
    }
    several = {
        key: tuple(statistics.median(values) for values in zip(*(getattr(row, key) for row in rows), strict=True))
        for key in ("top_n_grams", "duplicate_n_grams")
    }
    return LanguageLimits(label=OTHER, min_word_characters=1, max_word_characters=25, **plain, **several)


def limits_of(label: str, own: Mapping[str, LanguageLimits]) -> LanguageLimits | None:
    """Return the filter thresholds and stop words of a language, or None for English. The label may come from lid.176,
    GlotLID or OpenLID (`zho_Hans`).

    If the label has another script than FineWeb-2's language, the limits for unknown languages apply, because stop
    words in a different script would drop all text of the language.

    Args:
        own: limits from the user's list, which take precedence.
    """
    if label in own:
        return own[label]
    if label in ENGLISH:
        return None
    have, (code, _, script) = published(), label.partition("_")
    found = have.get(label) or have.get(_CODES.get(code, code))
    if found is None or (script and found.name.partition("_")[2] != _SCRIPTS.get(script, script)):
        return own.get(OTHER) or have[OTHER]
    return found


# Limits and stop words of a language, fitted on trusted reference text as FineWeb-2 does.
#
# Each limit is the quantile at which it drops a given share of the reference documents (Penedo et al. 2025 call this
# the tail method). A word is a stop word if it makes up at least a given share of all words; there are at least eight.


#: Share of the reference documents that a limit drops, and minimum share of all words for a stop word.
REMOVED, FREQUENT = 0.05, 0.008
#: Minimum number of stop words, and of reference documents.
FEWEST, DOCUMENTS = 8, 100
_DIGITS = 3
#: Lower bound of a fitted limit, needed if the reference has no repeated lines.
_LEAST = 0.01


def fit(label: str, texts: Sequence[str], removed: float = REMOVED, frequent: float = FREQUENT) -> LanguageLimits:
    """Fit the filter thresholds and stop words of a language to reference documents.

    Args:
        label: language, as in `language.label`.
        texts: texts of the reference documents in that language.
        removed: share of these documents that each limit drops.
        frequent: minimum share of all words for a stop word.

    Raises:
        StageError: there are fewer than a hundred documents.
    """
    if len(texts) < DOCUMENTS:
        raise StageError(
            f"too few documents in {label} to fit limits",
            found=f"{len(texts)} documents",
            expected=f"at least {DOCUMENTS}",
            remedy="use a larger reference bucket, or the published limits",
        )
    array = pa.array(texts, pa.large_string())
    n = language_counts(array, np.full(len(texts), -1, dtype=np.int64), stop_words([]))
    lines = fineweb.fineweb_counts(*utf8(array), 0)
    counts, characters = n[:, fineweb.LANGUAGE_WORDS], np.maximum(1, n[:, fineweb.LANGUAGE_CHARACTERS])
    grams = n[:, LANGUAGE_GRAMS:] / characters[:, None]
    mean = ratio(n[:, fineweb.LANGUAGE_PLAIN_CHARACTERS], n[:, fineweb.LANGUAGE_PLAIN_WORDS])

    def most(values: F64) -> float:
        return max(_LEAST, round(float(np.quantile(values, 1 - removed)), _DIGITS))

    def least(values: F64) -> float:
        return round(float(np.quantile(values, removed)), _DIGITS)

    tops, repeats = [most(one) for one in grams.T[:3]], [most(one) for one in grams.T[3:]]
    return LanguageLimits(
        label=label,
        duplicate_lines=most(ratio(n[:, fineweb.LANGUAGE_REPEATED_LINES], n[:, fineweb.LANGUAGE_LINES])),
        top_n_grams=(tops[0], tops[1], tops[2]),
        duplicate_n_grams=(repeats[0], repeats[1], repeats[2], repeats[3], repeats[4], repeats[5]),
        ended_lines=least(ratio(lines[:, fineweb.ENDED], lines[:, fineweb.FULL_LINES])),
        newlines_per_word=most(ratio(lines[:, fineweb.NEWLINES], counts)),
        letter_words=least(ratio(n[:, fineweb.LANGUAGE_LETTER_WORDS], counts)),
        min_word_characters=least(mean),
        max_word_characters=most(mean),
        stop_words=_frequent(texts, frequent),
    )


def _frequent(texts: Sequence[str], share: float) -> tuple[str, ...]:
    """Return the words that contain a letter and make up at least `share` of all words, sorted by frequency and then by
    code points."""
    counts = Counter(word for text in texts for word in words(text) if any(map(str.isalpha, word)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    enough = sum(counts[word] >= share * counts.total() for word in ranked)
    return tuple(ranked[: min(MAX_STOP_WORDS, max(FEWEST, enough))])


def fitted(ctx: Context, bucket: str, languages: Sequence[str], removed: float, documents: int) -> list[LanguageLimits]:
    """Fit filter thresholds and stop words to a bucket's documents, for each language in `languages`. If `languages` is
    empty, fit them for every language with enough documents.

    Args:
        removed: share of the reference documents that each limit drops.
        documents: maximum number of documents per language; the first documents in bucket order are used.

    Raises:
        MissingError: the bucket has no documents, no language labels, or no language with enough text.
        StageError: a language in `languages` has too few documents.
    """
    made = {"documents": ctx.refs.current(f"{bucket}/documents"), "language": ctx.refs.current(f"{bucket}/language")}
    texts: dict[str, list[str]] = {}
    for slot in slots({bucket: made["documents"]}, language={bucket: made["language"]}):
        sources = ((slot.documents, ["text"]), (slot.sides["language"], ["label", "accepted"]))
        for batch, sidecar in iter_aligned(ctx.store, *sources):
            sure = sidecar.column("accepted")
            rows = zip(pc.filter(batch.column("text"), sure), pc.filter(sidecar.column("label"), sure), strict=True)
            for text, label in rows:
                held = texts.setdefault(label.as_py(), [])
                if len(held) < documents and (not languages or label.as_py() in languages):
                    held.append(text.as_py())
    chosen = languages or sorted(label for label, held in texts.items() if len(held) >= DOCUMENTS)
    wanted = [label for label in chosen if languages or label not in ENGLISH]
    if not wanted:
        raise MissingError(
            f"{bucket} has no language with enough documents",
            found=", ".join(f"{label} {len(held)}" for label, held in sorted(texts.items())) or "no documents",
            expected=f"at least {DOCUMENTS} documents of a language other than English",
            remedy="use a larger reference bucket",
        )
    return [fit(label, texts.get(label, []), removed) for label in wanted]


_COLUMNS = ("ended_lines", "short_lines", "duplicate_characters", "newlines_per_word")
FINEWEB_SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in _COLUMNS])

#: C4 as FineWeb applies it (datatrove, examples/fineweb.py). Sentences do not affect which lines are kept.
_C4 = {
    profile: c4.Lines(min_words=3, max_word_characters=1000, ends_required=False, english=profile == "datatrove")
    for profile in ("datatrove", "white-space")
}


class FineWebParams(Frozen):
    """Parameters of the annotator `fineweb`: the reference implementation of the counts."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove", description="Word splitter: datatrove 0.10 (spaCy's English tokenizer), or white space."
    )
    after_c4: bool = Field(
        False,
        description="Count only the lines that C4's rules keep, as FineWeb does. The rule on terminal punctuation is "
        "not applied.",
    )
    short_line_characters: int = internal(30, ge=1, description="Maximum number of characters of a short line.")


def annotate_fineweb(batch: pa.RecordBatch, params: FineWebParams) -> pa.RecordBatch:
    """Annotate each document with the share of lines that end a sentence, the share of short lines, the share of
    characters in repeated lines, and the number of line ends per word. Blank lines are not counted."""
    texts, english = batch.column("text"), params.profile == "datatrove"
    (data, offsets), words = utf8(texts), None
    if params.after_c4:
        data, offsets, counted = c4.pages(texts, _C4[params.profile]).kept
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
    description="Shares of lines that end a sentence, of short lines and of repeated lines; number of line ends per "
    "word.",
    source="Penedo et al. 2024 (FineWeb), section 3.4; counted as in datatrove 0.10.",
    params=FineWebParams,
    schema=FINEWEB_SCHEMA,
    reads=("text",),
    annotate=annotate_fineweb,
)


# FineWeb-2's rules as scores, for text in all languages except English, relative to the limits of its language.
#
# A score is the value divided by the language's limit, so that one rule works for all languages: above 1 a value is
# over a maximum, below 1 it is under a minimum. English has its own rules (`gopher_quality`, `fineweb`) and gets no
# scores here.

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
    """Parameters of the annotator `fineweb2`: the limits to compare documents with."""

    limits: str | None = Field(
        None,
        description="List in `corpus.lists` with your limits by language, as written by `plinth corpus limits`. "
        "Languages that are not in the list use FineWeb-2's limits.",
    )


@dataclass(frozen=True)
class PreparedLimits:
    """Limits from the user's list, by language label."""

    own: Mapping[str, LanguageLimits]


def resources_fineweb2(params: FineWeb2Params) -> tuple[str, ...]:
    """Return the key of the list of limits, if the parameters name one."""
    return (f"lists/{params.limits}",) if params.limits else ()


def prepare_fineweb2(params: FineWeb2Params, files: Files) -> PreparedLimits:
    """Read the list of limits.

    Raises:
        SourceError: a line of the list is invalid, or the list is not UTF-8.
    """
    own: dict[str, LanguageLimits] = {}
    for name, path in files[f"lists/{params.limits}"].items() if params.limits else ():
        try:
            own |= read(path.read_text("utf-8").splitlines(), name)
        except UnicodeDecodeError as error:
            raise SourceError(f"list {params.limits} cannot be read", found=error, expected="UTF-8") from error
    return PreparedLimits(own)


def annotate_fineweb2(batch: pa.RecordBatch, prepared: PreparedLimits) -> pa.RecordBatch:
    """Annotate each document with its numbers of words, sentences and distinct stop words, and with scores. All columns
    are null for English.

    The following scores are values divided by a limit of the language: `duplicate_lines`, `top_n_grams` (2 to 4 words),
    `duplicate_n_grams` (5 to 10 words), `newlines_per_word` and `long_words` violate the limit if they are above 1;
    `ended_lines`, `letter_words` and `short_words` violate it if they are below 1. `stop_words` is null if the language
    has no list of stop words. All other columns are plain shares, with one limit for all languages.
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
    """Compute the columns of the annotator `fineweb2` for the texts, using the limits of each text's language."""
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
    """Return for each text the index of its language's stop-word list, and the stop-word lists of all languages."""
    lists = {limit.label: limit.stop_words for limit in limits}
    rows = {label: row for row, label in enumerate(lists)}
    return np.array([rows[limit.label] for limit in limits], dtype=np.int64), stop_words(list(lists.values()))


def _of(limits: Sequence[LanguageLimits], name: str) -> F64:
    values = [getattr(limit, name) for limit in limits]
    width = {"top_n_grams": 3, "duplicate_n_grams": 6}.get(name)
    return np.array(values, dtype=np.float64).reshape((-1, width) if width else (-1,))


def _reached(values: F64, least: F64) -> F64:
    """Return each value divided by its minimum, or 1 if the minimum is 0."""
    return np.divide(values, least, out=np.ones_like(values), where=least > 0)


FINEWEB2 = Annotator(
    name="fineweb2",
    version="1",
    description="Words, sentences and repetition in any language, relative to the limits of the language.",
    source="Penedo et al. 2025 (FineWeb-2); limits and stop words from its repository; BudouX finds the words.",
    params=FineWeb2Params,
    schema=FINEWEB2_SCHEMA,
    reads=("text",),
    after=(LABEL,),
    annotate=annotate_fineweb2,
    resources=resources_fineweb2,
    prepare=prepare_fineweb2,
)
