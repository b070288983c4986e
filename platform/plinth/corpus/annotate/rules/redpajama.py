"""RedPajama-v2's heuristic quality signals. Thresholds are policy: profiles `gopher/redpajama`, `redpajama/v2`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, Files
from plinth.errors import SourceError
from plinth.records import Frozen
from plinth_text.rules import redpajama

_COUNTS = frozenset({"word_count", "javascript_words", "raw_words", "sentences", "lines"})
SCHEMA = pa.schema(
    [pa.field(name, pa.int32() if name in _COUNTS else pa.float64(), nullable=False) for name in redpajama.COLUMNS]
)
#: Decimals of published signals; thresholds are compared with rounded values.
PRECISION = 8
#: Gopher's (Rae et al. 2021). RedPajama's own list has 540 more words: state it to get its signal.
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


class RedPajamaParams(Frozen):
    """The list of stop words."""

    stop_words: str | None = Field(
        None, description="A list of `corpus.lists`, one stop word a line; without it, Gopher's eight stop words."
    )


@dataclass(frozen=True)
class PreparedSignals:
    """The stop words of the list, or None for Gopher's."""

    stop_words: frozenset[str] | None


def resources(params: RedPajamaParams) -> tuple[str, ...]:
    """The list, when one is named."""
    return (f"lists/{params.stop_words}",) if params.stop_words else ()


def prepare(params: RedPajamaParams, files: Files) -> PreparedSignals:
    """Read the list.

    Raises:
        SourceError: the list has no words, or is no UTF-8.
    """
    if params.stop_words is None:
        return PreparedSignals(None)
    found: set[str] = set()
    for path in files[f"lists/{params.stop_words}"].values():
        try:
            found |= {line.strip() for line in path.read_text("utf-8").splitlines()}
        except UnicodeDecodeError as error:
            raise SourceError(
                f"list {params.stop_words} cannot be read", found=error, expected="UTF-8, one word a line"
            ) from error
    found.discard("")
    if not found:
        raise SourceError(f"list {params.stop_words} is empty", expected="one word a line")
    return PreparedSignals(frozenset(found))


def annotate(batch: pa.RecordBatch, prepared: PreparedSignals) -> pa.RecordBatch:
    """The signals by the names of their columns, rounded as published; see `plinth_text.rules.redpajama`."""
    signals = np.round(redpajama.signals(batch.column("text"), prepared.stop_words or STOP_WORDS), PRECISION)
    columns = [np.ascontiguousarray(column) for column in signals.T]
    return pa.record_batch(
        [pa.array(one).cast(field.type) for one, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


ANNOTATOR = Annotator(
    name="redpajama",
    version="1",
    description="Quality signals of RedPajama-v2 that need no model: words, lines, symbols, repetition, entropy.",
    source="Weber et al. 2024 (RedPajama), table 2; counted as RedPajama-Data's quality_signals.",
    params=RedPajamaParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=resources,
    prepare=prepare,
)
