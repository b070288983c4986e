"""One part judged again by another policy: counts, and the rows that could become samples.

The task of `whatif`; its result is small whatever the size of the part.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.policy import rule_kernels
from plinth.corpus.policy.compiled_policy import CompiledPolicy, compile_policy
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.policy.rights import Rights
from plinth.corpus.policy.whatif.read import Later, batches, strings_at
from plinth.corpus.sampling import ranks
from plinth.corpus.sidecars import Slot
from plinth.storage.store import Store

DIRECTIONS = ("newly_dropped", "newly_kept")

Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True)
class Flip:
    """A document whose verdict changes: where it lies, and by which rules."""

    rank: int
    bucket: str = field(compare=False)
    direction: str = field(compare=False)
    part: int = field(compare=False)
    row: int = field(compare=False)
    before: str | None = field(compare=False)
    after: str | None = field(compare=False)


@dataclass(frozen=True)
class CountTask:
    """A part with its sidecars, and the policy to try on it."""

    slot: Slot
    part: int
    policy: Policy
    rights: Rights
    before: Policy | None  # the published verdicts are of this policy, from the same sidecars
    annotators: tuple[str, ...]
    samples: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """The counts of a part, as `no_counts` has them, and its flips."""

    bucket: str
    counts: dict[str, Any]
    flips: tuple[Flip, ...]


def judge(store: Store, task: CountTask) -> Answer:
    """Judge one part; reads no text."""
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
    policy: Policy, rights: Rights, before: Policy | None, annotators: tuple[str, ...], where: str
) -> CompiledPolicy:
    """The new policy behind the new rights, with the published outcome of rules that did not change."""
    rules = compile_policy(policy, annotators, where, rights)
    return rules.reusing(before) if before else rules


def _count_rules(counts: dict[str, Any], rules: CompiledPolicy, fired: Bools, size: I64) -> I64:
    """Count what each rule fires on, takes first, and takes alone; returns the first rule of each row, or -1."""
    first, _, tally = rule_kernels.tally(fired, size)
    for reason, row in zip(rules.reasons, tally.tolist(), strict=True):
        rule = counts["rules"].setdefault(reason, no_rule())
        for name, value in zip(rule, row, strict=True):
            rule[name] += value
    volume, dropped = int(size.sum()), tally[:, [rule_kernels.FIRST, rule_kernels.FIRST_BYTES]].sum(axis=0)
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
    """Documents and bytes that change sides: by the rule that drops them now, or the one that did."""
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
    """Documents that stay out for another first reason."""
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
    """The flips of a batch with the smallest hashes of their ids."""
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
    """Documents and bytes that a rule fires on, takes first, takes alone."""
    return dict.fromkeys(("fires", "marginal", "unique", "fires_bytes", "marginal_bytes", "unique_bytes"), 0)


def no_counts() -> dict[str, Any]:
    """All counts of a part, a bucket or the corpus, at nothing."""
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
    """Of each direction those with the smallest ranks, in order."""
    directed = ([flip for flip in flips if flip.direction == direction] for direction in DIRECTIONS)
    return [flip for own in directed for flip in heapq.nsmallest(samples, own)]
