"""Asset `BUCKET/sampled` of a bucket of rewritten documents: one text per document of another bucket, made by a model.

    kept documents of the bucket, with the policy's edits ─► answers ─► JSON lines, one part per part of documents

A rewritten document has the address and the license of its source, and the source's id and digest in `extra`. Rules
about addresses, licenses and ids therefore apply to both: the license gate, takedowns, and `made_from_training`, which
keeps a document out of training if its source is not trained on. Near copies of the source are rejects.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, add_stats, manifest, renamed, run_items
from plinth.corpus.curate import apply_edits
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.exclusions import overlap
from plinth.corpus.llm import answers
from plinth.corpus.llm.parameters import Endpoint, RewriteParams
from plinth.corpus.protected.contamination import REASON as CUT
from plinth.corpus.sidecars import slots
from plinth.corpus.sources.files import STAGE
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, iter_aligned, read_table, write_batches, write_table
from plinth.storage.store import Store
from plinth_text.arrays import U64, Bools

VERSION = "1"
#: Separates the address of the source from the name of the rewritten bucket.
MARK = "#rewrite-"
#: Field of a document's `extra` that lists its sources.
SOURCES = "derived_from"
NEAR_COPY = "near_copy"
#: Shingles of the comparison with the source; those of near deduplication, over whole texts.
SHINGLES = MinHash(max_characters=None)
BATCH_ROWS = 1024


@dataclass(frozen=True)
class _Edited:
    documents: Part
    policy: Part
    share: float
    seed: int


@dataclass(frozen=True)
class _Rule:
    bucket: str
    origin: str
    model: str
    max_overlap: float


@dataclass(frozen=True)
class _Made:
    rule: _Rule
    documents: Part
    answers: Part


def run(
    ctx: Context,
    bucket: str,
    origin: str,
    params: RewriteParams,
    endpoint: Endpoint,
    documents: Manifest,
    policy: Manifest,
    prompt: Manifest,
) -> Manifest:
    """Rewrite a sample of the documents that the policy of their bucket keeps.

    Args:
        bucket, origin: names of the rewritten bucket, and of the bucket whose documents are read.
        documents, policy: manifests of `origin`.

    Returns:
        Manifest of `part-*.jsonl`. Statistics: `documents`, `text_bytes`, and those of the answers: `questions`,
        `answers`, `rejects` (reason -> documents, with `near_copy`), `input_tokens`, `output_tokens`.

    Raises:
        BudgetError, EndpointError, RejectRateError: the model did not answer all questions.
        SourceError: the prompt is not usable.
    """
    asset = f"{bucket}/{STAGE}"
    kept = _kept(ctx, asset, origin, params, documents, policy)
    limit = params.max_reject_rate
    found = answers.run(ctx, f"{asset}/answers", params, endpoint, kept, prompt, max_reject_rate=limit)
    own = _Rule(bucket, origin, params.reported, params.max_overlap)
    step = Step(name=STAGE, version=VERSION, params=asdict(own), libraries=fingerprint.UNICODE)
    items = [
        Item((part.blob.sha256, answer.blob.sha256), _Made(own, part, answer), part.rows)
        for part, answer in zip(kept.named("part-"), found.named("part-"), strict=True)
    ]
    parts = [made[0] for made in run_items(ctx, step, _write, items, label=asset, unit="documents")]
    stats = {"documents": 0, "text_bytes": 0, **add_stats(parts)}
    rejects = Counter(found.stats["rejects"]) + Counter(stats.pop("rejects", {}))
    asked = {name: found.stats[name] for name in ("questions", "answers", "input_tokens", "output_tokens")}
    inputs: dict[str, Manifest | str] = {one.asset: one for one in (documents, policy, prompt, found)}
    stats |= asked | {"rejects": dict(sorted(rejects.items()))}
    return manifest(asset, step, inputs, renamed(parts, "part"), stats)


def _kept(
    ctx: Context, asset: str, origin: str, params: RewriteParams, documents: Manifest, policy: Manifest
) -> Manifest:
    """Return a sample of the documents that a policy keeps, with its edits applied: personal data does not reach an
    endpoint."""
    own = {"share": params.sample, "seed": params.seed}
    step = Step(name="rewrite/kept", version=VERSION, params=own, libraries=fingerprint.UNICODE)
    items = [
        Item((slot.documents.blob.sha256, slot.sides["policy"].blob.sha256),
             _Edited(slot.documents, slot.sides["policy"], params.sample, params.seed), slot.documents.rows)
        for slot in slots({origin: documents}, policy={origin: policy})
    ]  # fmt: skip
    made = run_items(ctx, step, _edit, items, label=f"{asset} kept", unit="documents")
    whole = manifest(f"{asset}/kept", step, {documents.asset: documents, policy.asset: policy},
                     renamed((parts[0] for parts in made), "part"))  # fmt: skip
    ctx.refs.save(whole)
    return whole


def _edit(store: Store, task: _Edited) -> tuple[Part, ...]:
    def batches() -> Iterator[pa.RecordBatch]:
        sources = (task.documents, DOCUMENT_SCHEMA.names), (task.policy, ["keep", "edits"])
        for rows, judged in iter_aligned(store, *sources):
            keep = pc.and_(judged.column("keep"), answers.sampled(rows.column("text"), task.share, task.seed))
            rows, edits = rows.filter(keep), judged.column("edits").filter(keep).to_pylist()
            texts = [apply_edits(text, some or ()) for text, some in
                     zip(rows.column("text").to_pylist(), edits, strict=True)]  # fmt: skip
            at = DOCUMENT_SCHEMA.get_field_index("text")
            yield rows.set_column(at, DOCUMENT_SCHEMA.field(at), pa.array(texts, DOCUMENT_SCHEMA.field(at).type))

    return (write_batches(store, "part.parquet", DOCUMENT_SCHEMA, batches()),)


def _write(store: Store, task: _Made) -> tuple[Part, ...]:
    lines, stats = list[bytes](), Counter[str](documents=0, text_bytes=0)
    rejects = Counter[str]()
    columns = ("id", "text", "uri", "licence", "captured_at")
    for batch, found in iter_aligned(store, (task.documents, columns), (task.answers, ["answer"]), rows=BATCH_ROWS):
        answered = pc.is_valid(found.column("answer"))
        rows, texts = batch.filter(answered), found.column("answer").filter(answered)
        near = near_copies(rows.column("text"), texts, task.rule.max_overlap)
        rejects[NEAR_COPY] += int(near.sum())
        for row, text, copy in zip(rows.to_pylist(), texts.to_pylist(), near.tolist(), strict=True):
            if not copy:
                lines.append(_line(task.rule, row, text))
                stats.update(documents=1, text_bytes=len(text.encode()))
    blob = store.put_bytes(b"".join(lines))
    return (Part(name="part.jsonl", blob=blob, rows=len(lines), stats=stats | {"rejects": dict(+rejects)}),)


def _line(rule: _Rule, row: Mapping[str, Any], text: str) -> bytes:
    digest = hashlib.sha256(row["text"].encode()).hexdigest()
    record = {
        "text": text,
        "uri": f"{row['uri']}{MARK}{rule.bucket}",
        "licence": row["licence"],
        "captured_at": row["captured_at"].isoformat() if row["captured_at"] else None,
        "model": rule.model,
        SOURCES: [{"bucket": rule.origin, "id": row["id"].hex(), "sha256": digest}],
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def near_copies(sources: pa.Array, texts: pa.Array, most: float) -> Bools:
    """Return a mask of the texts that share more than `most` of the smaller text's shingles with their source, or whose
    words are those of the source."""
    from plinth.corpus.dedup.near import linking
    from plinth_text.unicode import digests

    if not len(texts):
        return np.zeros(0, np.bool_)
    pairs = zip(linking.sets(sources, SHINGLES), linking.sets(texts, SHINGLES), strict=True)
    alike = np.array([overlap(one, other) > most for one, other in pairs], np.bool_)
    same = pc.equal(digests(sources).cast(pa.binary()), digests(texts).cast(pa.binary()))
    return np.asarray(alike | same.to_numpy(zero_copy_only=False))


# Verdicts of rewritten documents: only what is derived from trained documents is trained on.
#
# The ids of all trained documents of the origin are one sorted list of 64-bit prefixes: eight bytes per document.

_IDS = pa.schema([pa.field("id", pa.uint64(), nullable=False)])


def trained(ctx: Context, verdicts: Manifest) -> Part:
    """Return the sorted id prefixes of the documents that a bucket's verdicts train on, without those from which a
    benchmark's text was cut: a model may have put that text into other words."""
    step = Step(name="rewrite/trained", version="2")
    parts = verdicts.named("part-")
    items = [Item((part.blob.sha256,), part, part.rows) for part in parts]
    made = [one[0] for one in run_items(ctx, step, _trained, items, label=f"{verdicts.asset} trained")]
    union = Step(name="rewrite/union", version=VERSION)
    item = Item(tuple(part.blob.sha256 for part in made), tuple(made), 1)
    return run_items(ctx, union, _union, [item], label=f"{verdicts.asset} trained")[0][0]


def made_from_training(extra: pa.Array, listed: U64) -> pa.Array:
    """Return a mask of the documents with sources, provided that all sources are in a sorted list (`trained`).

    Args:
        extra: metadata of the documents, as JSON.
    """
    derived_from = [[one["id"] for one in json.loads(text).get(SOURCES) or ()] for text in extra.to_pylist()]
    every = [bytes.fromhex(one)[:8] for own in derived_from for one in own]
    wanted = np.frombuffer(b"".join(every), "<u8").astype(np.uint64)
    at = np.minimum(np.searchsorted(listed, wanted), max(0, listed.size - 1))
    there = listed[at] == wanted if listed.size else np.zeros(wanted.size, np.bool_)
    ends = np.cumsum([0, *map(len, derived_from)])
    return pa.array(
        [bool(own) and bool(there[a:b].all()) for own, a, b in zip(derived_from, ends, ends[1:], strict=False)]
    )


def read_trained(store: Store, part: Part) -> U64:
    """Read the list that `trained` wrote."""
    return np.asarray(read_table(store, part).column("id").to_numpy(), np.uint64)


def _trained(store: Store, part: Part) -> tuple[Part, ...]:
    some = list[Any]()
    for (batch,) in iter_aligned(store, (part, ["id", "decision", "edits"])):
        edits = batch.column("edits")
        cut = pc.equal(pc.struct_field(edits.flatten(), "reason"), CUT)
        clean = ~np.isin(np.arange(batch.num_rows), pc.list_parent_indices(edits).filter(cut).to_numpy())
        ids = batch.column("id").filter(pc.and_(pc.equal(batch.column("decision"), "train"), pa.array(clean)))
        some.append(np.frombuffer(b"".join(ids.to_pylist()), "<u8")[::2])
    return (_prefixes(store, some),)


def _union(store: Store, parts: Sequence[Part]) -> tuple[Part, ...]:
    return (_prefixes(store, (read_trained(store, part) for part in parts)),)


def _prefixes(store: Store, some: Iterable[Any]) -> Part:
    found = np.sort(np.concatenate([np.empty(0, np.uint64), *some]).astype(np.uint64))
    return write_table(store, "trained.parquet", pa.table([pa.array(found)], schema=_IDS))
