"""Gopher's rules as scores, counted as in the paper and as in Dolma; further quality signals of Dolma and RedPajama.
Thresholds are set in policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, Files
from plinth.errors import SourceError
from plinth.extensions import NoParams
from plinth.records import Frozen, internal
from plinth_text.arrays import F64
from plinth_text.rules import gopher, redpajama

# Gopher's quality rules as scores. Thresholds are set in policies.
#
# Profile `datatrove` counts as datatrove 0.10 does, on the words of spaCy's blank English tokenizer. This tokenizer
# makes every punctuation mark a word, so the share of words with a letter is lower, and the threshold of 0.8 drops many
# README and source files. Profile `white-space`, which these files pass, counts the words between white space, as in
# Gopher.

_RATIOS = (
    "mean_word_characters", "hash_ratio", "ellipsis_ratio", "bullet_lines", "ellipsis_lines", "letter_words",
)  # fmt: skip
GOPHER_QUALITY_SCHEMA = pa.schema(
    [pa.field("word_count", pa.int32(), nullable=False)]
    + [pa.field(name, pa.float64(), nullable=False) for name in _RATIOS]
    + [pa.field("stop_words", pa.int32(), nullable=False)]
)


class GopherQualityParams(Frozen):
    """Parameters of the annotator `gopher_quality`: the reference implementation of the counts."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove", description="Word splitter: datatrove 0.10 (spaCy's English tokenizer), or white space."
    )


def annotate_gopher_quality(batch: pa.RecordBatch, params: GopherQualityParams) -> pa.RecordBatch:
    """Annotate each document with word counts and ratios. The columns are the number of words (without words that
    consist of symbols), the mean word length, the number of symbols per word, the shares of lines that start with a
    bullet or end with an ellipsis, the share of words with a letter, and the number of distinct stop words (of 8)."""
    n = gopher.gopher_counts(batch.column("text"), params.profile == "datatrove")
    words, lines = n[:, gopher.WORDS], n[:, gopher.LINES]
    columns = [
        n[:, gopher.PLAIN_WORDS].astype(np.int32),
        ratio(n[:, gopher.PLAIN_CHARACTERS], n[:, gopher.PLAIN_WORDS]),
        ratio(n[:, gopher.HASHES], words),
        ratio(n[:, gopher.ELLIPSES], words),
        ratio(n[:, gopher.BULLETS], lines),
        ratio(n[:, gopher.ELLIPSIS_LINES], lines),
        ratio(n[:, gopher.ALPHA_WORDS], words),
        n[:, gopher.STOP_WORDS].astype(np.int32),
    ]
    return pa.record_batch([pa.array(column) for column in columns], schema=GOPHER_QUALITY_SCHEMA)


def ratio(above: npt.NDArray[Any], below: npt.NDArray[Any]) -> F64:
    """Divide two arrays element by element. The quotient is 0 if the divisor is 0."""
    shares: F64 = np.divide(above, below, out=np.zeros(len(above)), where=below != 0)
    return shares


GOPHER_QUALITY = Annotator(
    name="gopher_quality",
    version="2",
    description="Word counts and ratios of Gopher's quality rules.",
    source="Rae et al. 2021, table A1; counted as datatrove 0.10.",
    params=GopherQualityParams,
    schema=GOPHER_QUALITY_SCHEMA,
    reads=("text",),
    annotate=annotate_gopher_quality,
)

GOPHER_REPETITION_SCHEMA = pa.schema(
    [pa.field(name, pa.float64(), nullable=False) for name in gopher.REPETITION_COLUMNS]
)


class GopherRepetitionParams(Frozen):
    """Parameters of the annotator `gopher_repetition`: the reference implementation of the counts."""

    profile: Literal["datatrove", "white-space"] = Field(
        "datatrove",
        description="Word splitter: datatrove 0.10 (spaCy's English tokenizer), or white space. All copies after "
        "the first are duplicates. The score of a top n-gram counts all its copies.",
    )


def annotate_gopher_repetition(batch: pa.RecordBatch, params: GopherRepetitionParams) -> pa.RecordBatch:
    """Annotate each document with its shares of repeated lines, paragraphs and characters, as defined in
    `plinth_text.rules.gopher`."""
    shares = gopher.repetition_shares(batch.column("text"), params.profile == "datatrove")
    return pa.record_batch(
        [pa.array(np.ascontiguousarray(column)) for column in shares.T], schema=GOPHER_REPETITION_SCHEMA
    )


GOPHER_REPETITION = Annotator(
    name="gopher_repetition",
    version="2",
    description="Shares of repeated lines, paragraphs and word n-grams.",
    source="Rae et al. 2021, table A1; counted as datatrove 0.10.",
    params=GopherRepetitionParams,
    schema=GOPHER_REPETITION_SCHEMA,
    reads=("text",),
    annotate=annotate_gopher_repetition,
)

_COUNTS = frozenset({"word_count", "stop_words"})
GOPHER_DOLMA_SCHEMA = pa.schema(
    [pa.field(name, pa.int32() if name in _COUNTS else pa.float64(), nullable=False) for name in gopher.DOLMA_COLUMNS]
)


class GopherDolmaParams(Frozen):
    """Parameters of the annotator `gopher_dolma`: the definition of a line."""

    join_blank_lines: bool = internal(
        False,
        description="True: count consecutive line ends as one (tagger `gopher_v2`). False: count every blank line as "
        "a line.",
    )


def annotate_gopher_dolma(batch: pa.RecordBatch, params: GopherDolmaParams) -> pa.RecordBatch:
    """Annotate each document with its word count, its median word length, shares of words and lines, and its
    repetition, as defined in `plinth_text.rules.gopher`.

    `duplicate_line_characters` is divided by the number of characters other than white space, so it may exceed 1.
    """
    shares = gopher.dolma_shares(batch.column("text"), params.join_blank_lines)
    columns = [np.ascontiguousarray(column) for column in shares.T]
    return pa.record_batch(
        [pa.array(one).cast(field.type) for one, field in zip(columns, GOPHER_DOLMA_SCHEMA, strict=True)],
        schema=GOPHER_DOLMA_SCHEMA,
    )


GOPHER_DOLMA = Annotator(
    name="gopher_dolma",
    version="1",
    description="Gopher's quality and repetition scores, counted as in Dolma.",
    source="Soldaini et al. 2024 (Dolma), section 4.1; counted as dolma 1.2, tagger gopher_v1.",
    params=GopherDolmaParams,
    schema=GOPHER_DOLMA_SCHEMA,
    reads=("text",),
    annotate=annotate_gopher_dolma,
)

REPEATED_TOKENS_SCHEMA = pa.schema(
    [pa.field(name, pa.int32(), nullable=False) for name in ("tokens", "times", "longest")]
)


def annotate_repeated_tokens(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Annotate each document with its number of tokens, the largest number of consecutive repeats of a sequence of 1 to
    13 tokens, and the length in tokens of the longest repeated passage, as defined in `plinth_text.rules.gopher`."""
    found = gopher.periods(batch.column("text")).astype(np.int32)
    return pa.record_batch(
        [pa.array(np.ascontiguousarray(column)) for column in found.T], schema=REPEATED_TOKENS_SCHEMA
    )


REPEATED_TOKENS = Annotator(
    name="repeated_tokens",
    version="1",
    description="Consecutive repeats of short token sequences.",
    source="Soldaini et al. 2024 (Dolma 1.6); dolma 1.2, tagger tokenizer_repetitions_v2r2, on Plinth's words.",
    params=NoParams,
    schema=REPEATED_TOKENS_SCHEMA,
    reads=("text",),
    annotate=annotate_repeated_tokens,
)

_REDPAJAMA_COUNTS = frozenset({"word_count", "javascript_words", "raw_words", "sentences", "lines"})
REDPAJAMA_SCHEMA = pa.schema(
    [
        pa.field(name, pa.int32() if name in _REDPAJAMA_COUNTS else pa.float64(), nullable=False)
        for name in redpajama.COLUMNS
    ]
)
#: Decimals of the published signals, because thresholds are compared with rounded values.
PRECISION = 8
#: Gopher's stop words (Rae et al. 2021). RedPajama's list has 540 more; supply that list to get RedPajama's signal.
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


class RedPajamaParams(Frozen):
    """Parameters of the annotator `redpajama`: the list of stop words."""

    stop_words: str | None = Field(
        None, description="List in `corpus.lists` with one stop word per line; if null, Gopher's eight stop words."
    )


@dataclass(frozen=True)
class PreparedSignals:
    """Stop words from the user's list, or None if Gopher's stop words are used."""

    stop_words: frozenset[str] | None


def resources_redpajama(params: RedPajamaParams) -> tuple[str, ...]:
    """Return the key of the list of stop words, if the parameters name one."""
    return (f"lists/{params.stop_words}",) if params.stop_words else ()


def prepare_redpajama(params: RedPajamaParams, files: Files) -> PreparedSignals:
    """Read the list of stop words.

    Raises:
        SourceError: the list has no words, or is not UTF-8.
    """
    if params.stop_words is None:
        return PreparedSignals(None)
    found: set[str] = set()
    for path in files[f"lists/{params.stop_words}"].values():
        try:
            found |= {line.strip() for line in path.read_text("utf-8").splitlines()}
        except UnicodeDecodeError as error:
            raise SourceError(
                f"list {params.stop_words} cannot be read", found=error, expected="UTF-8, one word per line"
            ) from error
    found.discard("")
    if not found:
        raise SourceError(f"list {params.stop_words} is empty", expected="one word per line")
    return PreparedSignals(frozenset(found))


def annotate_redpajama(batch: pa.RecordBatch, prepared: PreparedSignals) -> pa.RecordBatch:
    """Annotate each document with RedPajama-v2's signals, as defined in `plinth_text.rules.redpajama`. Column names and
    rounding are as published."""
    signals = np.round(redpajama.signals(batch.column("text"), prepared.stop_words or STOP_WORDS), PRECISION)
    columns = [np.ascontiguousarray(column) for column in signals.T]
    return pa.record_batch(
        [pa.array(one).cast(field.type) for one, field in zip(columns, REDPAJAMA_SCHEMA, strict=True)],
        schema=REDPAJAMA_SCHEMA,
    )


REDPAJAMA = Annotator(
    name="redpajama",
    version="1",
    description="Model-free quality signals of RedPajama-v2: words, lines, symbols, repetition, entropy.",
    source="Weber et al. 2024 (RedPajama), table 2; counted as RedPajama-Data's quality_signals.",
    params=RedPajamaParams,
    schema=REDPAJAMA_SCHEMA,
    reads=("text",),
    annotate=annotate_redpajama,
    resources=resources_redpajama,
    prepare=prepare_redpajama,
)

_SHARES = (
    "letters", "upper_case", "digits", "alphanumeric", "white_space", "punctuation", "symbols", "control", "non_ascii",
)  # fmt: skip
CHARACTERS_SCHEMA = pa.schema(
    [
        pa.field("characters", pa.int32(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in _SHARES),
        pa.field("lines", pa.int32(), nullable=False),
        pa.field("mean_line", pa.float64(), nullable=False),
        pa.field("longest_line", pa.int32(), nullable=False),
    ]
)


def annotate_characters(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Annotate each document with its shares of characters by class (for upper case, the share of letters), and its
    mean and maximum line length.

    The classes are defined by `str.isalpha`, `isupper`, `isdigit`, `isalnum` and `isspace`, and by Unicode's general
    categories P, S and C without white space.
    """
    n = dict(zip(redpajama.TALLY_COLUMNS, redpajama.tally(batch.column("text")).T, strict=True))
    columns = [n["characters"].astype(np.int32)]
    columns += [ratio(n[name], n["letters" if name == "upper_case" else "characters"]) for name in _SHARES]
    columns += [n["lines"].astype(np.int32), ratio(n["line_characters"], n["lines"])]
    columns += [n["longest_line"].astype(np.int32)]
    return pa.record_batch([pa.array(np.ascontiguousarray(column)) for column in columns], schema=CHARACTERS_SCHEMA)


CHARACTERS = Annotator(
    name="characters",
    version="1",
    description="Shares of letters, digits, symbols and other characters; line lengths.",
    source="RedPajama v1, github_run_filter.py, and Chen et al. 2021 (Codex), section 3.1: lines and alphanumerics.",
    params=NoParams,
    schema=CHARACTERS_SCHEMA,
    reads=("text",),
    annotate=annotate_characters,
)
