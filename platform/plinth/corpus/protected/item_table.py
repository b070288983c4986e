"""`items.parquet` of the comparison: every item of every set, what was found of it, and what that says.

`contaminated`   a document that would train holds it; every such document was dropped
`suspected`      no document holds it, some come close; a share of these was dropped
`undecided`      nothing could tell: the item is too short, or all of it is common
`clean`          looked for and not found

An evaluation scores these apart: a model that does better on contaminated items than on clean ones has seen more of
them than was found; of undecided ones nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.protected import protected_index, tallies
from plinth.corpus.protected.parameters import Protected
from plinth.corpus.protected.protected_index import ProtectedIndex
from plinth.records import Part
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth_text.arrays import Bools

FILE = "items.parquet"
CONTAMINATED, SUSPECTED, UNDECIDED, CLEAN = STATUSES = ("contaminated", "suspected", "undecided", "clean")
#: Why an item is undecided.
SHORT, COMMON = "short", "common"
#: Undecided items that the statistics of a set name.
MOST_NAMED = 50

#: What a document may be to an item (`comparison`), and what is counted of each item.
KINDS = ("run", "alike", "close")
PAIRS: tallies.How = {**dict.fromkeys(KINDS, "sum"), "longest": "max", "fuzzy": "max"}
SCHEMA = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("why", pa.string()),  # null but for undecided ones
        pa.field("common", pa.float32(), nullable=False),  # share of its words that are no evidence
        pa.field("documents", pa.int64(), nullable=False),  # leaks and suspects, as far as they are evidence
        pa.field("leaked", pa.int64(), nullable=False),
        pa.field("alike", pa.int64(), nullable=False),
        pa.field("close", pa.int64(), nullable=False),
        pa.field("longest", pa.int64(), nullable=False),
        pa.field("fuzzy", pa.float32(), nullable=False),
    ]
)
NAMES = pa.schema([pa.field("set", pa.string(), nullable=False), pa.field("item", pa.string(), nullable=False)])


@dataclass(frozen=True)
class Tables:
    """What the table is made of."""

    index: Part
    names: Part
    pairs: tuple[Part, ...]
    params: Protected


def tally(pairs: pa.Table) -> pa.Table:
    """What documents are to each item, counted; of pairs as `comparison` has them."""
    kinds = {name: pc.equal(pairs["kind"], name).cast(pa.int64()) for name in KINDS}
    table = pa.table({"key": pairs["item"], **kinds, "longest": pairs["longest"], "fuzzy": pairs["fuzzy"]})
    return tallies.merge([table], PAIRS)


def telling(alike: Any, close: Any, params: Protected) -> tuple[Bools, Bools]:
    """[items] whether documents that are alike, or close, are evidence: not where they are too many."""
    limit = np.inf if params.boilerplate_documents is None else params.boilerplate_documents
    return alike <= limit, alike + close <= limit


def write(store: Store, tables: Tables) -> tuple[Part, ...]:
    """The table, with statistics by set."""
    index = protected_index.read(store, tables.index)
    names = read_table(store, tables.names)
    held = {name: np.zeros(names.num_rows, np.float32 if name == "fuzzy" else np.int64) for name in PAIRS}
    for part in tables.pairs:
        table = read_table(store, part)
        keys = table["key"].to_numpy()
        for name, how in PAIRS.items():
            (np.add if how == "sum" else np.maximum).at(held[name], keys, table[name].to_numpy())
    alike, close = telling(held["alike"], held["close"], tables.params)
    held["leaked"] = held["run"] + held["alike"] * alike
    held["documents"] = held["leaked"] + held["close"] * close
    status, why = _status(index, tables.params, held, alike & close)
    common = 1 - index.evident_words() / np.maximum(np.diff(index.starts), 1)
    given = {"status": status, "why": why, "common": common, **held}
    columns = [names["set"], names["item"], *(pa.array(given[field.name], field.type) for field in list(SCHEMA)[2:])]
    table = pa.table(columns, schema=SCHEMA)
    return (write_table(store, FILE, table, stats={"sets": _by_set(table)}),)


def _status(index: ProtectedIndex, params: Protected, held: Mapping[str, Any], rare: Bools) -> tuple[Any, Any]:
    """Statuses, and why items are undecided. `rare`: not too many documents are alike or close."""
    short, nothing = np.diff(index.starts) < params.min_words, index.without_evidence()
    cases = [held["leaked"] > 0, held["documents"] > 0, short | nothing | ~rare]
    status = np.select(cases, [CONTAMINATED, SUSPECTED, UNDECIDED], CLEAN).astype(object)
    why = np.full(status.size, None, dtype=object)
    why[status == UNDECIDED] = COMMON
    why[(status == UNDECIDED) & short] = SHORT
    return status, why


def _by_set(table: pa.Table) -> Mapping[str, Mapping[str, Any]]:
    rows = table.select(["set", "item", "status", "why"]).to_pylist()
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        zero: dict[str, Any] = {"items": 0, **dict.fromkeys(STATUSES, 0), "too_short": 0, "common": []}
        own = found.setdefault(row["set"], zero)
        own["items"] += 1
        own[row["status"]] += 1
        own["too_short"] += row["why"] == SHORT
        if row["why"] == COMMON and len(own["common"]) < MOST_NAMED:
            own["common"].append(row["item"])
    return found
