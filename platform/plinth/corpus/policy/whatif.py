"""Effect of a changed policy on the corpus, computed from stored columns. Text is read only for displayed samples."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, sum_stats
from plinth.corpus.annotate.base import Available, available
from plinth.corpus.policy import policy
from plinth.corpus.policy.compiled_policy import (
    DOCUMENTS,
    CompiledPolicy,
    Rights,
    annotations_of,
    compile_policy,
    rule_values,
)
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.policy.policy import EDIT_NAMES, published
from plinth.corpus.sidecars import Slot, excerpt, ranks, slots
from plinth.errors import IntegrityError
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_batches, read_row
from plinth.storage.store import Store
from plinth_text.arrays import I64, Bools

# The effect of another policy, from stored columns; no text is read but that of the samples.
#
# The new policy is evaluated on every document and compared with the published verdict; rules that are identical in
# both are not evaluated again, so only columns of changed rules are read. The policy
# is the first stage of the cascade, so the comparison is exact for what it drops and keeps. What deduplication
# would do afterward needs the whole pipeline: a document that is newly kept may still be a duplicate (its count is an
# upper bound), and where a newly dropped one was the survivor of a cluster, another member takes its place (counted as
# `survivors`).
#
# Parts are judged in parallel by the engine; a task returns counts and the few rows that could become samples.


@dataclass(frozen=True)
class PublishedBucket:
    """Published manifests of one bucket.

    Args:
        documents, policy, verdicts: manifests of the bucket.
        exact: manifest of `dedup/exact`, which has the lengths of texts.
        annotations: manifests of the bucket's sidecars, by annotator.
    """

    documents: Manifest
    policy: Manifest
    verdicts: Manifest
    exact: Manifest
    annotations: Mapping[str, Manifest]


def published_bucket(ctx: Context, name: str) -> PublishedBucket:
    """Load the published manifests of a bucket.

    Raises:
        MissingError: the bucket has no published verdicts.
        IntegrityError: the verdicts belong to other documents.
    """
    documents, policy = ctx.refs.current(f"{name}/documents"), ctx.refs.current(f"{name}/policy")
    verdicts, exact = ctx.refs.current(f"{name}/verdicts"), ctx.refs.current("dedup/exact")
    if verdicts.inputs.get(f"{name}/policy") != policy.digest or policy.inputs[f"{name}/documents"] != documents.digest:
        raise IntegrityError(
            f"the verdicts of {name} are stale",
            expected="verdicts of the published policy and documents",
            remedy=f"plinth run --select {name}/verdicts",
        )
    return PublishedBucket(documents, policy, verdicts, exact, annotations_of(ctx, name, documents))


def compare(
    ctx: Context,
    buckets: Mapping[str, PublishedBucket],
    policies: Mapping[str, Policy],
    rights: Rights,
    samples: int = 5,
    seed: int = 1,
) -> tuple[dict[str, Any], list[Flip]]:
    """Count the documents whose verdict new policies would change, and choose sample documents.

    Args:
        buckets: published manifests, by bucket.
        policies: the new policy of each bucket.
        rights: the new license gate; terms of sources are taken from the documents' manifests.
        samples: number of sample documents per direction, over all buckets.
        seed: key of the hash that chooses the samples.

    Returns:
        Statistics by bucket and their `total`, in the form of `no_counts`, in which `rules_before` has the counts of
        the published rules; and the chosen flips, sorted by direction and hash.

    Raises:
        RecipeError: a rule cannot be parsed, or names a column that is not stored.
        IntegrityError: a sidecar does not belong to the documents.
    """
    tasks = [
        task for name in sorted(buckets) for task in _tasks(name, buckets[name], policies[name], rights, samples, seed)
    ]
    counts: dict[str, dict[str, Any]] = {name: no_counts() for name in sorted(buckets)}
    flips: list[Flip] = []
    with ctx.progress.meter("policy try", sum(task.slot.documents.rows for task in tasks)) as meter:
        for task, answer in zip(tasks, ctx.engine.map(partial(judge, ctx.store), tasks), strict=True):
            counts[answer.bucket] = sum_stats([counts[answer.bucket], answer.counts])
            flips = best([*flips, *answer.flips], samples)
            meter.advance(task.slot.documents.rows)
    made = {name: _finished(buckets[name], policies[name], one) for name, one in counts.items()}
    return {"buckets": made, "total": sum_stats(made.values())}, flips


def _tasks(
    name: str, bucket: PublishedBucket, policy: Policy, rights: Rights, samples: int, seed: int
) -> Iterator[CountTask]:
    names, rights = available(bucket.annotations), rights.within(bucket.documents)
    before = published(bucket.policy)[0] if _same_sidecars(name, bucket) else None
    rules = rules_of(policy, rights, before, names, f"corpus.policies (bucket {name})")
    read = {one: {name: bucket.annotations[one]} for one in sorted(bucket.annotations) if one in rules.sidecars}
    sides: dict[str, Any] = {"policy": {name: bucket.policy}, "verdicts": {name: bucket.verdicts}}
    for number, slot in enumerate(slots({name: bucket.documents}, **read, **sides, exact=bucket.exact)):
        yield CountTask(slot, number, policy, rights, before, names, samples, seed)


def _same_sidecars(name: str, bucket: PublishedBucket) -> bool:
    """Return True if the published policy was computed from the currently published sidecars."""
    judged = {key.partition("/")[2]: digest for key, digest in bucket.policy.inputs.items()}
    return all(judged.get(one, made.digest) == made.digest for one, made in bucket.annotations.items())


def _finished(bucket: PublishedBucket, policy: Policy, counts: dict[str, Any]) -> dict[str, Any]:
    """Return a bucket's counts with rules in the order of the policy, and with the counts of the published rules."""
    own = [rule.reason for rule in policy.rules]
    gate = [reason for reason in counts["rules"] if reason not in own]
    ordered = {reason: counts["rules"].get(reason, no_rule()) for reason in (*gate, *own)}
    before = {
        reason: {
            "fires": rule["fired"],
            "marginal": bucket.verdicts.stats["policy_reasons"].get(reason, 0),
            "unique": rule["only"],
        }
        for reason, rule in bucket.verdicts.stats.get("rules", {}).items()
    }
    return {**counts, "rules": ordered, "rules_before": before}


def shown(
    ctx: Context,
    buckets: Mapping[str, PublishedBucket],
    policies: Mapping[str, Policy],
    rights: Rights,
    flips: Sequence[Flip],
) -> list[dict[str, Any]]:
    """Return the flips for display, each with its source, an excerpt, the rule, and the values of the columns that the
    rule reads."""
    rows = []
    for flip in flips:
        bucket, policy = buckets[flip.bucket], policies[flip.bucket]
        document = read_row(
            ctx.store, bucket.documents.named("part-")[flip.part], flip.row, ["id", "uri", "licence", "text"]
        )
        judging, gate = (policy, rights.within(bucket.documents)) if flip.after else published(bucket.policy)
        reason = str(flip.after or flip.before)
        rule = compile_policy(judging, available(bucket.annotations), "policy", gate).rule(reason)
        assert rule is not None  # it is the rule that fired
        values = rule_values(ctx.store, rule, bucket.documents, bucket.annotations, flip.part, flip.row)
        rows.append(
            {
                "direction": flip.direction,
                "bucket": flip.bucket,
                "id": document["id"].hex(),
                "uri": document["uri"],
                "reason": reason,
                "rule": rule.text,
                "values": values,
                "excerpt": excerpt(document["text"]),
            }
        )
    return rows


# One part judged again by another policy: counts, and the rows that could become samples.
#
# The task of `whatif`; its result is small whatever the size of the part.

DIRECTIONS = ("newly_dropped", "newly_kept")



@dataclass(frozen=True, order=True)
class Flip:
    """Document whose verdict changes, with its position and the rules that drop it before and after the change."""

    rank: int
    bucket: str = field(compare=False)
    direction: str = field(compare=False)
    part: int = field(compare=False)
    row: int = field(compare=False)
    before: str | None = field(compare=False)
    after: str | None = field(compare=False)


@dataclass(frozen=True)
class CountTask:
    """Task that evaluates the new policy on one part with its sidecars."""

    slot: Slot
    part: int
    policy: Policy
    rights: Rights
    before: Policy | None  # policy of the published verdicts, on the same sidecars
    annotators: tuple[Available, ...]
    samples: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """Counts of one part, in the form of `no_counts`, and its documents whose verdict changes."""

    bucket: str
    counts: dict[str, Any]
    flips: tuple[Flip, ...]


def judge(store: Store, task: CountTask) -> Answer:
    """Evaluate the new policy on one part, without reading text."""
    counts, flips = no_counts(), list[Flip]()
    ids = Later(store, task.slot.documents, ["id"])
    verdicts = Later(store, task.slot.sides["verdicts"], ["decision", "cluster_size"], ["decision"])
    rules = rules_of(task.policy, task.rights, task.before, task.annotators, "policy")
    first = 0
    for columns, sides, rows in batches(store, task.slot, rules):
        before = sides["policy"]
        fired = rules.fires(columns, rows, before.get("fired"))
        kept_before = before["keep"].to_numpy(zero_copy_only=False)
        size = sides["exact"]["text_bytes"].to_numpy()
        after = _count_rules(counts, rules, fired, size)
        keep = after < 0
        _count_edits(counts, rules, columns, keep)
        masks = {"newly_dropped": kept_before & ~keep, "newly_kept": ~kept_before & keep}
        reasons = before["reason"]
        _count_flips(counts, masks, rules, after, reasons, partial(verdicts.at, first), size)
        _count_moved(counts, rules, after, ~kept_before & ~keep, reasons)
        if task.samples:
            flips += _chosen(ids, task, masks, first, rules, after, reasons)
            flips = [
                f for d in DIRECTIONS for f in heapq.nsmallest(task.samples, [f for f in flips if f.direction == d])
            ]
        first += rows
    return Answer(task.slot.bucket, counts, tuple(flips))


def rules_of(
    policy: Policy, rights: Rights, before: Policy | None, annotators: tuple[Available, ...], where: str
) -> CompiledPolicy:
    """Return the compiled new policy with the new license gate. Rules that did not change reuse their published
    results."""
    rules = compile_policy(policy, annotators, where, rights)
    return rules.reusing(before) if before else rules


def _count_rules(counts: dict[str, Any], rules: CompiledPolicy, fired: Bools, size: I64) -> I64:
    """Count all matches, first matches and sole matches of each rule. Return for each row the number of the first
    matching rule, or -1."""
    first, _, tally = policy.tally(fired, size)
    for reason, row in zip(rules.reasons, tally.tolist(), strict=True):
        rule = counts["rules"].setdefault(reason, no_rule())
        for name, value in zip(rule, row, strict=True):
            rule[name] += value
    volume, dropped = int(size.sum()), tally[:, [policy.FIRST, policy.FIRST_BYTES]].sum(axis=0)
    counts["documents"] += size.size
    counts["bytes"] += volume
    counts["kept"] += size.size - int(dropped[0])
    counts["kept_bytes"] += volume - int(dropped[1])
    return first


def _count_edits(counts: dict[str, Any], rules: CompiledPolicy, columns: Mapping[str, pa.Array], keep: Bools) -> None:
    for reason, column in rules.edits:
        spans = pc.fill_null(pc.list_value_length(columns[column]), 0).to_numpy(zero_copy_only=False)[keep]
        edit = counts["edits"].setdefault(reason, {"documents": 0, "spans": 0})
        edit["documents"] += int(np.count_nonzero(spans))
        edit["spans"] += int(spans.sum())


def _count_flips(
    counts: dict[str, Any],
    masks: Mapping[str, Bools],
    rules: CompiledPolicy,
    after: I64,
    before: pa.Array,
    verdicts: Callable[[], pa.RecordBatch],
    size: I64,
) -> None:
    """Count the documents and bytes whose decision changes, grouped by the rule that drops the documents after the
    change or dropped them before it."""
    new = pa.array(rules.reasons, pa.string())
    for direction, mask in masks.items():
        at = np.flatnonzero(mask)
        if not at.size:
            continue
        flip = counts[direction]
        flip["documents"] += int(at.size)
        flip["bytes"] += int(size[at].sum())
        why = new.take(pa.array(after[at])) if direction == "newly_dropped" else strings_at(before, at)
        for reason, documents, volume in _grouped(why, size[at]):
            own = flip["reasons"].setdefault(reason, {"documents": 0, "bytes": 0})
            own["documents"] += documents
            own["bytes"] += volume
        if direction == "newly_dropped":
            published = verdicts()
            decision = strings_at(published.column("decision"), at)
            for name, documents, volume in _grouped(decision, size[at]):
                flip["decisions"][name] = flip["decisions"].get(name, 0) + documents
                flip["trained_bytes"] += volume if name == "train" else 0
            alive = pc.not_equal(decision, "drop").to_numpy(zero_copy_only=False)
            crowd = published.column("cluster_size").take(pa.array(at)).to_numpy(zero_copy_only=False) > 1
            flip["survivors"] += int(np.count_nonzero(alive & crowd))


def _count_moved(counts: dict[str, Any], rules: CompiledPolicy, after: I64, mask: Bools, before: pa.Array) -> None:
    """Count the documents that are dropped before and after the change, but with a different first reason."""
    at = np.flatnonzero(mask)
    if not at.size:
        return
    numbers = {reason: number for number, reason in enumerate(rules.reasons)}
    old = np.array([numbers.get(one, -1) for one in before.dictionary.to_pylist()], dtype=np.int64)
    counts["other_reason"] += int(np.count_nonzero(old[before.indices.take(pa.array(at)).to_numpy()] != after[at]))


def _grouped(keys: pa.Array, size: I64) -> Iterator[tuple[str, int, int]]:
    table = pa.table({"key": keys, "bytes": size}).group_by("key").aggregate([([], "count_all"), ("bytes", "sum")])
    for row in sorted(table.to_pylist(), key=lambda row: str(row["key"])):
        yield str(row["key"]), row["count_all"], row["bytes_sum"]


def _chosen(
    known: Later,
    task: CountTask,
    masks: Mapping[str, Bools],
    first: int,
    rules: CompiledPolicy,
    after: I64,
    before: pa.Array,
) -> Iterator[Flip]:
    """Yield the flips of a batch whose document ids have the smallest hashes, at most `task.samples` per direction."""
    if not any(mask.any() for mask in masks.values()):
        return
    ids = known.at(first).column("id")
    for direction, mask in masks.items():
        at = np.flatnonzero(mask)
        if not at.size:
            continue
        rank = ranks(ids.take(pa.array(at)), task.seed)
        for one in np.argsort(rank, kind="stable")[: task.samples]:
            row = int(at[one])
            new = rules.reasons[after[row]] if after[row] >= 0 else None
            yield Flip(int(rank[one]), task.slot.bucket, direction, task.part, first + row, before[row].as_py(), new)


def no_rule() -> dict[str, int]:
    """Return a dictionary of zeros for one rule: documents and bytes, by match, first match and sole match."""
    return dict.fromkeys(("fires", "marginal", "unique", "fires_bytes", "marginal_bytes", "unique_bytes"), 0)


def no_counts() -> dict[str, Any]:
    """Return a dictionary in which all counts of a part, a bucket or the corpus are 0."""
    return {
        "documents": 0,
        "bytes": 0,
        "kept": 0,
        "kept_bytes": 0,
        "newly_dropped": {
            "documents": 0, "bytes": 0, "trained_bytes": 0, "survivors": 0, "decisions": {}, "reasons": {}
        },
        "newly_kept": {"documents": 0, "bytes": 0, "reasons": {}},
        "other_reason": 0,
        "rules": {},
        "edits": {},
    }  # fmt: skip


def best(flips: list[Flip], samples: int) -> list[Flip]:
    """Return the `samples` flips with the smallest ranks in each direction, in ascending order of rank."""
    directed = ([flip for flip in flips if flip.direction == direction] for direction in DIRECTIONS)
    return [flip for own in directed for flip in heapq.nsmallest(samples, own)]


#: Rows evaluated at once: long enough that a kernel call costs nothing, short enough to stay in the cache.
BATCH_ROWS = 1 << 16
#: Columns read of the sidecars that are always there; `fired` only where it spares a rule.
_ALWAYS = {"policy": ("keep", "reason"), "exact": ("text_bytes",)}
#: The strings among them.
_LABELS = {"policy": ["reason"]}
Sides = dict[str, dict[str, pa.Array]]


def batches(store: Store, slot: Slot, rules: CompiledPolicy) -> Iterator[tuple[dict[str, pa.Array], Sides, int]]:
    """Yield, batch by batch, the columns that the rules read, columns of the published results, and the number of rows.
    String columns are dictionary-encoded."""
    always = {**_ALWAYS, "policy": (*_ALWAYS["policy"], *(["fired"] if rules.stored else []))}
    wanted = {**rules.sidecars, **always}
    parts = {DOCUMENTS: slot.documents, **slot.sides}
    readers = {name: _reader(store, parts[name], name, columns, rules) for name, columns in wanted.items()}
    for read in zip(*readers.values(), strict=True):
        named = dict(zip(readers, read, strict=True))
        columns = {f"{name}.{one}": named[name].column(one) for name, own in rules.sidecars.items() for one in own}
        sides = {name: {one: named[name].column(one) for one in own} for name, own in always.items()}
        yield columns, sides, read[0].num_rows


def _reader(
    store: Store, part: Part, name: str, columns: Sequence[str], rules: CompiledPolicy
) -> Iterator[pa.RecordBatch]:
    """Return the batches of one sidecar. Spans are only counted, so only the starts in span columns are read."""
    spans = {column for _, column in rules.edits}
    leaves = [f"{one}.list.element.{EDIT_NAMES[0]}" if f"{name}.{one}" in spans else one for one in columns]
    labels = _LABELS.get(name) or [one for one in columns if f"{name}.{one}" in rules.labels]
    return iter_batches(store, part, leaves, BATCH_ROWS, labels)


def strings_at(column: pa.Array, rows: I64) -> pa.Array:
    """Return the strings at the given rows of a dictionary-encoded column."""
    return column.take(pa.array(rows)).dictionary_decode()


class Later:
    """Columns of a part that are read only for batches with changed verdicts, which are rare."""

    def __init__(self, store: Store, part: Part, columns: Sequence[str], labels: Sequence[str] = ()) -> None:
        self._batches, self._row = iter_batches(store, part, columns, BATCH_ROWS, labels), 0

    def at(self, first: int) -> pa.RecordBatch:
        """Return the batch whose first row has the number `first`. Calls must be in ascending order of `first`."""
        for batch in self._batches:
            here, self._row = self._row, self._row + batch.num_rows
            if here == first:
                return batch
        raise AssertionError("unreachable: the batch was just read")
