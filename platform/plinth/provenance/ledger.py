"""Ledger: one row per document with all its facts, as Parquet for any query engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.canaries import BUCKET
from plinth.corpus.sidecars import Slot, slots
from plinth.corpus.sources.parameters import source_of
from plinth.corpus.verdicts import PROTECTED, STAGE_OF
from plinth.errors import WorkspaceError
from plinth.provenance.ledger_columns import (
    BASE,
    REJECTS,
    TokenPlaces,
    Tokens,
    chosen,
    converted,
    hexadecimal,
    schema_of,
    tokens_of,
)
from plinth.records import Manifest, Part, Step, bucket_of
from plinth.storage.atomic import join, write_bytes
from plinth.storage.parts import SCORE_GROUP_ROWS, iter_aligned, iter_batches, write_batches
from plinth.storage.state import checkout
from plinth.storage.store import Store

# Ledger: one row per document with all its facts, as Parquet for any query engine.
#
# A join of row-aligned sidecars: no text is read, and memory is one row group for any corpus. A document's place in the
# shards comes from the index of tokens, read together with its bucket's documents: both have the same order. Rejects,
# which never became documents, have their own table.

ASSET = "ledger"
VERSION = "2"

_DOCUMENTS = ["id", "uri", "captured_at", "snapshot", "licence", "mime", "source_bytes", "extra"]
_VERDICTS = ["decision", "reason", "cluster", "cluster_size", "edits"]
_STAGES = {**STAGE_OF, "held_out": "holdout"}


@dataclass(frozen=True)
class Made:
    """Manifests that are joined into the ledger.

    Args:
        documents, policies, verdicts: manifests by bucket.
        annotations: manifests by annotator and bucket.
        shared: manifests of stages that run over all buckets, by their name in columns (`exact`, `near`, `holdout`, …).
        curated, shards: manifests by bucket, if the text was tokenized.
        mixture: manifest of the mixture, or None if there is no mixture yet.
        canaries: curated text and shards of planted text, if there is any.
    """

    documents: Mapping[str, Manifest]
    policies: Mapping[str, Manifest]
    verdicts: Mapping[str, Manifest]
    annotations: Mapping[str, Mapping[str, Manifest]]
    shared: Mapping[str, Manifest]
    curated: Mapping[str, Manifest] | None = None
    shards: Mapping[str, Manifest] | None = None
    mixture: Manifest | None = None
    canaries: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class _Task:
    slot: Slot
    sidecars: tuple[str, ...]
    sources: tuple[Mapping[str, Any], ...]
    tokens: Tokens | None
    weight: float | None
    epochs: float | None


@dataclass(frozen=True)
class _Refused:
    bucket: str
    part: Part


def run(ctx: Context, made: Made) -> Manifest:
    """Write the ledger of all buckets.

    Returns:
        Manifest with the parts `{bucket}/part-*` (schema `ledger_columns.schema_of`; one row per document, in order),
        `{bucket}/rejects-*` (schema `ledger_columns.REJECTS`), and `canaries/part-*` for planted copies. Statistics:
        `documents`, `rejects`, `columns` and `trained`, which exclude planted copies, and `planted` if there are any.

    Raises:
        IntegrityError: a sidecar or an index does not belong to the documents.
    """
    sides: dict[str, Manifest | Mapping[str, Manifest]] = {**made.annotations, **made.shared}
    places = slots(made.documents, policy=made.policies, verdicts=made.verdicts, **sides)
    step = Step(name=ASSET, version=VERSION)
    items = [_item(made, slot, tuple(sorted(sides))) for slot in places]
    rows = run_items(ctx, step, _write, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, rows, strict=True)]
    refused = [(bucket, part) for bucket, one in sorted(made.documents.items()) for part in one.named("rejects-")]
    items = [Item((part.blob.sha256, bucket), _Refused(bucket, part), part.rows) for bucket, part in refused]
    step_of_rejects = Step(name=f"{ASSET}/rejects", version=VERSION)
    copied = run_items(ctx, step_of_rejects, _write_rejects, items, label=f"{ASSET}: rejects")
    rejects = [
        one[0].model_copy(update={"name": f"{bucket}/{part.name}"})
        for (bucket, part), one in zip(refused, copied, strict=True)
    ]
    stats = {
        "documents": sum(part.rows for part in parts),
        "rejects": sum(part.rows for part in rejects),
        "trained": sum(int(part.stats["trained"]) for part in parts),
        "columns": int(parts[0].stats["columns"]) if parts else len(BASE),
    }
    planted = _planted(ctx, made, parts)
    stats |= {"planted": sum(part.rows for part in planted)} if planted else {}
    return manifest(ASSET, step, _inputs(made), [*parts, *planted, *rejects], stats)


def _planted(ctx: Context, made: Made, parts: Sequence[Part]) -> list[Part]:
    """Write the rows of planted canary copies, with the same columns as all other rows."""
    if not made.canaries or not parts:
        return []
    curated, shards = made.canaries
    schema = pq.read_schema(ctx.store.open_path(parts[0].blob))
    weight, epochs = _weight(made, BUCKET)
    items = []
    for part in curated.named("part-"):
        tokens = tokens_of(BUCKET, part, curated, shards)
        task = PlantedTask(part, tokens, schema, weight, epochs)
        items.append(Item((part.blob.sha256, *tokens.digests, str(schema), json.dumps([weight, epochs])), task))
    step = Step(name=f"{ASSET}/planted", version=VERSION)
    rows = run_items(ctx, step, write_planted, items, label=f"{ASSET}: planted")
    return [one[0].model_copy(update={"name": f"{BUCKET}/{one[0].name}"}) for one in rows]


def _inputs(made: Made) -> dict[str, Manifest | str]:
    per_bucket = {"documents": made.documents, "policy": made.policies, "verdicts": made.verdicts}
    per_bucket |= {**made.annotations, "curated": made.curated or {}, "shards": made.shards or {}}
    found: dict[str, Manifest | str] = {
        f"{bucket}/{kind}": one for kind, by_bucket in per_bucket.items() for bucket, one in by_bucket.items()
    }
    found |= {one.asset: one for one in made.shared.values()}
    found |= {one.asset: one for one in made.canaries}
    return found | ({"mixture": made.mixture} if made.mixture else {})


def _item(made: Made, slot: Slot, sidecars: tuple[str, ...]) -> Item:
    sources = tuple(made.documents[slot.bucket].params.get("sources", ()))
    tokens = None
    if made.shards and made.curated and slot.bucket in made.shards:
        tokens = tokens_of(slot.bucket, slot.documents, made.curated[slot.bucket], made.shards[slot.bucket])
    weight, epochs = _weight(made, slot.bucket)
    task = _Task(slot, sidecars, sources, tokens, weight, epochs)
    digests = [slot.documents.blob.sha256, *(f"{name}:{side.blob.sha256}" for name, side in sorted(slot.sides.items()))]
    placed = tokens.digests if tokens else ()
    facts = json.dumps([slot.bucket, sources, weight, epochs], sort_keys=True)
    return Item((*digests, *placed, facts), task, slot.documents.rows)


def _weight(made: Made, bucket: str) -> tuple[float | None, float | None]:
    """Return the bucket's share of the training mixture and its epochs, or None for both if the mixture lacks the
    bucket."""
    plan = made.mixture.stats if made.mixture else {}
    streams = [own for name, own in plan.get("buckets", {}).items() if bucket_of(name) == bucket]
    needed, text = (sum(own[key] for own in streams) for key in ("needed", "sequences"))
    weight = needed / plan["sequences"] if streams and plan["sequences"] else None
    return weight, (needed / text if text else 0.0) if streams else None


def _write(store: Store, task: _Task) -> tuple[Part, ...]:
    sidecars = {name: pq.read_schema(store.open_path(task.slot.sides[name].blob)) for name in task.sidecars}
    schema, stats = schema_of(sidecars), {"trained": 0, "columns": 0}
    batches = _batches(store, task, sidecars, schema, stats)
    part = write_batches(store, task.slot.documents.name, schema, batches, group_rows=SCORE_GROUP_ROWS)
    return (part.model_copy(update={"stats": {**stats, "columns": len(schema)}}),)


def _batches(
    store: Store, task: _Task, sidecars: Mapping[str, pa.Schema], schema: pa.Schema, stats: dict[str, int]
) -> Iterator[pa.RecordBatch]:
    wanted = {name: chosen(name, one) for name, one in sidecars.items()}
    lengths = ["text_bytes"] if "text_bytes" in sidecars.get("exact", pa.schema([])).names else []
    read = {name: [*columns, *(lengths if name == "exact" else [])] for name, columns in wanted.items()}
    sides = task.slot.sides
    sources = [(task.slot.documents, _DOCUMENTS), (sides["policy"], ["keep", "fired"]), (sides["verdicts"], _VERDICTS)]
    sources += [(sides[name], columns) for name, columns in read.items() if columns]
    places = TokenPlaces(store, task.slot.bucket, task.slot.documents.name, task.tokens)
    for documents, policy, verdicts, *rest in iter_aligned(store, *sources):
        named = dict(zip([name for name, columns in read.items() if columns], rest, strict=True))
        trained = pc.equal(verdicts.column("decision"), "train")
        row = _facts(task, documents) | _judged(policy, verdicts) | places.of(documents.column("id"), trained)
        row |= _weights(task, trained)
        row["text_bytes"] = named["exact"].column("text_bytes") if lengths else pa.nulls(len(policy), pa.int64())
        for name, fields in wanted.items():
            row |= {field.name: converted(named[name].column(one), field) for one, field in fields.items()}
        stats["trained"] += trained.true_count
        yield pa.RecordBatch.from_arrays([row[name] for name in schema.names], schema=schema)


def _facts(task: _Task, documents: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the ledger columns that describe documents and the terms of their sources."""
    rows = documents.num_rows
    domains = [json.loads(extra).get("domain") for extra in documents.column("extra").to_pylist()]
    snapshots = documents.column("snapshot").to_pylist()
    places = {pair: source_of(task.sources, *pair) for pair in set(zip(domains, snapshots, strict=True))}
    index = [places[pair] for pair in zip(domains, snapshots, strict=True)]
    terms = [task.sources[at].get("terms", {}) if at is not None else {} for at in index]
    row = {name: documents.column(name) for name in _DOCUMENTS if name not in ("id", "extra")}
    row |= {"id": hexadecimal(documents.column("id")), "bucket": pa.array([task.slot.bucket] * rows, pa.string())}
    row |= {"source": pa.array(index, pa.int32()), "domain": pa.array(domains, pa.string())}
    uses = ("train", "redistribute", "commercial")
    return row | {f"may_{use}": pa.array([each.get(use) for each in terms], pa.bool_()) for use in uses}


def _weights(task: _Task, trained: pa.Array) -> dict[str, pa.Array]:
    """Return the columns `mixture_weight` and `mixture_epochs`. They are null for documents that are not trained on."""
    values = {"mixture_weight": task.weight, "mixture_epochs": task.epochs}
    nothing = pa.scalar(None, pa.float64())
    return {name: pc.if_else(trained, pa.scalar(value, pa.float64()), nothing) for name, value in values.items()}


def _judged(policy: pa.RecordBatch, verdicts: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return decision, reason and stage, and for kept documents the number of characters that edits removed."""
    decision, reason = verdicts.column("decision"), verdicts.column("reason")
    nothing = pa.scalar(None, pa.string())
    others = reason.dictionary_encode()
    stages = pa.array([_STAGES.get(name, PROTECTED) for name in others.dictionary.to_pylist()], pa.string())
    by_reason = stages.take(others.indices) if len(stages) else pa.nulls(len(reason), pa.string())
    stage = pc.if_else(pc.equal(decision, "heldout"), "holdout", by_reason)
    stage = pc.if_else(pc.invert(policy.column("keep")), "policy", stage)
    spans = verdicts.column("edits")
    kept = pc.not_equal(decision, "drop").to_numpy(zero_copy_only=False)
    counts = pc.fill_null(pc.list_value_length(spans), 0).to_numpy(zero_copy_only=False)
    flat = spans.flatten()
    removed = np.zeros(len(decision), dtype=np.int64)
    width = pc.subtract(pc.struct_field(flat, "end_cp"), pc.struct_field(flat, "start_cp"))
    saved = pc.subtract(width, pc.utf8_length(pc.struct_field(flat, "replacement")))
    np.add.at(removed, pc.list_parent_indices(spans).to_numpy(), saved.to_numpy(zero_copy_only=False))
    return {
        "decision": decision,
        "reason": pc.if_else(pc.equal(decision, "drop"), reason, nothing),
        "stage": pc.if_else(pc.equal(decision, "train"), nothing, stage),
        "fired": pc.fill_null(policy.column("fired"), []),
        "cluster": hexadecimal(verdicts.column("cluster")),
        "cluster_size": verdicts.column("cluster_size"),
        "edits": pa.array(np.where(kept, counts, 0).astype(np.int32)),
        "edited_characters": pa.array(np.where(kept, removed, 0)),
    }


def _write_rejects(store: Store, task: _Refused) -> tuple[Part, ...]:
    def batches() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(store, task.part):
            names = pa.array([task.bucket] * batch.num_rows, pa.string())
            columns = [batch.column(name) for name in REJECTS.names[1:]]
            yield pa.RecordBatch.from_arrays([names, *columns], schema=REJECTS)

    return (write_batches(store, task.part.name, REJECTS, batches()),)


DECISION = "canary"
_READ = ["id", "uri", "captured_at", "snapshot", "licence", "mime", "source_bytes"]


@dataclass(frozen=True)
class PlantedTask:
    """Task for one part of planted text, with its positions in the shards and the ledger's schema."""

    part: Part
    tokens: Tokens
    schema: pa.Schema
    weight: float | None
    epochs: float | None


def write_planted(store: Store, task: PlantedTask) -> tuple[Part, ...]:
    """Write ledger rows for a part of planted text."""
    return (write_batches(store, task.part.name, task.schema, _planted_batches(store, task)),)


def _planted_batches(store: Store, task: PlantedTask) -> Iterator[pa.RecordBatch]:
    places = TokenPlaces(store, BUCKET, task.part.name, task.tokens)
    for batch in iter_batches(store, task.part, _READ):
        rows = batch.num_rows
        row: dict[str, Any] = {name: batch.column(name) for name in _READ[1:]}
        row |= {"id": hexadecimal(batch.column("id")), "text_bytes": batch.column("source_bytes")}
        row |= _same(rows, bucket=BUCKET, domain=BUCKET, decision=DECISION, edits=0, edited_characters=0)
        row |= _same(rows, mixture_weight=task.weight, mixture_epochs=task.epochs, may_train=True)
        row["fired"] = [[]] * rows
        row |= places.of(batch.column("id"), pa.array([True] * rows))
        yield _filled(row, rows, task.schema)


def _same(rows: int, **values: Any) -> dict[str, Sequence[Any]]:
    return {name: [value] * rows for name, value in values.items()}


def _filled(row: dict[str, Any], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the schema's columns, filled from `row`. Columns without values are null."""
    columns = []
    for field in schema:
        value = row.get(field.name)
        column = pa.nulls(rows, field.type) if value is None else value
        columns.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# Export of the ledger as a folder that a query can read with a file pattern.
#
# DIR/web-00000.parquet …          documents of every bucket
# DIR/rejects/web-00000.parquet …  rejects
# DIR/ledger.json                  digest of the manifest, and the files of this export

LIST = "ledger.json"


def export(ctx: Context, made: Manifest, directory: Path) -> list[Path]:
    """Copy the ledger's parts into a directory and verify them. Obsolete files of an earlier export are removed.

    Raises:
        WorkspaceError: the directory contains other Parquet files, which a query over the directory would include.
        MissingError, IntegrityError: a part is absent or has changed.
    """
    parts = [part.model_copy(update={"name": _name(part)}) for part in made.parts]
    names = {part.name for part in parts}
    before = _before(directory)
    found = {
        str(path.relative_to(directory))
        for pattern in ("*.parquet", "rejects/*.parquet")
        for path in directory.glob(pattern)
    }
    strange = sorted(found - before)
    if strange:
        raise WorkspaceError(
            f"{directory} has Parquet files that do not belong to a ledger",
            found=", ".join(strange[:3]),
            expected="an empty folder, or one from an earlier export",
            remedy="use another folder",
        )
    files = checkout(ctx.store, parts, directory)
    note = {"digest": made.digest, "files": sorted(names)}
    write_bytes(directory / LIST, json.dumps(note, indent=1).encode())
    for name in sorted((before & found) - names):
        join(directory, name, LIST).unlink()
    return files


def _name(part: Part) -> str:
    """Return the file name of a part in an export: `web/part-00000.parquet` becomes `web-00000.parquet`. Rejects are in
    the folder `rejects/`."""
    bucket, _, rest = part.name.partition("/")
    kind, _, number = rest.partition("-")
    return f"{bucket}-{number}" if kind == "part" else f"{kind}/{bucket}-{number}"


def _before(directory: Path) -> set[str]:
    """Return the file names of the previous export."""
    try:
        return set(json.loads((directory / LIST).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()
