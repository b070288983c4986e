"""Stage that computes one decision and one reason per document from the sidecars, without reading text.

Stages are evaluated in this order: policy, exact duplicates, near duplicates, semantic duplicates, repeated lines,
repeated passages, holdout, contamination and protected sets. Stages that the recipe disables are left out. The first
stage that removes a document from training gives the reason. Repeated lines and passages remove a document only if too
little text is left; otherwise their spans become edits, in addition to the policy's edits. Statistics count documents
and bytes by stage and reason, and for every policy rule the documents that it matches and that only it matches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, add_stats, manifest, renamed, run_items
from plinth.corpus.llm.rewriting import made_from_training, read_trained, trained
from plinth.corpus.policy.compiled_policy import GATE_REASONS
from plinth.corpus.policy.policy import merged
from plinth.corpus.protected.protected import REASONS as protected_reasons
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import EDIT_TYPE, iter_aligned, iter_batches, read_row, write_batches
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64

VERSION = "2"

#: `cluster` and `cluster_size` are those of look-alikes where there are any, else of near, else of exact duplicates.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("decision", pa.string(), nullable=False),  # train, heldout, drop
        pa.field("reason", pa.string()),  # null unless dropped
        pa.field("cluster", pa.binary(16)),  # null where the policy dropped it
        pa.field("cluster_size", pa.int32(), nullable=False),
        pa.field("edits", EDIT_TYPE),
    ]
)

#: Stages of every recipe, in order.
STAGES = ("policy", "exact", "near", "holdout", "contamination")
#: The same with optional stages.
CASCADE = (
    *("policy", "exact", "near", "semantic", "lines", "substring", "holdout", "contamination", "protected", "source"),
)
#: Stages with survivors in their sidecars.
DEDUP = ("exact", "near", "semantic", "lines", "substring")
DECISIONS = ("train", "heldout", "drop")
#: The reason that a stage gives; policies and protected sets give their own.
REASONS = {
    "exact": "exact_duplicate",
    "near": "near_duplicate",
    "semantic": "semantic_duplicate",
    "lines": "mostly_repeated_lines",
    "substring": "mostly_repeated",
    "contamination": "contaminated",
    "source": "source_not_trained",
}
#: The stage of rewritten documents whose source is dropped or held out, or lost a benchmark's text.
SOURCE = "source"
#: The stage of the reasons that protected sets give.
PROTECTED = "protected"
#: By reason, the stage that gives it; any other reason is a rule of a policy.
STAGE_OF = {reason: stage for stage, reason in REASONS.items()} | dict.fromkeys(protected_reasons, PROTECTED)
STAGE_OF |= dict.fromkeys(GATE_REASONS, "policy")
#: Stages whose sidecars have edits.
EDITING = ("policy", "lines", "substring", "contamination")
#: Assets of the sidecars that span all buckets.
ASSETS = {
    "exact": "dedup/exact",
    "near": "dedup/minhash",
    "semantic": "dedup/semantic",
    "lines": "dedup/lines",
    "substring": "dedup/substring",
    "holdout": "holdout",
    "contamination": "contamination",
    "protected": "protected",
}
_COUNTED = ("decision", "reason", "policy_reason", "stage", "fired", "only")
_COLUMNS = {
    "policy": ["keep", "reason", "fired", "edits"],
    "exact": ["cluster", "size", "survivor", "text_bytes"],
    "near": ["cluster", "size", "survivor"],
    "semantic": ["cluster", "size", "survivor"],
    "lines": ["survivor", "edits"],
    "substring": ["survivor", "edits"],
    "holdout": ["held_out"],
    "contamination": ["contaminated", "edits"],
    "protected": ["reason"],
}



def run(
    ctx: Context,
    bucket_name: str,
    documents: Manifest,
    policy: Manifest,
    exact: Manifest,
    near: Manifest,
    holdout: Manifest,
    contamination: Manifest,
    *,
    semantic: Manifest | None = None,
    lines: Manifest | None = None,
    substring: Manifest | None = None,
    protected: Manifest | None = None,
    origin: Manifest | None = None,
) -> Manifest:
    """Compute the decision for every document of a bucket.

    Args:
        documents, policy: manifests of this bucket.
        exact, near, holdout, contamination: manifests over all buckets.
        semantic, lines, substring, protected: manifests over all buckets, if these stages are enabled.
        origin: for rewritten documents, the verdicts on their sources. Documents with a source that is not trained on
            are dropped.

    Returns:
        Manifest of `part-*` with `SCHEMA`, aligned with the documents. Statistics: `documents`, `bytes`,
        `decisions`, `decision_bytes`, `reasons`, `reason_bytes`, `policy_reasons`, `policy_reason_bytes`,
        `stages`, `stage_bytes` (removed from training by each stage), and `rules` (by policy rule: `fired`, the number
        of documents that it matches; `only` and `only_bytes` of documents that no other rule matches).

    Raises:
        IntegrityError: a sidecar does not belong to the documents.
    """
    given = {"exact": exact, "near": near, "semantic": semantic, "lines": lines, "substring": substring}
    given |= {"holdout": holdout, "contamination": contamination, "protected": protected}
    sides = {name: one for name, one in given.items() if one is not None}
    places = slots({bucket_name: documents}, policy={bucket_name: policy}, **sides)
    step = Step(name="verdicts", version=VERSION)
    listed = None if origin is None else trained(ctx, origin)
    own = () if listed is None else (listed.blob.sha256,)
    items = [
        Item(
            (slot.documents.blob.sha256, *(one.blob.sha256 for one in slot.sides.values()), *own),
            (slot, listed),
            slot.documents.rows,
        )
        for slot in places
    ]
    asset = f"{bucket_name}/verdicts"
    parts = renamed((made for (made,) in run_items(ctx, step, _judge, items, label=asset, unit="documents")), "part")
    inputs = {f"{bucket_name}/documents": documents, f"{bucket_name}/policy": policy}
    inputs |= {ASSETS[name]: one for name, one in sides.items()}
    inputs |= {} if origin is None else {origin.asset: origin}
    return manifest(asset, step, inputs, parts, _Count().stats() | add_stats(parts))


def _judge(store: Store, task: tuple[Slot, Part | None]) -> tuple[Part, ...]:
    slot, listed = task
    count = _Count()
    made = None if listed is None else read_trained(store, listed)
    part = write_batches(store, slot.documents.name, SCHEMA, _batches(store, slot, count, made))
    return (part.model_copy(update={"stats": count.stats()}),)


def _batches(store: Store, slot: Slot, count: _Count, listed: U64 | None) -> Iterator[pa.RecordBatch]:
    stages = [name for name in CASCADE if name in slot.sides]
    columns = ["id"] if listed is None else ["id", "extra"]
    sources = [(slot.documents, columns), *((slot.sides[name], _COLUMNS[name]) for name in stages)]
    for ids, *read in iter_aligned(store, *sources):
        side = dict(zip(stages, read, strict=True))
        taken = _taken(side)
        policy = side["policy"]
        reason = by_policy = pc.if_else(taken["policy"], policy.column("reason"), pa.scalar(None, pa.string()))
        for name in stages:
            if name in REASONS:
                reason = pc.if_else(taken[name], REASONS[name], reason)
        if "protected" in side:
            reason = pc.coalesce(reason, side["protected"].column("reason"))
        if listed is not None:
            free = pc.and_not(pc.is_null(reason), taken["holdout"])
            taken[SOURCE] = pc.and_not(free, made_from_training(ids.column("extra"), listed))
            reason = pc.if_else(taken[SOURCE], REASONS[SOURCE], reason)
        decision = pc.if_else(taken["holdout"], "heldout", pc.if_else(pc.is_valid(reason), "drop", "train"))
        cluster, size = _cluster(side)
        edits = _edits([side[name].column("edits") for name in stages if name in EDITING])
        sizes = side["exact"].column("text_bytes").to_numpy()
        count.add(sizes, decision, reason, by_policy, taken, policy.column("fired"))
        yield pa.RecordBatch.from_arrays([ids.column("id"), decision, reason, cluster, size, edits], schema=SCHEMA)


def _taken(side: Mapping[str, pa.RecordBatch]) -> dict[str, pa.Array]:
    """Return for each stage a mask of the documents that the stage removes. At most one stage removes a document."""
    alive = side["policy"].column("keep")
    taken = {"policy": pc.invert(alive)}
    for name in DEDUP:
        if name in side:
            survivor = side[name].column("survivor")
            taken[name] = pc.and_not(alive, survivor)
            alive = pc.and_(alive, survivor)
    held_out, contaminated = side["holdout"].column("held_out"), side["contamination"].column("contaminated")
    taken |= {"holdout": held_out, "contamination": contaminated}
    if "protected" in side:
        taken["protected"] = pc.and_not(pc.is_valid(side["protected"].column("reason")), contaminated)
    return taken


def _cluster(side: Mapping[str, pa.RecordBatch]) -> tuple[pa.Array, pa.Array]:
    """Return the cluster of each document and the cluster's size, from the last stage that found duplicates of the
    document."""
    cluster, size = side["exact"].column("cluster"), side["exact"].column("size")
    for name in ("near", "semantic"):
        if name in side:
            company = pc.greater(side[name].column("size"), 1)
            cluster = pc.if_else(company, side[name].column("cluster"), cluster)
            size = pc.if_else(company, side[name].column("size"), size)
    return cluster, size


def _edits(columns: list[pa.Array]) -> pa.Array:
    """Merge the edits of all stages into sorted, disjoint edits. Most documents have edits of at most one stage."""
    first, *others = columns
    if not others:
        return first
    counts = [pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False) for column in others]
    some = np.flatnonzero(np.sum(counts, axis=0))
    lists = first.to_pylist() if some.size else []
    for column in others if some.size else ():
        for row, more in zip(some.tolist(), column.take(pa.array(some)).to_pylist(), strict=True):
            lists[row] = [*(lists[row] or []), *more]
    for row in some.tolist():
        lists[row] = merged(lists[row])
    return pa.array(lists, EDIT_TYPE) if some.size else first


class _Count:
    """Counts of documents and bytes by decision, reason, stage and rule."""

    def __init__(self) -> None:
        self.documents = self.bytes = 0
        self.counts = {name: Counter[str]() for name in _COUNTED}
        self.sizes = {name: Counter[str]() for name in _COUNTED}
        for key in DECISIONS:
            self._bump("decision", key, 0, 0)

    def add(
        self,
        text_bytes: I64,
        decision: pa.Array,
        reason: pa.Array,
        by_policy: pa.Array,
        taken: dict[str, pa.Array],
        fired: pa.Array,
    ) -> None:
        self.documents += len(decision)
        self.bytes += int(text_bytes.sum())
        self._tally("decision", decision, text_bytes)
        self._tally("reason", reason, text_bytes)
        self._tally("policy_reason", by_policy, text_bytes)
        for name, documents in taken.items():
            mask = documents.to_numpy(zero_copy_only=False)
            self._bump("stage", name, int(mask.sum()), int(text_bytes[mask].sum()))
        self._tally("fired", fired.flatten(), text_bytes[pc.list_parent_indices(fired).to_numpy()])
        alone = pc.fill_null(pc.equal(pc.list_value_length(fired), 1), False)
        self._tally("only", fired.filter(alone).flatten(), text_bytes[alone.to_numpy(zero_copy_only=False)])

    def _tally(self, name: str, column: pa.Array, text_bytes: I64) -> None:
        table = pa.table({"key": column, "bytes": text_bytes})
        for row in table.group_by("key").aggregate([("bytes", "sum"), ([], "count_all")]).to_pylist():
            if row["key"] is not None:
                self._bump(name, row["key"], row["count_all"], row["bytes_sum"])

    def _bump(self, name: str, key: str, documents: int, text_bytes: int) -> None:
        self.counts[name][key] += documents
        self.sizes[name][key] += text_bytes

    def stats(self) -> dict[str, Any]:
        """Return all counts as plain data. Decisions and stages that have no documents are included with 0."""
        found: dict[str, Any] = {"documents": self.documents, "bytes": self.bytes}
        for name in ("decision", "reason", "policy_reason", "stage"):
            found[f"{name}s"] = dict(sorted(self.counts[name].items()))
            found[f"{name}_bytes"] = dict(sorted(self.sizes[name].items()))
        found["rules"] = {
            rule: {"fired": n, "only": self.counts["only"][rule], "only_bytes": self.sizes["only"][rule]}
            for rule, n in sorted(self.counts["fired"].items())
        }
        return found


#: Stages that remove all of a cluster but one.
CLUSTERING = ("exact", "near", "semantic")


def cluster_of(ctx: Context, stage: str, bucket: str, part: int, row: int) -> str | None:
    """Return the hexadecimal cluster id of a document, read from a stage's sidecar."""
    sides = ctx.refs.current(ASSETS[stage]).named(f"{bucket}/part-")
    found = read_row(ctx.store, sides[part], row, ["cluster"])["cluster"] if part < len(sides) else None
    return found.hex() if found else None


def survivors(ctx: Context, stage: str, clusters: Iterable[str | None]) -> Mapping[str, Mapping[str, str]]:
    """Return the bucket, id and URI of each cluster's survivor. The stage's sidecars are read once, and no text is
    read."""
    wanted = sorted({bytes.fromhex(one) for one in clusters if one})
    if not wanted:
        return {}
    found, asked = {}, pa.array(wanted, pa.binary(16))
    sides = ctx.refs.current(ASSETS[stage])
    for bucket in sorted({part.name.partition("/")[0] for part in sides.parts if "/part-" in part.name}):
        documents = ctx.refs.current(f"{bucket}/documents").named("part-")
        for side, part in zip(sides.named(f"{bucket}/part-"), documents, strict=False):
            first = 0
            for batch in iter_batches(ctx.store, side, ["cluster", "survivor"]) if side.rows == part.rows else ():
                hit = pc.and_(pc.is_in(batch.column("cluster"), value_set=asked), batch.column("survivor"))
                for at in pc.indices_nonzero(hit).to_pylist():
                    name = read_row(ctx.store, part, first + at, ["id", "uri"])
                    cluster = batch.column("cluster")[at].as_py().hex()
                    found[cluster] = {"bucket": bucket, "id": name["id"].hex(), "uri": name["uri"]}
                first += batch.num_rows
    return found
