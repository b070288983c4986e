"""Curated text: the documents that verdicts keep, with their edits applied; and counts of this text for a release.

Offsets of edits are Unicode code points of the original text; spans are half open, sorted and disjoint. Edits that
violate these rules make the stage fail, because a guessed cut would corrupt text without notice. The stage also fails
if a verdict keeps a document whose license or terms forbid its use, because no later stage checks this before training.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, add_stats, manifest, renamed, run_items
from plinth.corpus.policy.compiled_policy import TEXTS, Rights
from plinth.corpus.sidecars import Slot, slots
from plinth.errors import StageError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, iter_aligned, iter_batches, read_table, write_batches
from plinth.storage.store import Store
from plinth_text.unicode import utf8

VERSION = "3"
SCHEMA = DOCUMENT_SCHEMA


@dataclass(frozen=True)
class _Task:
    slot: Slot
    rights: Rights


def run(ctx: Context, bucket_name: str, documents: Manifest, verdicts: Manifest, rights: Rights) -> Manifest:
    """Write the training text of one bucket, and its held-out documents.

    Args:
        documents, verdicts: manifests of this bucket.
        rights: licenses and uses that the recipe permits. The terms of sources are read from the documents' manifest.

    Returns:
        Manifest of `part-*` (training) and `heldout-*` (evaluation), one of each per part of documents, with
        `DOCUMENT_SCHEMA`. Statistics: `documents`, `text_bytes`, `heldout_documents`, `heldout_bytes`,
        `edits`, `edited_documents`, `edited_away_bytes` (bytes removed by edits minus bytes inserted); `edit_counts`
        and `edit_bytes`: number of edits and net bytes removed, by reason.

    Raises:
        IntegrityError: the verdicts do not belong to the documents.
        StageError: edits of a document overlap, are out of order or exceed its text; or a verdict keeps a document
            whose license or terms forbid its use.
    """
    rights = rights.within(documents)
    places = slots({bucket_name: documents}, verdicts={bucket_name: verdicts})
    step = Step(name="curate", version=VERSION, params=rights.model_dump(mode="json"))
    items = [
        Item((slot.documents.blob.sha256, slot.sides["verdicts"].blob.sha256), _Task(slot, rights), slot.documents.rows)
        for slot in places
    ]
    asset = f"{bucket_name}/curated"
    made = run_items(ctx, step, _curate, items, label=asset)
    parts = [*renamed((kept for kept, _ in made), "part"), *renamed((held for _, held in made), "heldout")]
    inputs = {f"{bucket_name}/documents": documents, f"{bucket_name}/verdicts": verdicts}
    return manifest(asset, step, inputs, parts, add_stats(parts))


def apply_edits(text: str, edits: Sequence[Mapping[str, Any]]) -> str:
    """Return the text with each edited span replaced.

    Args:
        edits: spans `start_cp`, `end_cp` (code points, half open) and their `replacement`, sorted and disjoint.

    Raises:
        ValueError: the edits are unsorted, overlap, or reach outside the text.
    """
    pieces, at = [], 0
    for edit in edits:
        start, end = edit["start_cp"], edit["end_cp"]
        if not at <= start <= end <= len(text):
            raise ValueError(
                f"the edit [{start}, {end}) does not lie between code point {at} and the end of the text "
                f"({len(text)} code points)"
            )
        pieces += [text[at:start], edit["replacement"]]
        at = end
    return "".join([*pieces, text[at:]])


def _curate(store: Store, task: _Task) -> tuple[Part, ...]:
    slot = task.slot
    held = list[pa.RecordBatch]()
    names = ("documents", "text_bytes", "edits", "edited_documents", "edited_away_bytes")
    stats: dict[str, Any] = {**dict.fromkeys(names, 0), "edit_counts": {}, "edit_bytes": {}}

    def batches() -> Iterator[pa.RecordBatch]:
        sources = ((slot.documents, DOCUMENT_SCHEMA.names), (slot.sides["verdicts"], ["decision", "edits"]))
        for documents, verdicts in iter_aligned(store, *sources):
            decision = verdicts.column("decision")
            kept = pc.not_equal(decision, "drop")
            allowed = documents.filter(kept)
            _require_rights(allowed, task.rights)
            edited = _edited(allowed, verdicts.column("edits").filter(kept), stats)
            training = pc.equal(decision.filter(kept), "train")
            held.append(edited.filter(pc.invert(training)))
            trained = edited.filter(training)
            stats["documents"] += trained.num_rows
            stats["text_bytes"] += _text_bytes(trained)
            yield trained

    part = write_batches(store, slot.documents.name, DOCUMENT_SCHEMA, batches())
    heldout = write_batches(store, slot.documents.name.replace("part-", "heldout-", 1), DOCUMENT_SCHEMA, held)
    counted = {"heldout_documents": heldout.rows, "heldout_bytes": sum(_text_bytes(batch) for batch in held)}
    return part.model_copy(update={"stats": stats}), heldout.model_copy(update={"stats": counted})


def _require_rights(documents: pa.RecordBatch, rights: Rights) -> None:
    """Raise StageError if a verdict keeps a document whose license or terms forbid its use."""
    columns = {name: documents.column(name.removeprefix("documents.")) for name in rights.columns}
    for reason, stopped in rights.stops(columns).items():
        for row in np.flatnonzero(stopped)[:1].tolist():
            document = documents.slice(row, 1).to_pylist()[0]
            raise StageError(
                f"document {document['id'].hex()} is kept although the license gate forbids it",
                found=f"{reason}: {document['uri']} under {document['licence']}",
                expected=f"a verdict that drops it: {TEXTS[reason]}",
                remedy="recompute the verdicts: `plinth run --select '*/policy'`; if the error persists, the verdicts "
                "were not written by this pipeline",
            )


def _edited(documents: pa.RecordBatch, edits: pa.Array, stats: dict[str, Any]) -> pa.RecordBatch:
    counts = pc.fill_null(pc.list_value_length(edits), 0).to_numpy(zero_copy_only=False)
    rows = pa.array(np.flatnonzero(counts))
    if len(rows) == 0:
        return documents.select(DOCUMENT_SCHEMA.names).cast(DOCUMENT_SCHEMA)
    texts = documents.column("text")
    columns = (texts, edits, documents.column("id"))
    changed = []
    for text, spans, identity in zip(*(column.take(rows).to_pylist() for column in columns), strict=True):
        changed.append(_apply(text, spans, identity))
        _count(text, spans, stats)
    mask = pa.array(counts > 0)
    fresh = pc.replace_with_mask(texts, mask, pa.array(changed, pa.large_string()))
    stats["edits"] += int(counts.sum())
    stats["edited_documents"] += len(rows)
    stats["edited_away_bytes"] += _text_bytes(documents) - int(np.diff(utf8(fresh)[1]).sum())
    arrays = [fresh if name == "text" else documents.column(name) for name in DOCUMENT_SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=DOCUMENT_SCHEMA)


def _count(text: str, edits: Sequence[Mapping[str, Any]], stats: dict[str, Any]) -> None:
    for edit in edits:
        removed = len(text[edit["start_cp"] : edit["end_cp"]].encode()) - len(edit["replacement"].encode())
        for name, more in (("edit_counts", 1), ("edit_bytes", removed)):
            stats[name][edit["reason"]] = stats[name].get(edit["reason"], 0) + more


def _apply(text: str, edits: Sequence[Mapping[str, Any]], identity: bytes) -> str:
    try:
        return apply_edits(text, edits)
    except ValueError as error:
        raise StageError(
            f"the edits of document {identity.hex()} cannot be applied",
            found=error,
            expected="sorted, disjoint spans inside the text",
            remedy="fix the annotator that wrote these spans, and raise its version",
        ) from error


def _text_bytes(batch: pa.RecordBatch) -> int:
    return int(np.diff(utf8(batch.column("text"))[1]).sum())


# Claims about training text. They are counted from the text's own sidecars, not from the statistics of the stages,
# because the gates of a release read these numbers.

#: Uses that the owner of a source permits or forbids: `plinth.corpus.sources.parameters.Terms`.
USES = ("train", "redistribute", "commercial")


def licences(store: Store, curated: Mapping[str, Manifest]) -> dict[str, int]:
    """Count the training documents by license, over all buckets."""
    counts: Counter[str] = Counter()
    for texts in curated.values():
        for part in texts.named("part-"):
            for batch in iter_batches(store, part, ["licence"]):
                for row in pc.value_counts(batch.column("licence")).to_pylist():
                    counts[row["values"]] += row["counts"]
    return dict(sorted(counts.items()))


def terms(
    store: Store, documents: Mapping[str, Manifest], curated: Mapping[str, Manifest]
) -> dict[str, dict[str, int | bool]]:
    """Return the declared terms of every source and the number of its training documents, by domain and snapshot.

    If two sources have the same domain and snapshot, their documents cannot be distinguished, so the stricter terms
    apply to both.

    Args:
        documents, curated: manifests by bucket. The terms are those that applied when the documents were read.
    """
    found: dict[str, dict[str, int | bool]] = {}
    for bucket, texts in sorted(curated.items()):
        declared = documents[bucket].params.get("sources", ())
        for source in declared:
            name, granted = f"{source.get('domain')} {source.get('snapshot')}", source.get("terms", {})
            row = found.setdefault(name, {"documents": 0, **dict.fromkeys(USES, True)})
            row |= {use: row[use] is True and granted.get(use) is True for use in USES}
        for name, count in _by_source(store, texts).items():
            # undeclared terms permit no use
            row = found.setdefault(name, {"documents": 0, **dict.fromkeys(USES, False)})
            row["documents"] += count
    return dict(sorted(found.items()))


def _by_source(store: Store, curated: Manifest) -> Counter[str]:
    """Return the number of training documents by domain and snapshot."""
    counts: Counter[str] = Counter()
    for part in curated.named("part-"):
        for batch in iter_batches(store, part, ["snapshot", "extra"]):
            rows = zip(batch.column("snapshot").to_pylist(), batch.column("extra").to_pylist(), strict=True)
            counts.update(f"{json.loads(extra).get('domain')} {snapshot}" for snapshot, extra in rows)
    return counts


def contaminated(store: Store, verdicts: Mapping[str, Manifest], contamination: Manifest) -> int:
    """Return the number of training documents whose overlap with the held-out set exceeds the limit. The number is
    above 0 only if a stage ignored a decision to drop a document.

    Raises:
        ValueError: verdicts and contamination do not have the same parts.
    """
    total = 0
    for bucket, verdict in sorted(verdicts.items()):
        flagged = contamination.named(f"{bucket}/part-")
        for decided, marked in zip(verdict.named("part-"), flagged, strict=True):
            decision = read_table(store, decided, ["decision"]).column("decision")
            mark = read_table(store, marked, ["contaminated"]).column("contaminated")
            both = pc.and_(pc.equal(decision, "train"), pc.fill_null(mark, False))
            total += pc.sum(both).as_py() or 0
    return total
