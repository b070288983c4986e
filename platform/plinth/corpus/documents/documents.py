"""Stage that reads sources and writes documents. The stage extracts and normalizes text, gives each document an id, and
checks the counts. Every record that fails becomes a counted reject.

    groups of files -> records -> main content -> normal form -> exclusions -> `part-*` and `rejects-*`

Each group of files is one cached item, so a new file re-runs only its group. A document's id is the first 16 bytes of
SHA-256 over bucket, uri and text. Filters do not belong here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context, Item, add_stats, manifest, renamed, run_items
from plinth.corpus import illegal_gate
from plinth.corpus import illegal_gate as illegal
from plinth.corpus.documents.normalize import RejectSpill, document_batches, normalize
from plinth.corpus.documents.removal import drop, drop_repeats
from plinth.corpus.exclusions import Exclusion
from plinth.corpus.extract.extractor import FALLBACK_PAGES, PAGES, UNSURE_PAGES, Extractor, extracted
from plinth.corpus.extract.worker import LIBRARIES
from plinth.corpus.sources.fields import NO_FIELD
from plinth.corpus.sources.inventory import Group, Inventory, groups, not_read
from plinth.corpus.sources.parameters import Bucket, Documents, Source
from plinth.corpus.sources.record import (
    EXCLUSIONS,
    SEEN_BEFORE,
    TAKEDOWN,
    RawRecord,
    Reject,
    account,
    damage,
    identity,
    read,
    refuse,
)
from plinth.errors import RejectRateError, SourceError, StageError
from plinth.records import Blob, Frozen, Manifest, Part, Step
from plinth.storage.files import SourceFile
from plinth.storage.parts import DOCUMENT_SCHEMA, REJECT_SCHEMA, iter_batches, write_batches
from plinth.storage.store import Store

VERSION = "13"
#: Built-in kinds whose text comes from an extractor, within its limits.
EXTRACTED = ("warc", "html", "pdf", "latex")
#: Number of file groups to sample first. Buckets with more than twice as many are probed, so a broken source fails
#: early.
PROBE_GROUPS = 32


class FileGroupTask(Frozen):
    """Task of one worker: a group of files of one source."""

    bucket: str
    source: Source
    group: Group
    params: Documents
    gate: illegal.IllegalGate | None = None
    model: Blob | None = None
    reader: str = ""
    libraries: Mapping[str, str] = {}


def run(
    ctx: Context,
    name: str,
    bucket: Bucket,
    params: Documents,
    inventory: Inventory,
    gate: illegal.IllegalGate | None = None,
    read: Mapping[str, Manifest] | None = None,
    exclusions: Sequence[Exclusion] = (),
    model: Blob | None = None,
) -> Manifest:
    """Write the documents of a bucket, and the rejects of its sources.

    Args:
        gate: illegal-content gate (`corpus.illegal`); its matches become rejects and `quarantine-*`
            (`illegal_gate.SCHEMA`).
        read: manifests of the gate's lists and of generated texts, by key.
        model: model of the engine `blocks`, if it is not the default model.
        exclusions: the exclusion list. Entries that remove documents are an input of the manifest (`takedown`), and its
            statistics `takedown` count the documents per entry. Other entries do not change the manifest.

    Raises:
        SourceError: a file cannot be read, or the bucket has no documents.
        IntegrityError: a file changed since the inventory.
        StageError: the counts in `account` show that files or records were lost.
        RejectRateError: the reject rate is above `params.max_reject_rate`, or above twice that rate in the sample.
    """
    label = f"{name}/documents"
    rules = {"bucket": name, "normalisation": params.normalisation}
    step = Step(name="documents", version=VERSION, params=fingerprint_ready(rules))
    items = items_of(name, bucket, params, inventory, gate, model)
    if len(items) > 2 * PROBE_GROUPS:
        sample = items[:: len(items) // PROBE_GROUPS]
        probed = run_items(ctx, step, make_part, sample, label=f"{label} (sample)", unit="files")
        require_whole(ctx.store, label, params, probed, tolerance=2.0)
    made = run_items(ctx, step, make_part, items, label=label, unit="files")
    require_whole(ctx.store, label, params, made)
    dropped = drop(ctx, label, drop_repeats(ctx, name, [one[:2] for one in made]), exclusions)
    pairs = dropped.pairs
    reported = [one[2] for one in made if one[2:]]
    reports = renamed((part for part in reported if part.rows), illegal_gate.STEM)
    parts = renamed((part for part, _ in pairs if part.rows), "part")
    rejects = renamed((part for _, part in pairs if part.rows), "rejects")
    listed = {(item.task.group.source, file.name) for item in items for file, _ in item.task.group.files}
    stats = counted([*(part for pair in pairs for part in pair), *reported], len(listed))
    stats.pop("taken", None)
    stats |= {TAKEDOWN: dropped.taken} if dropped.taken else {}
    require_documents(label, stats)
    account(inventory.found, not_read(bucket, inventory), stats).require_balance(label)
    whole = Step(
        name="documents",
        version=VERSION,
        params=fingerprint_ready(
            {**rules, "sources": [_facts(source, params, model) for source in bucket.sources]}
            | ({"illegal": gate.identity} if gate else {})
        ),
    )
    inputs: dict[str, Manifest | str] = {f"{name}/sources": inventory.digest, **(read or {})}
    inputs |= {TAKEDOWN: dropped.digest} if dropped.digest else {}
    return manifest(label, whole, inputs, [*parts, *rejects, *reports], stats)


def items_of(
    name: str,
    bucket: Bucket,
    params: Documents,
    inventory: Inventory,
    gate: illegal.IllegalGate | None,
    model: Blob | None = None,
) -> list[Item]:
    """Return one item per group of files. The key of an item covers only what affects its source; other changes to the
    recipe do not re-run the item."""
    items = []
    for group in groups(bucket, inventory, params.part_bytes):
        source = bucket.sources[group.source]
        facts = fingerprint.digest(_facts(source, params, model))
        files = [fingerprint.digest([file.key, file.sha256, file.before, licence]) for file, licence in group.files]
        task = FileGroupTask(
            bucket=name,
            source=source,
            group=group,
            params=params,
            gate=gate,
            model=model,
            reader=identity(source.kind),
            libraries=_libraries(source, params),
        )
        stops = () if gate is None else (gate.identity,)
        items.append(Item(inputs=(facts, *files, *stops), task=task, rows=len(group.files)))
    return items


def make_part(store: Store, work: FileGroupTask) -> tuple[Part, ...]:
    """Write the documents of one group of files, its rejects, and its reports if there is a gate. The task keeps one
    batch of pages and one row group in memory."""
    _require_reader(work)
    fingerprint.require_libraries(f"{work.bucket}/documents", work.libraries)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        model = store.open_path(work.model) if work.model else None
        extractor = stack.enter_context(Extractor(work.params.extraction, model))
        spill, reports = stack.enter_context(RejectSpill(store)), None
        if work.gate is not None:
            reports = stack.enter_context(illegal_gate.Reports(store, work.bucket, work.gate.params.keep_uri))
        texts = normalised(extracted(records(store, work, counts), extractor, counts), work)
        rows = _divert(_identified(illegal.passing(work.gate, store, texts), work, counts), spill, reports)
        part = write_batches(store, "part.parquet", DOCUMENT_SCHEMA, document_batches(rows, counts))
        rejects = write_batches(store, "rejects.parquet", REJECT_SCHEMA, spill.batches(), stats=spill.stats())
        reported = () if reports is None else (reports.finish(),)
    return part.model_copy(update={"stats": dict(counts)}), rejects, *reported


def document_id(bucket: str, uri: str, text: bytes) -> bytes:
    """Return the 16-byte id of a document: a hash of its bucket, its uri and its text in UTF-8."""
    return hashlib.sha256(b"\0".join((bucket.encode(), uri.encode(), text))).digest()[:16]


def libraries(bucket: Bucket, params: Documents) -> dict[str, str]:
    """Return the installed versions of the libraries that parse and repair the records of a bucket."""
    return {name: found for source in bucket.sources for name, found in _libraries(source, params).items()}


def fingerprint_ready(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as plain JSON values, as stored in manifests."""
    plain: dict[str, Any] = json.loads(fingerprint.canonical(value))
    return plain


def _facts(source: Source, params: Documents, model: Blob | None) -> dict[str, Any]:
    """Return all parameters and properties of a source that affect its documents, except its location."""
    facts: dict[str, Any] = source.model_dump(mode="json", exclude={"path"})
    facts["max_bytes"] = params.extraction.max_bytes
    reader = identity(source.kind)
    if reader:
        facts["reader"] = reader
    if reader or source.kind in EXTRACTED:
        facts["extraction"] = params.extraction.model_dump(mode="json")
        facts |= {"extraction_model": model.sha256} if model else {}
    facts["libraries"] = _libraries(source, params)
    return facts


def _libraries(source: Source, params: Documents) -> dict[str, str]:
    """Return the installed versions of the libraries that parse and repair the records of a source."""
    names = {"unicode"}
    if params.normalisation.repair_mojibake:
        names.add("ftfy")
    if source.kind == "warc":
        names.add("FastWARC")
    names |= {"pdf": {"pypdfium2"}, "latex": {"pylatexenc", "Resiliparse"}}.get(source.kind, set())
    if source.kind in ("warc", "html") or identity(source.kind):  # a reader of another package may yield pages
        names |= {"Resiliparse", *LIBRARIES[params.extraction.engine]}
    return fingerprint.libraries(*sorted(names))


def _require_reader(work: FileGroupTask) -> None:
    """Check that this worker, possibly on another machine, has the version of the source reader that is part of the
    step's identity."""
    found = identity(work.source.kind)
    if found != work.reader:
        raise StageError(
            f"the reader {work.source.kind} of this worker differs from the reader in the step's identity",
            found=found or "built in",
            expected=work.reader or "built in",
            remedy="install the same package on every machine, then run the command again",
        )


def records(store: Store, work: FileGroupTask, counts: Counter[str]) -> Iterator[RawRecord | Reject]:
    """Yield the records and rejects of all files in a group. A link becomes a reject. `counts` receives the number of
    files opened and of records read."""

    def read_and_counted(file: SourceFile, licence: str) -> Iterator[RawRecord | Reject]:
        for item in read(file, work.source, licence, work.params.extraction.max_bytes):
            counts["records"] += 1
            yield item

    counts.update(files_read=0, records=0)
    for file, licence in work.group.files:
        if file.refused:
            counts["records"] += 1
            yield Reject(file.name, "file", file.refused, "not followed, and not read")
            continue
        counts["files_read"] += not file.start  # a file in pieces is one
        yield from illegal.arriving(work.gate, store, file.name, read_and_counted(file, licence))


def normalised(items: Iterable[RawRecord | Reject], work: FileGroupTask) -> Iterator[RawRecord | Reject]:
    """Normalize the text of each record. A record that is empty or cannot be encoded becomes a reject."""
    for item in items:
        if isinstance(item, Reject):
            yield item
            continue
        text = str(item.content)
        if "\0" in text:
            yield refuse(item, "nul_bytes", f"NUL at character {text.index(chr(0))}")
            continue
        text = normalize(text, work.params.normalisation, work.source.repair_boundaries or work.source.kind == "pdf")
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            yield refuse(item, "invalid_utf8", f"character {error.start}: {error.reason}")
            continue
        if not encoded.strip():
            yield refuse(item, "empty", f"nothing is left of {item.source_bytes} bytes")
            continue
        yield replace(item, content=text)


def _identified(
    items: Iterable[RawRecord | Reject], work: FileGroupTask, counts: Counter[str]
) -> Iterator[tuple[Any, ...] | Reject]:
    """Yield rows of DOCUMENT_SCHEMA, each with the document's id. `counts` receives the bytes of repeated documents,
    and the numbers of repeated record ids and of unreadable dates."""
    seen: set[bytes] = set()
    for item in items:
        if isinstance(item, Reject):
            yield item
            continue
        text = str(item.content)
        uri = _clean(item.uri)
        encoded = text.encode()
        key = document_id(work.bucket, uri, encoded)
        if key in seen:
            counts["seen_before_bytes"] += len(encoded)
            yield refuse(item, SEEN_BEFORE, f"the same address and text as an earlier record: {key.hex()}")
            continue
        seen.add(key)
        if item.repeated_id:
            counts["repeated_ids"] += 1
        if item.unread_date:
            counts["unread_dates"] += 1
        extra = _metadata({**item.extra, "domain": work.source.domain})
        yield (
            key,
            text,
            uri,
            item.captured_at,
            work.source.snapshot,
            _clean(item.licence),
            _clean(item.mime),
            item.source_bytes,
            extra,
        )


def _divert(
    items: Iterable[tuple[Any, ...] | Reject], spill: RejectSpill, reports: illegal_gate.Reports | None
) -> Iterator[tuple[Any, ...]]:
    for item in items:
        if isinstance(item, Reject):
            spill.add(item)
            if reports is not None and isinstance(item, illegal.Quarantined):
                reports.add(item)
        else:
            yield item


def _metadata(extra: Mapping[str, Any]) -> str:
    """Return metadata as valid JSON. An unpaired surrogate, which may be left at the end of a truncated title, becomes
    `?`."""
    written = json.dumps(extra, sort_keys=True)
    if "\\ud" not in written:  # nor a whole pair
        return written
    whole = json.dumps(extra, ensure_ascii=False).encode("utf-8", "replace")
    return json.dumps(json.loads(whole), sort_keys=True)


def _clean(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def counted(parts: Iterable[Part], files: int) -> dict[str, Any]:
    """Return the counts over all parts. `reject_rate` is the number of damaged records divided by the number of
    all records without exclusions. If the extraction has a fallback, `unsure_rate` and `fallback_rate` are shares of
    the pages."""
    total = {"documents": 0, "text_bytes": 0, "source_bytes": 0, "rejects": {}, **add_stats(parts)}
    damaged = damage(total["rejects"])
    seen = damaged + total["rejects"].get(SEEN_BEFORE, 0) + total["documents"]
    if pages := total.get(PAGES):
        total["unsure_rate"] = round(total[UNSURE_PAGES] / pages, 6)
        total["fallback_rate"] = round(total[FALLBACK_PAGES] / pages, 6)
    return {**total, "files": files, "reject_rate": round(damaged / seen, 6) if seen else 0.0}


def require_whole(
    store: Store, label: str, params: Documents, made: Sequence[tuple[Part, ...]], tolerance: float = 1.0
) -> None:
    """Raise RejectRateError if the reject rate of the parts exceeds the limit times `tolerance`."""
    stats = counted((part for one in made for part in one[:2]), 0)
    if stats["reject_rate"] <= params.max_reject_rate * tolerance:
        return
    damaged = [pair for pair in stats["rejects"].items() if pair[0] not in EXCLUSIONS]
    reasons = sorted(damaged, key=lambda pair: (-pair[1], pair[0]))
    example = _example(store, (one[1] for one in made), reasons[0][0])
    elsewhere = "set the field of the text (`fields: {text: NAME}`), " if NO_FIELD in example else ""
    raise RejectRateError(
        f"{label}: {stats['reject_rate']:.1%} of the records are damaged"
        + (f" in a sample of {len(made)} parts" if tolerance > 1 else ""),
        found=", ".join(f"{reason} {count}" for reason, count in reasons[:5])
        + f"; for example {example}",
        expected=f"at most {params.max_reject_rate:.1%} (corpus.documents.max_reject_rate)",
        remedy=f"{elsewhere}repair or remove the source, or raise the limit if this damage is expected",
    )


def require_documents(label: str, stats: Mapping[str, Any]) -> None:
    """Raise SourceError if the bucket has no documents."""
    if not stats["documents"]:
        raise SourceError(
            f"{label}: no documents",
            found=f"{stats['files']} files, rejects {dict(stats['rejects'])}",
            expected="at least one document",
            remedy="fix the sources of the bucket, or remove it from the recipe",
        )


def _example(store: Store, rejects: Iterable[Part], reason: str) -> str:
    for part in rejects:
        for batch in iter_batches(store, part):
            for row in batch.to_pylist():
                if row["reason"] == reason:
                    return f"{row['uri']} ({row['where']}): {row['detail']}"
    return "none kept"
