"""Files of a text export, in a folder or at a URI, in the layout of the Hugging Face Hub.

    data/BUCKET/train-00000-of-00002.parquet   text with its columns, one file per part of curated text
    README.md                                  data card, with front matter (license, language, size, configs)
    croissant.json                             Croissant 1.1: files, columns, licenses, responsible-AI fields
    manifest.json                              every file with length and SHA-256; digests of the inputs
    .progress/                                 during the export: the plan, and the complete files

A file is written unless this user has recorded a complete file under its key (format, part of text, part of the
ledger). Therefore an interrupted export continues, a repeated export writes no text, and both have the same bytes.
`manifest.json` is deleted first and written last. Only files from an export are replaced or deleted.

A row has the text of a training document and its ledger row. Rows are in the order of the documents. All ledger columns
about the document are exported: origin, license, terms, scores, cluster, rules that fired, edits. Columns about a
training run (shard, position, tokens, weight) are left out, so an export does not depend on the training run.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth import fingerprint
from plinth.compute.context import Context, sum_stats
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.corpus.policy.compiled_policy import LICENCE, Rights
from plinth.errors import IntegrityError, SourceError
from plinth.provenance.ledger import ASSET as LEDGER
from plinth.provenance.ledger_columns import BASE, JOIN, hexadecimal
from plinth.records import Frozen, Manifest, Part
from plinth.storage.parts import RowGroups, iter_batches, parquet_encoding
from plinth.storage.store import Store
from plinth.storage.uris import DigestWriter, Sink, WrittenFile, write_file
from plinth_audit.text_export.croissant import croissant
from plinth_audit.text_export.manifest import (
    CARD,
    CROISSANT,
    DATA,
    VERSION,
    CardFacts,
    ExportFile,
    TextExport,
    begin,
    finish,
    hub_card,
    record,
)
from plinth_audit.text_export.responsible_ai import ExportedText

#: Annotator column with the language of a document.
LANGUAGE = "language__label"


class ExportTask(Frozen):
    """Work item of an export worker, which writes one text file."""

    name: str
    uri: str
    key: str
    format: str
    curated: Part
    ledger: Part
    rights: Rights


def export(
    ctx: Context, buckets: Sequence[str], kind: str, to: str, name: str, card: Manifest, page: str
) -> TextExport:
    """Write the curated text of buckets to a folder or URI, except documents whose license forbids redistribution.

    Args:
        kind: one of `FORMATS`.
        name: name of the corpus.
        card, page: published data card and its text.

    Raises:
        SourceError: the terms of a source forbid redistribution, or a bucket has planted text.
        IntegrityError: ledger or card belong to other text, or the text was curated without a license gate.
        StorageError: the target cannot be written, or has files that are not from an export.
    """
    require_corpus(buckets)
    to = to if "://" in to else str(Path(to).absolute())  # workers have a working directory of their own
    made = {bucket: ctx.refs.current(f"{bucket}/curated") for bucket in buckets}
    ledger = ctx.refs.current(LEDGER)
    for bucket, curated in made.items():
        _require_terms(bucket, ctx.refs.load(curated.inputs[f"{bucket}/documents"]))
        _require_same(bucket, curated, ledger, card)
    tasks = [task for bucket, curated in made.items() for task in _tasks(bucket, curated, ledger, kind, to)]
    done = begin(to, {task.name: task.key for task in tasks})
    _write_missing(ctx, to, tasks, done)
    files = {task.name: done[task.name] for task in tasks}
    total = sum_stats(file.model_dump() for file in files.values())
    facts = CardFacts(name=name, files={bucket: f"{DATA}{bucket}/train-*" for bucket in buckets}, counts=total)
    files[CARD] = _written(f"{to}/{CARD}", hub_card(facts, page).encode())
    inputs = {one.asset: one.digest for one in (*made.values(), card)} | _judged_by(buckets, ledger)
    # One part per bucket: in a shared store, each open can be a download.
    ledgers = {task.ledger.name.partition("/")[0]: task.ledger for task in tasks}
    schemas = {bucket: schema_of(ctx.store, part) for bucket, part in ledgers.items()}
    text = ExportedText(name, kind, dict(files), schemas, made, card, ledger, inputs)
    files[CROISSANT] = _written(f"{to}/{CROISSANT}", croissant(ctx, text))
    return finish(to, kind, files, inputs)


def _written(uri: str, content: bytes) -> ExportFile:
    return ExportFile(key="", **write_file(uri, lambda out: out.write(content)).model_dump())


def require_corpus(buckets: Sequence[str]) -> None:
    """Reject the bucket of canaries. If other models train on the canaries, they no longer measure memorization.

    Raises:
        SourceError: the buckets include canaries.
    """
    if CANARIES in buckets:
        raise SourceError(
            f"{CANARIES} cannot be exported",
            found="generated texts that measure memorization",
            expected="buckets of the recipe",
            remedy=f"remove {CANARIES} from the buckets",
        )


def _require_terms(bucket: str, documents: Manifest) -> None:
    """Require that the terms of every source in a bucket allow redistribution. A bucket with unknown sources is
    rejected."""
    sources: Sequence[Mapping[str, Any]] = documents.params.get("sources") or ({},)
    for source in sources:
        if source.get("terms", {}).get("redistribute") is not True:
            raise SourceError(
                f"the terms of bucket {bucket} do not allow redistribution",
                found=f"source {source.get('domain')}, {source.get('snapshot')}: `terms.redistribute` is not true",
                expected="`terms.redistribute: true` for every source in the bucket",
                remedy="list only buckets that can be exported, or move this source to its own bucket",
            )


def _require_same(bucket: str, curated: Manifest, ledger: Manifest, card: Manifest) -> None:
    """Require that the ledger and the data card belong to the current curated text of a bucket."""
    verdicts = f"{bucket}/verdicts"
    pairs = ((ledger, verdicts, curated.inputs[verdicts]), (card, f"{bucket}/curated", curated.digest))
    for one, key, expected in pairs:
        if one.inputs.get(key) != expected:
            raise IntegrityError(
                f"{one.asset} does not belong to the current {bucket}/curated",
                found=f"{key} {str(one.inputs.get(key))[:16]}",
                expected=f"{key} {expected[:16]}",
                remedy=f"plinth run --select {one.asset}",
            )


def _judged_by(buckets: Sequence[str], ledger: Manifest) -> dict[str, str]:
    """Return the digests of the annotations and policies that judged the buckets. Inputs from training are left out."""
    others = {key.partition("/")[0] for key in ledger.inputs if key.endswith("/documents")} - set(buckets)
    others |= {CANARIES}
    of_a_run = (key for key in ledger.inputs if key == "mixture" or key.endswith("/shards"))
    left_out = {*of_a_run, *(key for key in ledger.inputs if key.partition("/")[0] in others)}
    return {key: digest for key, digest in ledger.inputs.items() if key not in left_out}


def _tasks(bucket: str, curated: Manifest, ledger: Manifest, kind: str, to: str) -> Iterator[ExportTask]:
    """Yield one export task for each part of a bucket that has training text."""
    rights = _redistribution(curated)
    rows_of = {part.name.removeprefix(f"{bucket}/"): part for part in ledger.named(f"{bucket}/part-")}
    parts = [part for part in curated.named("part-") if part.rows]
    for number, part in enumerate(parts):
        name = f"{DATA}{bucket}/train-{number:05d}-of-{len(parts):05d}.{kind}"
        row = rows_of[part.name]
        key = fingerprint.digest([VERSION, kind, part.blob.sha256, row.blob.sha256, rights])
        yield ExportTask(name=name, uri=f"{to}/{name}", key=key, format=kind, curated=part, ledger=row, rights=rights)


def _redistribution(curated: Manifest) -> Rights:
    """Return the license gate for redistributed text (`corpus.licences_by_use`), as the curated text records it."""
    if "licences" not in curated.params:
        raise IntegrityError(
            f"{curated.asset} does not record the permitted licenses",
            found=f"version {curated.version}",
            expected="text curated by version 3",
            remedy=f"plinth run --select {curated.asset}",
        )
    given = Rights.model_validate(curated.params).licences
    return Rights(licences=given.model_copy(update={"uses": ("redistribute",)}))


def _write_missing(ctx: Context, to: str, tasks: Sequence[ExportTask], done: dict[str, ExportFile]) -> None:
    missing = [task for task in tasks if task.name not in done]
    with ctx.progress.meter("export", sum(task.curated.rows for task in missing)) as meter:

        def finished(at: int, file: ExportFile) -> None:
            record(to, missing[at].name, file)
            done[missing[at].name] = file
            meter.advance(missing[at].curated.rows)

        for _ in ctx.engine.map(partial(write_text, ctx.store), missing, done=finished):
            pass


def write_text(store: Store, task: ExportTask) -> ExportFile:
    """Write one text file of the export. Return its record with length, digest and counts."""
    counts = list[dict[str, Any]]()

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in rows(store, task.curated, task.ledger):
            stopped = task.rights.stops({"documents.licence": batch.column("licence")})[LICENCE]
            allowed = batch.filter(pa.array(~stopped))
            counts.append({**_counts(allowed), "withheld": int(stopped.sum())})
            yield allowed

    schema = schema_of(store, task.ledger)
    written: WrittenFile = write_file(task.uri, partial(FORMATS[task.format], schema, counted()))
    return ExportFile(key=task.key, **written.model_dump(), **sum_stats(counts))


def _counts(batch: pa.RecordBatch) -> dict[str, Any]:
    def by_value(name: str) -> dict[str, int]:
        found = pc.value_counts(batch.column(name)).to_pylist() if name in batch.schema.names else []
        return {row["values"]: row["counts"] for row in found if row["values"]}

    days = pc.value_counts(pc.strftime(batch.column("captured_at"), format="%Y-%m-%d")).to_pylist()
    length = pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
    return {
        "documents": batch.num_rows,
        "text_bytes": length,
        "licences": by_value("licence"),
        "languages": by_value(LANGUAGE),
        "captured": {row["values"]: row["counts"] for row in days if row["values"]},
    }


#: Columns of curated text by their export names. `metadata` is the source's metadata as JSON.
_TEXT = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("text", pa.large_string(), nullable=False)])
_METADATA = pa.field("metadata", pa.string(), nullable=False)
#: Ledger columns by their export names; `domain` is exported as `source`, the common name.
_LEDGER = ("bucket", "domain", "uri", "captured_at", "snapshot", "licence", "may_commercial", "mime")
_JUDGED = ("fired", "cluster", "cluster_size", "edits", "edited_characters")
_NAMES = {"domain": "source"}


def schema_of(store: Store, ledger: Part) -> pa.Schema:
    """Return the schema of exported rows, including the annotation columns of a ledger part."""
    scores = [field for field in pq.read_schema(store.open_path(ledger.blob)) if JOIN in field.name]
    fixed = [BASE.field(name).with_name(_NAMES.get(name, name)) for name in (*_LEDGER, *_JUDGED)]
    return pa.schema([*_TEXT, *fixed, *scores, _METADATA])


def rows(store: Store, curated: Part, ledger: Part) -> Iterator[pa.RecordBatch]:
    """Yield the training documents of a part, as batches with the schema from `schema_of`.

    Raises:
        IntegrityError: the ledger does not match the text.
    """
    schema = schema_of(store, ledger)
    read = [name for name in pq.read_schema(store.open_path(ledger.blob)).names if JOIN in name]
    texts = _Texts(store, curated)
    for batch in iter_batches(store, ledger, ["id", "decision", *_LEDGER, *_JUDGED, *read]):
        batch = batch.filter(pc.equal(batch.column("decision"), "train"))
        if not batch.num_rows:
            continue
        text = texts.take(batch.column("id"))
        columns = {_NAMES.get(name, name): batch.column(name) for name in batch.schema.names}
        columns |= {"text": text.column("text"), "metadata": text.column("extra")}
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    texts.finish()


class _Texts:
    """Sequential reader of text and metadata in a part of curated text."""

    def __init__(self, store: Store, part: Part) -> None:
        self._part = part
        self._batches = iter_batches(store, part, ["id", "text", "extra"])
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def take(self, ids: pa.Array) -> pa.RecordBatch:
        """Return the next documents, or raise an error if their IDs differ from `ids`."""
        while self._rows < len(ids) and (batch := next(self._batches, None)) is not None:
            self._waiting.append(batch)
            self._rows += batch.num_rows
        held = pa.Table.from_batches(self._waiting) if self._waiting else None
        if held is None or held.num_rows < len(ids):
            raise self._other(f"only {self._rows} curated documents are left for {len(ids)} rows of the ledger")
        taken = held.slice(0, len(ids)).combine_chunks().to_batches()[0]
        rest = held.slice(len(ids))
        self._waiting, self._rows = [batch for batch in rest.to_batches() if batch.num_rows], rest.num_rows
        if not hexadecimal(taken.column("id")).equals(ids):
            raise self._other("different documents or order")
        return taken

    def finish(self) -> None:
        """Raise an error if unread documents remain."""
        if self._rows or any(batch.num_rows for batch in self._batches):
            raise self._other("documents without a ledger row")

    def _other(self, found: str) -> IntegrityError:
        return IntegrityError(
            f"the ledger does not match the curated text ({self._part.name})",
            found=found,
            expected="the training documents, in order",
            remedy="run `plinth run --select ledger`",
        )


Write = Callable[[pa.Schema, Iterable[pa.RecordBatch], DigestWriter], None]


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: DigestWriter) -> None:
    """Write Zstandard-compressed row groups with a limit on rows and bytes per group.

    Content-defined chunking sets the ends of data pages, so that a store of chunks, such as the Hub's, deduplicates
    the pages of similar exports. The workspace writes its parts without it: their digests are data versions.
    """
    groups = RowGroups(schema)

    def filled() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from groups.add(batch)
        yield from groups.rest()

    options = {**parquet_encoding(schema), "use_content_defined_chunking": True}
    with pq.ParquetWriter(pa.PythonFile(out, mode="w"), schema, **options) as file:
        for group in filled():
            file.write_batch(group, row_group_size=group.num_rows)


def write_jsonl(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: Sink) -> None:
    """Write one JSON object per line, with keys in column order. `metadata` is an object, and times are ISO 8601."""
    for batch in batches:
        for row in batch.to_pylist():
            row["metadata"] = json.loads(row["metadata"])
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_text).encode() + b"\n")


def _gzipped(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: DigestWriter) -> None:
    with gzip.GzipFile("", "wb", 6, out, mtime=0) as packed:
        write_jsonl(schema, batches, packed)


def _zstandard(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: DigestWriter) -> None:
    with pa.CompressedOutputStream(pa.PythonFile(out, mode="w"), "zstd") as packed:
        write_jsonl(schema, batches, packed)


#: Writers by format, which is also the file name extension.
FORMATS: Mapping[str, Write] = {
    "parquet": write_parquet,
    "jsonl": write_jsonl,
    "jsonl.gz": _gzipped,
    "jsonl.zst": _zstandard,
}


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")
