"""Search for protected items in documents, with verification of each match; and the table of all items with their
matches and status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.protected import protected_index
from plinth.corpus.protected.parameters import Protected
from plinth.corpus.protected.protected_index import ProtectedIndex, Work, considered, ngrams_of
from plinth.corpus.sidecars import Slot
from plinth.records import Part
from plinth.storage.parts import read_table, write_batches, write_table
from plinth.storage.store import Store
from plinth_text.arrays import F32, I32, I64, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.words import HashLookup, ngram_hashes

# `items.parquet` of the comparison: every item of every set with its matches and its status.
#
# `contaminated`   a document that would train holds it; every such document was dropped
# `suspected`      no document holds it, some come close; a share of these was dropped
# `undecided`      nothing could tell: the item is too short, or all of it is common
# `clean`          looked for and not found
#
# An evaluation scores each status separately: if a model does better on contaminated items than on clean ones, it has
# seen more of them than was found; undecided ones are unknown.

FILE = "items.parquet"
CONTAMINATED, SUSPECTED, UNDECIDED, CLEAN = STATUSES = ("contaminated", "suspected", "undecided", "clean")
#: Reasons for undecided items.
SHORT, COMMON = "short", "common"
#: Undecided items that the statistics of a set name.
MOST_NAMED = 50

#: Kinds of matches of a document with an item (`comparison`), and counts of each item.
KINDS = ("run", "alike", "close")
ITEM_TABLE_PAIRS: protected_index.How = {**dict.fromkeys(KINDS, "sum"), "longest": "max", "fuzzy": "max"}
ITEM_TABLE_SCHEMA = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("why", pa.string()),  # null but for undecided ones
        pa.field("common", pa.float32(), nullable=False),  # share of its words that do not count as evidence
        pa.field("documents", pa.int64(), nullable=False),  # leaks and suspects that count as evidence
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
    """Task that writes the item table, with its inputs."""

    index: Part
    names: Part
    pairs: tuple[Part, ...]
    params: Protected


def tally(pairs: pa.Table) -> pa.Table:
    """Count the matches of each item by kind, from a table of (document, item) pairs."""
    kinds = {name: pc.equal(pairs["kind"], name).cast(pa.int64()) for name in KINDS}
    table = pa.table({"key": pairs["item"], **kinds, "longest": pairs["longest"], "fuzzy": pairs["fuzzy"]})
    return protected_index.merge([table], ITEM_TABLE_PAIRS)


def telling(alike: Any, close: Any, params: Protected) -> tuple[Bools, Bools]:
    """Return two masks over the items. The first is True if an item's `alike` documents count as evidence, the second
    if its `close` documents do. Documents do not count if more documents than `boilerplate_documents` match the item.
    """
    limit = np.inf if params.boilerplate_documents is None else params.boilerplate_documents
    return alike <= limit, alike + close <= limit


def write(store: Store, tables: Tables) -> tuple[Part, ...]:
    """Write the table of all protected items with their matches and status, and statistics by set."""
    index = protected_index.read(store, tables.index)
    names = read_table(store, tables.names)
    held = {name: np.zeros(names.num_rows, np.float32 if name == "fuzzy" else np.int64) for name in ITEM_TABLE_PAIRS}
    for part in tables.pairs:
        table = read_table(store, part)
        keys = table["key"].to_numpy()
        for name, how in ITEM_TABLE_PAIRS.items():
            (np.add if how == "sum" else np.maximum).at(held[name], keys, table[name].to_numpy())
    alike, close = telling(held["alike"], held["close"], tables.params)
    held["leaked"] = held["run"] + held["alike"] * alike
    held["documents"] = held["leaked"] + held["close"] * close
    status, why = _status(index, tables.params, held, alike & close)
    common = 1 - index.evident_words() / np.maximum(np.diff(index.starts), 1)
    given = {"status": status, "why": why, "common": common, **held}
    more = (pa.array(given[field.name], field.type) for field in list(ITEM_TABLE_SCHEMA)[2:])
    columns = [names["set"], names["item"], *more]
    table = pa.table(columns, schema=ITEM_TABLE_SCHEMA)
    return (write_table(store, FILE, table, stats={"sets": _by_set(table)}),)


def _status(index: ProtectedIndex, params: Protected, held: Mapping[str, Any], rare: Bools) -> tuple[Any, Any]:
    """Return the status of each item, and the reason if the item is undecided. `rare` is True for items with few alike
    or close documents."""
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


# The two tasks of a part: matches of its documents with the items, and, when all parts are counted, the sidecar.
#
# A pair of a document and an item is a **run** where both have 13 words in a row, some of them evidence, in a stretch
# that holds enough of the item's weight; **alike** where a stretch holds most of the weight, in whatever order;
# **close** where it holds less, but much. Forms filled in with other words are alike too, thousands of them: if more
# documents are alike than may hold an n-gram, neither alike nor close matches of the item count as evidence.

#: Reasons that the stage gives.
LEAKED, SOURCE, THINNED = REASONS = ("leaked", "benchmark_source", "downweighted")

#: Columns describe the worst item; null if there is none.
SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),  # null where the document may stay
        pa.field("set", pa.string()),
        pa.field("item", pa.string()),
        pa.field("longest", pa.int32()),  # words in a row
        pa.field("word", pa.int32()),  # the document's word that they begin with
        pa.field("fuzzy", pa.float32()),  # share of the item's weight
    ]
)
STATS = ("considered", "suspects", *REASONS)
#: Pairs of a part, by row of the part.
PAIRS = pa.schema(
    [
        ("row", pa.int64()),
        ("item", pa.int64()),
        ("kind", pa.string()),  # a column of `ITEM_TABLE_PAIRS`
        ("longest", pa.int64()),
        ("word", pa.int64()),
        ("fuzzy", pa.float32()),
    ]
)
RUN, ALIKE, CLOSE = KINDS


def found(store: Store, work: Work) -> tuple[Part, ...]:
    """Return two parts: the matching pairs of a document and an item, and the number of matches by item."""
    index, params = protected_index.read(store, work.index), work.params
    lookups, lengths, evident = index.lookups(), np.diff(index.starts), index.evident_words()
    tables, first = [PAIRS.empty_table()], 0
    for documents, would_train, denied in considered(store, work.slot, params):
        mask = would_train & ~denied
        pairs = find(documents.column("text").filter(pa.array(mask)), params.candidate_words, index, lookups)
        kind = _kind(pairs, lengths, evident, params)
        columns = [first + np.flatnonzero(mask)[pairs.documents], pairs.items, kind]
        columns += [pairs.longest, pairs.first, pairs.share]
        chosen = kind != ""
        tables.append(pa.table([pa.array(one[chosen], f.type) for one, f in zip(columns, PAIRS, strict=True)], PAIRS))
        first += documents.num_rows
    table = pa.concat_tables(tables)
    return (
        write_table(store, "pairs.parquet", table),
        write_table(store, "tally.parquet", tally(table)),
    )


def _kind(pairs: Found, lengths: Any, evident: Any, params: Protected) -> Any:
    """Return the kind of match of each pair, or an empty text if the overlap of document and item is too small for a
    match."""
    needed = np.minimum(params.longest_words, lengths[pairs.items])
    # a few words occur everywhere: they match only as a run together with their neighbors
    enough = evident[pairs.items] >= params.min_words
    kind = np.full(pairs.items.size, "", dtype=object)
    kind[enough & (pairs.share >= params.suspect)] = CLOSE
    kind[enough & (pairs.share >= params.fuzzy)] = ALIKE
    kind[(pairs.longest >= needed) & (pairs.share >= params.longest_share)] = RUN
    return kind


@dataclass(frozen=True)
class Judge:
    """Task that writes the sidecar of one part from its matching pairs and the item table."""

    slot: Slot
    params: Protected
    pairs: Part
    items: Part


def judged(store: Store, task: Judge) -> tuple[Part, ...]:
    """Write the sidecar of a part: the reason and the worst matching item of each document."""
    items = read_table(store, task.items)
    worst = _worst(read_table(store, task.pairs), items, task.params)
    stats = dict.fromkeys(STATS, 0)

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for documents, would_train, denied in considered(store, task.slot, task.params, ["id", "uri"]):
            stats["considered"] += int(would_train.sum())
            last = first + documents.num_rows
            mine = {row - first: worst[row] for row in range(first, last) if row in worst}
            yield _batch(documents, would_train & denied, mine, items, task.params, stats)
            first = last

    part = write_batches(store, task.slot.documents.name, SCHEMA, batches())
    return (part.model_copy(update={"stats": stats}),)


def _worst(pairs: pa.Table, items: pa.Table, params: Protected) -> dict[int, dict[str, Any]]:
    """Return for each row the worst matching pair that counts as evidence. Leaks come before suspects, then larger
    shares before smaller ones, longer runs before shorter ones, and earlier items before later ones."""
    alike, close = telling(items["alike"].to_numpy(), items["close"].to_numpy(), params)
    found: dict[int, dict[str, Any]] = {}
    counted = [
        row
        for row in pairs.to_pylist()
        if row["kind"] == RUN or (alike if row["kind"] == ALIKE else close)[row["item"]]
    ]
    for row in sorted(counted, key=lambda row: (row["kind"] == CLOSE, -row["fuzzy"], -row["longest"], row["item"])):
        found.setdefault(row["row"], row)
    return found


def _batch(
    documents: pa.RecordBatch,
    denied: Bools,
    worst: Mapping[int, Mapping[str, Any]],
    items: pa.Table,
    params: Protected,
    stats: dict[str, int],
) -> pa.RecordBatch:
    made: list[tuple[Any, ...]] = [(None,) * len(SCHEMA)] * documents.num_rows
    for row in np.flatnonzero(denied).tolist():
        stats[SOURCE] += 1
        made[row] = (SOURCE, *(None,) * (len(SCHEMA) - 1))
    for row, pair in worst.items():
        reason: str | None = LEAKED
        if pair["kind"] == CLOSE:
            stats["suspects"] += 1
            drawn = int.from_bytes(documents.column("id")[row].as_py()[12:16], "little") / 2**32
            reason = THINNED if drawn >= params.suspect_weight else None
        if reason:
            stats[reason] += 1
        names = (items[column][pair["item"]].as_py() for column in ("set", "item"))
        made[row] = (reason, *names, pair["longest"], pair["word"] if pair["longest"] else None, pair["fuzzy"])
    columns = [pa.array([one[i] for one in made], field.type) for i, field in enumerate(SCHEMA)]
    return pa.record_batch(columns, schema=SCHEMA)


# Find protected items in documents: candidates by shared n-grams, each verified in the best stretch of the text.
#
# A stretch of at most 1.5 times the item's words around the shared n-grams is compared with the item: the weight of the
# item's distinct words that it holds, of the weight of them all, whatever their order; and the longest run of words
# that both have in the same order. Insertions, deletions and reworded sentences leave most of the weight where it was;
# a text on the same subject does not have it in one passage. Words of an item that do not count as evidence
# (`protected_index`) have no weight, and a run of such words alone does not count.



class Found(NamedTuple):
    """Verified pairs of a document and an item; every array has one value per pair.

    Args:
        documents, items: indices of document and item.
        longest: number of words in the longest common run; 0 if no run has 3 words.
        first: index of the document's word at which the run begins.
        share: share of the item's word weight in the passage.
    """

    documents: I64
    items: I64
    longest: I64
    first: I64
    share: F32


def find(texts: pa.Array, n: int, index: ProtectedIndex, lookups: tuple[HashLookup, HashLookup]) -> Found:
    """Return the verified pairs of a document and an item. A pair is compared if it shares enough n-grams."""
    starts, words = ngram_hashes(texts, 1)
    gram_starts, grams = ngrams_of(words, starts, n)
    where = lookups[0].find(grams)
    hit = np.flatnonzero(where >= 0)
    owner = np.searchsorted(gram_starts, hit, side="right") - 1
    found = _pairs(owner, hit - gram_starts[owner], where[hit], index.posting_starts, index.postings)
    documents, wanted, places = found[:, 0], found[:, 1], found[:, 2]
    order = np.lexsort((places, wanted, documents))
    return Found(*_verify(
        documents[order], wanted[order], places[order], starts, words, lookups[1].find(words) if order.size else starts,
        index, n,
    ))  # fmt: skip


def _pairs(owner: I64, places: I64, grams: I64, starts: I64, postings: I32) -> I64:
    """Return a row (document, item, position) for each shared n-gram and each item that contains this n-gram."""
    out = np.empty((int((starts[grams + 1] - starts[grams]).sum()), 3), dtype=np.int64)
    hit_items(owner, places, grams, starts, postings, out)
    return out


def _verify(
    documents: I64, wanted: I64, places: I64, starts: I64, words: U64, known: I64, index: ProtectedIndex, n: int
) -> tuple[I64, I64, I64, I64, F32]:
    kept, share = np.empty((4, documents.size), dtype=np.int64), np.empty(documents.size, dtype=np.float32)
    longest = int(np.diff(index.starts).max(initial=0))
    last = np.empty(1 << (2 * longest).bit_length(), dtype=np.int32)
    before, length = np.empty(longest, dtype=np.int32), np.empty(longest, dtype=np.int32)
    size = verify(
        documents, wanted, places, starts, words, known, index.starts, index.words, index.numbers, index.evident,
        index.weights, n, np.full(index.weights.size, -1, dtype=np.int64), last, before, length,
        np.empty(longest, dtype=np.int64), kept, share,
    )  # fmt: skip
    document, item, run, at = kept[:, :size]
    return document, item, run, at, share[:size]


@compiled
def hit_items(owner: I64, places: I64, grams: I64, starts: I64, postings: I32, out: I64) -> None:
    """Write (document, item, position) to `out` for each shared n-gram and each item that contains this n-gram."""


@compiled
def verify(
    documents: I64, wanted: I64, places: I64, starts: I64, words: U64, known: I64, item_starts: I64, item_words: U64,
    item_numbers: I32, evident: I64, weights: F32, n: int, seen: I64, last: I32, before: I32, length: I32,
    reached: I64, kept: I64, share: F32,
) -> int:  # fmt: skip
    """Write the columns of `Found` to `kept` and `share`, and return the number of pairs. The arguments from `seen` to
    `reached` are scratch memory."""
