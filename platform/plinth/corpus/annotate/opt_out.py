"""Opt-outs that a document's page or server declared, as columns for rules: see `corpus.sources.signals`."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.sources.signals import DIRECTIVES, REL_LICENSE, TDM, TDM_POLICY
from plinth.extensions import NoParams

#: Column -> the word among a document's directives.
WORDS = {
    "tdm_reservation": TDM,
    "noai": "noai",
    "noimageai": "noimageai",
    "noarchive": "noarchive",
    "noindex": "noindex",
}
#: Column -> the key in a document's metadata.
ADDRESSES = {"tdm_policy": TDM_POLICY, "licence_address": REL_LICENSE}
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.bool_(), nullable=False) for name in WORDS),
        *(pa.field(name, pa.string()) for name in ADDRESSES),  # null where none is declared
    ]
)
_KEYS = "|".join(f'"{key}"' for key in (DIRECTIVES, *ADDRESSES.values()))


def annotate(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """What each document declares; metadata is parsed only where it has one of the keys."""
    extra = batch.column("extra")
    rows = np.flatnonzero(pc.match_substring_regex(extra, _KEYS).to_numpy(zero_copy_only=False))
    flags = {name: np.zeros(len(extra), dtype=np.bool_) for name in WORDS}
    texts: dict[str, list[str | None]] = {name: [None] * len(extra) for name in ADDRESSES}
    for row, text in zip(rows.tolist(), extra.take(pa.array(rows)).to_pylist(), strict=True):
        found = json.loads(text)
        words = str(found.get(DIRECTIVES, "")).split()
        for name, word in WORDS.items():
            flags[name][row] = word in words
        for name, key in ADDRESSES.items():
            texts[name][row] = found[key] if isinstance(found.get(key), str) else None
    columns = [*map(pa.array, flags.values()), *(pa.array(values, pa.string()) for values in texts.values())]
    return pa.record_batch(columns, schema=SCHEMA)


ANNOTATOR = Annotator(
    name="opt_out",
    version="1",
    description="Opt-outs and licence that the page or its server declares: TDM reservation, robots directives.",
    source="TDM Reservation Protocol (W3C community group, 2024); robots meta tag and X-Robots-Tag.",
    params=NoParams,
    schema=SCHEMA,
    reads=("extra",),
    annotate=annotate,
)
