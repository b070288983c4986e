"""One decision and one reason per document, from the sidecars alone; no text is read.

The cascade is policy, exact duplicates, near duplicates, holdout, contamination: the first stage that takes a
document out of training gives the reason. Statistics count documents and bytes by stage and reason, and for
every rule of the policy how often it fired and on how many documents nothing but it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.stage import Item, add_stats, manifest, run_items
from plinth.context import Context
from plinth.corpus.sidecars import Slot, slots
from plinth.records import EDIT_TYPE, Manifest, Part, Step
from plinth.storage.parts import iter_aligned, write_batches
from plinth.storage.store import Store

VERSION = "1"

#: `cluster` and `cluster_size` are those of near duplicates where there are any, else of exact duplicates.
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

#: Stages that take documents out of training, in order.
STAGES = ("policy", "exact", "near", "holdout", "contamination")
DECISIONS = ("train", "heldout", "drop")
_REASONS = {"exact": "exact_duplicate", "near": "near_duplicate", "contamination": "contaminated"}
_COUNTED = ("decision", "reason", "policy_reason", "stage", "fired", "only")
_COLUMNS = {
    "policy": ["keep", "reason", "fired", "edits"],
    "exact": ["cluster", "size", "survivor", "text_bytes"],
    "near": ["cluster", "size", "survivor"],
    "holdout": ["held_out"],
    "contamination": ["contaminated"],
}

Bools = npt.NDArray[np.bool_]


def run(
    ctx: Context,
    bucket_name: str,
    documents: Manifest,
    policy: Manifest,
    exact: Manifest,
    near: Manifest,
    holdout: Manifest,
    contamination: Manifest,
) -> Manifest:
    """Decide on every document of a bucket.

    Args:
        documents, policy: of this bucket.
        exact, near, holdout, contamination: of all buckets.

    Returns:
        Manifest of `part-*` with `SCHEMA`, aligned with the documents. Statistics: `documents`, `bytes`,
        `decisions`, `decision_bytes`, `reasons`, `reason_bytes`, `policy_reasons`, `policy_reason_bytes`,
        `stages`, `stage_bytes` (taken out of training by each), `rules` (`fired`, `only`, `only_bytes` of each
        policy rule: on how many documents it fired, and where it was the only one).

    Raises:
        IntegrityError: a sidecar does not belong to the documents.
    """
    sides = {"exact": exact, "near": near, "holdout": holdout, "contamination": contamination}
    places = slots({bucket_name: documents}, policy={bucket_name: policy}, **sides)
    step = Step(name="verdicts", version=VERSION)
    items = [
        Item(
            (slot.documents.blob.sha256, *(slot.sides[name].blob.sha256 for name in STAGES)),
            slot,
            slot.documents.rows,
        )
        for slot in places
    ]
    asset = f"{bucket_name}/verdicts"
    parts = [made[0] for made in run_items(ctx, step, _judge, items, label=asset)]
    inputs = {
        f"{bucket_name}/documents": documents,
        f"{bucket_name}/policy": policy,
        "dedup/exact": exact,
        "dedup/minhash": near,
        "holdout": holdout,
        "contamination": contamination,
    }
    return manifest(asset, step, inputs, parts, _Count().stats() | add_stats(parts))


def _judge(store: Store, slot: Slot) -> tuple[Part, ...]:
    count = _Count()
    part = write_batches(store, slot.documents.name, SCHEMA, _batches(store, slot, count))
    return (part.model_copy(update={"stats": count.stats()}),)


def _batches(store: Store, slot: Slot, count: _Count) -> Iterator[pa.RecordBatch]:
    sources = [(slot.documents, ["id"]), *((slot.sides[name], _COLUMNS[name]) for name in STAGES)]
    for ids, policy, exact, near, holdout, contamination in iter_aligned(store, *sources):
        taken = _taken(
            policy.column("keep"),
            exact.column("survivor"),
            near.column("survivor"),
            holdout.column("held_out"),
            contamination.column("contaminated"),
        )
        reason = by_policy = pc.if_else(taken["policy"], policy.column("reason"), pa.scalar(None, pa.string()))
        for name, text in _REASONS.items():
            reason = pc.if_else(taken[name], text, reason)
        dropped = pc.is_valid(reason)
        decision = pc.if_else(taken["holdout"], "heldout", pc.if_else(dropped, "drop", "train"))
        by_near = pc.greater(near.column("size"), 1)
        cluster = pc.if_else(by_near, near.column("cluster"), exact.column("cluster"))
        size = pc.if_else(by_near, near.column("size"), exact.column("size"))
        count.add(exact.column("text_bytes").to_numpy(), decision, reason, by_policy, taken, policy.column("fired"))
        yield pa.RecordBatch.from_arrays(
            [ids.column("id"), decision, reason, cluster, size, policy.column("edits")], schema=SCHEMA
        )


def _taken(
    keep: pa.Array, unique: pa.Array, distinct: pa.Array, held_out: pa.Array, contaminated: pa.Array
) -> dict[str, pa.Array]:
    """By stage, which documents it took out; at most one stage per document."""
    return {
        "policy": pc.invert(keep),
        "exact": pc.and_not(keep, unique),
        "near": pc.and_not(pc.and_(keep, unique), distinct),
        "holdout": held_out,
        "contamination": contaminated,
    }


class _Count:
    """Documents and bytes by decision, reason, stage and rule."""

    def __init__(self) -> None:
        self.documents = self.bytes = 0
        self.counts = {name: Counter[str]() for name in _COUNTED}
        self.sizes = {name: Counter[str]() for name in _COUNTED}
        for key in DECISIONS:
            self._bump("decision", key, 0, 0)

    def add(
        self,
        text_bytes: npt.NDArray[np.int64],
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
        for name in STAGES:
            mask = taken[name].to_numpy(zero_copy_only=False)
            self._bump("stage", name, int(mask.sum()), int(text_bytes[mask].sum()))
        self._tally("fired", fired.flatten(), text_bytes[pc.list_parent_indices(fired).to_numpy()])
        alone = pc.fill_null(pc.equal(pc.list_value_length(fired), 1), False)
        self._tally("only", fired.filter(alone).flatten(), text_bytes[alone.to_numpy(zero_copy_only=False)])

    def _tally(self, name: str, column: pa.Array, text_bytes: npt.NDArray[np.int64]) -> None:
        table = pa.table({"key": column, "bytes": text_bytes})
        for row in table.group_by("key").aggregate([("bytes", "sum"), ([], "count_all")]).to_pylist():
            if row["key"] is not None:
                self._bump(name, row["key"], row["count_all"], row["bytes_sum"])

    def _bump(self, name: str, key: str, documents: int, text_bytes: int) -> None:
        self.counts[name][key] += documents
        self.sizes[name][key] += text_bytes

    def stats(self) -> dict[str, Any]:
        """All counts as plain data; decisions and stages are there even when they are 0."""
        found: dict[str, Any] = {"documents": self.documents, "bytes": self.bytes}
        for name in ("decision", "reason", "policy_reason", "stage"):
            found[f"{name}s"] = dict(sorted(self.counts[name].items()))
            found[f"{name}_bytes"] = dict(sorted(self.sizes[name].items()))
        found["rules"] = {
            rule: {"fired": n, "only": self.counts["only"][rule], "only_bytes": self.sizes["only"][rule]}
            for rule, n in sorted(self.counts["fired"].items())
        }
        return found
