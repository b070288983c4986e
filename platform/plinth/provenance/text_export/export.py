"""The files of an export, in a folder or below a URI; the layout is the one that the Hugging Face Hub reads.

    data/BUCKET/train-00000-of-00002.parquet   text with its columns, one file for each part of curated text
    README.md                                  data card, with front matter (licence, language, size, configs)
    manifest.json                              every file with length and SHA-256; digests of what it was made of
    .progress/                                 while it is written: the plan, and the files that are whole

A file is written where none of its length is recorded under its key (format, part of text, part of the ledger). So an
export that was killed goes on, one that is repeated writes nothing, and both have the same bytes. `manifest.json` is
taken away first and written last. Only files that an export wrote are replaced or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import sum_stats
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.corpus.policy.rights import LICENCE, Rights
from plinth.errors import IntegrityError, SourceError
from plinth.provenance.ledger.ledger import ASSET as LEDGER
from plinth.provenance.text_export.formats import FORMATS
from plinth.provenance.text_export.manifest import CARD, DATA, VERSION, ExportFile, TextExport, begin, finish, record
from plinth.provenance.text_export.rows import rows, schema_of
from plinth.records import Frozen, Manifest, Part
from plinth.report.hub_card import CardFacts, hub_card
from plinth.storage.destination import WrittenFile, write_file
from plinth.storage.store import Store

#: The annotator's column that gives a document's language.
LANGUAGE = "language__label"


class ExportTask(Frozen):
    """The task of one worker: a file of text."""

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
    """Write the curated text of buckets below a folder or URI, but for documents whose licence does not allow that.

    Args:
        kind: one of `FORMATS`.
        name: of the corpus.
        card, page: the published data card, and its text.

    Raises:
        SourceError: the terms of a source forbid to pass its text on, or a bucket is of planted text.
        IntegrityError: ledger or card were made of other text, or text was curated without a licence gate.
        StorageError: the place cannot be written, or has files there that no export wrote.
    """
    require_corpus(buckets)
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
    readme = hub_card(facts, page).encode()
    files[CARD] = ExportFile(key="", **write_file(f"{to}/{CARD}", lambda out: out.write(readme)).model_dump())
    inputs = {one.asset: one.digest for one in (*made.values(), card)} | _judged_by(buckets, ledger)
    return finish(to, kind, files, inputs)


def require_corpus(buckets: Sequence[str]) -> None:
    """Refuse canaries: they measure a run, and are worth nothing once others train on them.

    Raises:
        SourceError: they are among the buckets.
    """
    if CANARIES in buckets:
        raise SourceError(
            f"{CANARIES} is no bucket of the corpus",
            found="texts that were generated and planted to measure memorisation",
            expected="buckets of the recipe",
            remedy="leave it out",
        )


def _require_terms(bucket: str, documents: Manifest) -> None:
    """Every source of a bucket may be passed on, or none of it is. A bucket of unknown sources is not, either."""
    sources: Sequence[Mapping[str, Any]] = documents.params.get("sources") or ({},)
    for source in sources:
        if source.get("terms", {}).get("redistribute") is not True:
            raise SourceError(
                f"bucket {bucket} may not be passed on",
                found=f"terms.redistribute of {source.get('domain')}, {source.get('snapshot')}: not true",
                expected="terms.redistribute: true for every source of the bucket",
                remedy="name the buckets that may be exported, or give this source a bucket of its own",
            )


def _require_same(bucket: str, curated: Manifest, ledger: Manifest, card: Manifest) -> None:
    """Ledger and card speak of this text."""
    verdicts = f"{bucket}/verdicts"
    pairs = ((ledger, verdicts, curated.inputs[verdicts]), (card, f"{bucket}/curated", curated.digest))
    for one, key, expected in pairs:
        if one.inputs.get(key) != expected:
            raise IntegrityError(
                f"{one.asset} speaks of other text than {bucket}/curated",
                found=f"{key} {str(one.inputs.get(key))[:16]}",
                expected=f"{key} {expected[:16]}",
                remedy=f"plinth run --select {one.asset}",
            )


def _judged_by(buckets: Sequence[str], ledger: Manifest) -> dict[str, str]:
    """Digests of all that scored and judged these buckets; of what was trained on them none, which changes no row."""
    others = {key.partition("/")[0] for key in ledger.inputs if key.endswith("/documents")} - set(buckets)
    others |= {CANARIES}
    of_a_run = (key for key in ledger.inputs if key == "mixture" or key.endswith("/shards"))
    left_out = {*of_a_run, *(key for key in ledger.inputs if key.partition("/")[0] in others)}
    return {key: digest for key, digest in ledger.inputs.items() if key not in left_out}


def _tasks(bucket: str, curated: Manifest, ledger: Manifest, kind: str, to: str) -> Iterator[ExportTask]:
    """A file for each part that has training text."""
    rights = _redistribution(curated)
    rows_of = {part.name.removeprefix(f"{bucket}/"): part for part in ledger.named(f"{bucket}/part-")}
    parts = [part for part in curated.named("part-") if part.rows]
    for number, part in enumerate(parts):
        name = f"{DATA}{bucket}/train-{number:05d}-of-{len(parts):05d}.{kind}"
        row = rows_of[part.name]
        key = fingerprint.digest([VERSION, kind, part.blob.sha256, row.blob.sha256, rights])
        yield ExportTask(name=name, uri=f"{to}/{name}", key=key, format=kind, curated=part, ledger=row, rights=rights)


def _redistribution(curated: Manifest) -> Rights:
    """The licence gate of the recipe for text that is passed on (`corpus.licences_by_use`)."""
    if "licences" not in curated.params:
        raise IntegrityError(
            f"{curated.asset} does not say which licences were permitted",
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
    """Write one file of text, and count it."""
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

    length = pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
    return {
        "documents": batch.num_rows,
        "text_bytes": length,
        "licences": by_value("licence"),
        "languages": by_value(LANGUAGE),
    }
