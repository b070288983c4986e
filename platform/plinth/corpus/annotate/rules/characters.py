"""Shares of characters by class, and lengths of lines. Thresholds are policy: profile `code/redpajama`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.annotate.rules.gopher_quality import ratio
from plinth.extensions import NoParams
from plinth_text.rules import redpajama

_SHARES = (
    "letters", "upper_case", "digits", "alphanumeric", "white_space", "punctuation", "symbols", "control", "non_ascii",
)  # fmt: skip
SCHEMA = pa.schema(
    [
        pa.field("characters", pa.int32(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in _SHARES),
        pa.field("lines", pa.int32(), nullable=False),
        pa.field("mean_line", pa.float64(), nullable=False),
        pa.field("longest_line", pa.int32(), nullable=False),
    ]
)


def annotate(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Shares of all characters (upper case: of letters), and characters of the mean and the longest line.

    Classes are those of `str.isalpha`, `isupper`, `isdigit`, `isalnum`, `isspace` and of Unicode's general categories
    P, S and C without white space.
    """
    n = dict(zip(redpajama.TALLY_COLUMNS, redpajama.tally(batch.column("text")).T, strict=True))
    columns = [n["characters"].astype(np.int32)]
    columns += [ratio(n[name], n["letters" if name == "upper_case" else "characters"]) for name in _SHARES]
    columns += [n["lines"].astype(np.int32), ratio(n["line_characters"], n["lines"])]
    columns += [n["longest_line"].astype(np.int32)]
    return pa.record_batch([pa.array(np.ascontiguousarray(column)) for column in columns], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="characters",
    version="1",
    description="Shares of letters, digits, signs and others among the characters; lengths of lines.",
    source="RedPajama v1, github_run_filter.py, and Chen et al. 2021 (Codex), section 3.1: lines and alphanumerics.",
    params=NoParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
