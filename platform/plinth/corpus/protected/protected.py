"""The stage: every surviving document against every protected item.

index     once       items as arrays
weights   per part   how many sampled documents hold each word of the items
found     per part   the sidecar, and the pairs (document, item) behind it
items     once       the documents found for every item, for evaluation to leave out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, run_items
from plinth.corpus.protected import protected_index
from plinth.corpus.protected.match import find
from plinth.corpus.protected.parameters import Protected
from plinth.corpus.sidecars import Slot, slots, summed
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, read_table, write_batches, write_table
from plinth.storage.store import Store
from plinth.text.words.ngrams import ngram_hashes

ASSET = "protected"
VERSION = "2"
#: Reasons that the stage gives.
LEAKED, SOURCE, THINNED = REASONS = ("leaked", "benchmark_source", "downweighted")

#: Of the worst item; null where there is none.
SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),  # null where the document may stay
        pa.field("set", pa.string()),
        pa.field("item", pa.string()),
        pa.field("longest", pa.int32()),  # words in a row
        pa.field("fuzzy", pa.float32()),  # share of the item's weight
    ]
)
_PAIRS = pa.schema([("item", pa.int32()), ("longest", pa.int32()), ("fuzzy", pa.float32()), ("leaked", pa.bool_())])
_ITEMS = pa.schema(
    [
        ("set", pa.string()),
        ("item", pa.string()),
        ("documents", pa.int64()),  # leaks and suspects
        ("leaked", pa.int64()),
        ("longest", pa.int32()),
        ("fuzzy", pa.float32()),
    ]
)
_STATS = ("considered", "suspects", *REASONS)
#: One document in so many is looked at for the weights of words.
SAMPLED = 8


def run(
    ctx: Context,
    params: Protected,
    documents: Mapping[str, Manifest],
    survivors: Manifest,
    holdout: Manifest,
    sets: Mapping[str, Manifest],
) -> Manifest:
    """Match every training document against the protected sets.

    Args:
        documents: `{b}/documents` by bucket.
        survivors: of the last deduplication that is on.
        holdout: held-out documents are not looked at.
        sets: `protected/NAME` by name.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`, and `items.parquet`: for every item the documents that hold it.
        Statistics: `considered`, `suspects`, documents by reason; `sets` with items found and items too short.
    """
    places = slots(documents, survivors=survivors, holdout=holdout)
    step = Step(
        name="protected/index",
        version=VERSION,
        params=params.model_dump(include={"candidate_words", "min_words"}),
        libraries=fingerprint.UNICODE,
    )
    digests = tuple(sets[name].digest for name in sorted(sets))
    task = (sets, params.candidate_words, params.min_words)
    plain = run_items(ctx, step, _index, [Item(digests, task)], label=f"{ASSET}: index")[0][0]
    index = _weights(ctx, places, plain)
    step = Step(name="protected/found", version=VERSION, params=_thresholds(params), libraries=fingerprint.UNICODE)
    names, _ = protected_index.items(ctx.store, sets)
    found = run_items(
        ctx,
        step,
        _found,
        [
            Item((*_inputs(slot), index.blob.sha256), _Look(slot, params, index, tuple(names)), slot.documents.rows)
            for slot in places
        ],
        label=ASSET,
    )
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, found, strict=True)]
    step = Step(name="protected/items", version=VERSION)
    pairs = tuple(one[1] for one in found)
    item = Item((index.blob.sha256, *(part.blob.sha256 for part in pairs)), (tuple(names), pairs))
    table = run_items(ctx, step, _items, [item], label=f"{ASSET}: items")[0][0]
    step = Step(name=ASSET, version=VERSION, params=_thresholds(params))
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()}
    inputs |= {"survivors": survivors, "holdout": holdout}
    inputs |= {f"protected/{name}": one for name, one in sets.items()}
    stats = {**summed(parts, _STATS), "sets": _by_set(ctx, params, sets, index, table)}
    return manifest(ASSET, step, inputs, [*parts, table], stats)


def _thresholds(params: Protected) -> dict[str, Any]:
    return params.model_dump(mode="json", exclude={"sets"})


def _inputs(slot: Slot) -> tuple[str, ...]:
    return (slot.documents.blob.sha256, *(slot.sides[name].blob.sha256 for name in ("survivors", "holdout")))


def _index(store: Store, task: tuple[Mapping[str, Manifest], int, int]) -> tuple[Part, ...]:
    sets, candidate_words, min_words = task
    items = protected_index.items(store, sets)[1]
    return (protected_index.write(store, protected_index.build(items, candidate_words, min_words)),)


def _weights(ctx: Context, places: tuple[Slot, ...], plain: Part) -> Part:
    step = Step(name="protected/weights", version=VERSION, params={"sampled": SAMPLED}, libraries=fingerprint.UNICODE)
    items = [Item((*_inputs(slot), plain.blob.sha256), (slot, plain), slot.documents.rows) for slot in places]
    counted = tuple(one[0] for one in run_items(ctx, step, _frequencies, items, label=f"{ASSET}: weights"))
    step = Step(name="protected/weighed", version=VERSION)
    item = Item((plain.blob.sha256, *(part.blob.sha256 for part in counted)), (plain, counted))
    return run_items(ctx, step, _weighed, [item], label=f"{ASSET}: weigh")[0][0]


def _frequencies(store: Store, task: tuple[Slot, Part]) -> tuple[Part, ...]:
    slot, plain = task
    index = protected_index.read(store, plain)
    words, frequencies, documents = index.lookups()[1], np.zeros(index.vocabulary.size, dtype=np.int64), 0
    for batch in iter_batches(store, slot.documents, ["id", "text"]):
        drawn = np.frombuffer(b"".join(batch.column("id").to_pylist()), dtype="<u4").reshape(-1, 4)[:, 2]
        texts = batch.column("text").filter(pa.array(drawn % SAMPLED == 0))
        starts, hashes = ngram_hashes(texts, 1)
        where = words.find(hashes)
        owner = np.repeat(np.arange(len(texts)), np.diff(starts))
        pairs = np.unique(np.stack([owner[where >= 0], where[where >= 0]], axis=1), axis=0)
        frequencies += np.bincount(pairs[:, 1], minlength=frequencies.size)
        documents += len(texts)
    part = write_table(store, "frequencies.parquet", pa.table({"documents": frequencies}))
    return (part.model_copy(update={"stats": {"documents": documents}}),)


def _weighed(store: Store, task: tuple[Part, tuple[Part, ...]]) -> tuple[Part, ...]:
    plain, counted = task
    index = protected_index.read(store, plain)
    frequencies = sum(
        (read_table(store, part)["documents"].to_numpy() for part in counted), np.zeros(index.vocabulary.size, np.int64)
    )
    documents = sum(int(part.stats["documents"]) for part in counted)
    return (protected_index.write(store, protected_index.weighed(index, documents, frequencies)),)


@dataclass(frozen=True)
class _Look:
    slot: Slot
    params: Protected
    index: Part
    names: tuple[tuple[str, str], ...]


def _found(store: Store, task: _Look) -> tuple[Part, ...]:
    index, params = protected_index.read(store, task.index), task.params
    lookups = index.lookups()
    lengths = np.diff(index.starts)
    denied = tuple(piece.lower() for family in params.families.values() for piece in family.deny)
    stats = dict.fromkeys(_STATS, 0)
    pairs: list[pa.Table] = [_PAIRS.empty_table()]

    def batches() -> Iterator[pa.RecordBatch]:
        sources = ((task.slot.documents, ["id", "text", "uri"]), (task.slot.sides["survivors"], ["survivor"]))
        for documents, near, held in iter_aligned(store, *sources, (task.slot.sides["holdout"], ["held_out"])):
            mask = pc.and_not(near.column("survivor"), held.column("held_out"))
            rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            docs, items, longest, fuzzy = find(
                documents.column("text").filter(mask), params.candidate_words, index, lookups
            )
            needed = np.minimum(params.longest_words, lengths[items])
            run = (longest >= needed) & (fuzzy >= params.longest_share)
            leaked = run | (fuzzy >= params.fuzzy)
            telling = leaked | (fuzzy >= params.suspect)
            pairs.append(
                pa.table(
                    [
                        pa.array(items[telling], pa.int32()),
                        pa.array(longest[telling], pa.int32()),
                        fuzzy[telling],
                        leaked[telling],
                    ],
                    schema=_PAIRS,
                )
            )
            worst = _worst(rows[docs[telling]], items[telling], longest[telling], fuzzy[telling], leaked[telling])
            yield _judged(documents, rows, worst, denied, task, stats)

    part = write_batches(store, task.slot.documents.name, SCHEMA, batches())
    table = pa.concat_tables(pairs)
    return part.model_copy(update={"stats": stats}), write_table(store, "pairs.parquet", table)


def _worst(rows: Any, items: Any, longest: Any, fuzzy: Any, leaked: Any) -> dict[int, tuple[int, int, float, bool]]:
    """By row its worst item: a leak before a suspect, then the larger share, then the longer run, then the first."""
    order = np.lexsort((items, -longest, -fuzzy, ~leaked, rows))
    found: dict[int, tuple[int, int, float, bool]] = {}
    for i in order.tolist():
        found.setdefault(int(rows[i]), (int(items[i]), int(longest[i]), float(fuzzy[i]), bool(leaked[i])))
    return found


def _judged(
    documents: pa.RecordBatch,
    rows: Any,
    worst: Mapping[int, tuple[int, int, float, bool]],
    denied: tuple[str, ...],
    task: _Look,
    stats: dict[str, int],
) -> pa.RecordBatch:
    made: list[tuple[str | None, str | None, str | None, int | None, float | None]]
    made = [(None, None, None, None, None)] * documents.num_rows
    stats["considered"] += len(rows)
    uris = documents.column("uri").to_pylist() if denied else []
    for row in sorted({*worst, *(int(r) for r in rows if denied and any(p in uris[r].lower() for p in denied))}):
        item, longest, fuzzy, leaked = worst.get(row, (None, None, None, False))
        reason = LEAKED if leaked else None
        if reason is None and denied and any(piece in uris[row].lower() for piece in denied):
            reason = SOURCE
        if reason is None:
            stats["suspects"] += 1
            drawn = int.from_bytes(documents.column("id")[row].as_py()[12:16], "little") / 2**32
            reason = THINNED if drawn >= task.params.suspect_weight else None
        if reason:
            stats[reason] += 1
        set_, name = task.names[item] if item is not None else (None, None)
        made[row] = (reason, set_, name, longest, fuzzy)
    columns = [pa.array([one[i] for one in made], field.type) for i, field in enumerate(SCHEMA)]
    return pa.record_batch(columns, schema=SCHEMA)


def _items(store: Store, task: tuple[tuple[tuple[str, str], ...], tuple[Part, ...]]) -> tuple[Part, ...]:
    """Every item that some document holds or is suspected to hold."""
    names, parts = task
    documents, leaks = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    longest, fuzzy = np.zeros(len(names), np.int32), np.zeros(len(names), np.float32)
    for part in parts:
        for batch in iter_batches(store, part, list(_PAIRS.names)):
            item = batch.column("item").to_numpy()
            documents += np.bincount(item, minlength=len(names))
            leaks += np.bincount(item[batch.column("leaked").to_numpy(zero_copy_only=False)], minlength=len(names))
            np.maximum.at(longest, item, batch.column("longest").to_numpy())
            np.maximum.at(fuzzy, item, batch.column("fuzzy").to_numpy())
    some = np.flatnonzero(documents)
    named = [names[i] for i in some]
    columns = [
        [one[0] for one in named],
        [one[1] for one in named],
        documents[some],
        leaks[some],
        longest[some],
        fuzzy[some],
    ]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, _ITEMS, strict=True)], schema=_ITEMS
    )
    return (write_table(store, "items.parquet", table),)


def _by_set(
    ctx: Context, params: Protected, sets: Mapping[str, Manifest], index: Part, table: Part
) -> dict[str, dict[str, int]]:
    lengths = np.diff(protected_index.read(ctx.store, index).starts)
    names, _ = protected_index.items(ctx.store, sets)
    short = [name for (name, _), words in zip(names, lengths, strict=True) if words < params.min_words]
    rows = read_table(ctx.store, table).to_pylist()
    return {
        name: {
            "items": int(sets[name].stats["items"]),
            "too_short": short.count(name),
            "leaked": sum(row["leaked"] > 0 for row in rows if row["set"] == name),
            "suspected": sum(row["leaked"] == 0 for row in rows if row["set"] == name),
        }
        for name in sorted(sets)
    }
