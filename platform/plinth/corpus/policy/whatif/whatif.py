"""The effect of another policy, from stored columns; no text is read but that of the samples.

Every document is judged again by the new policy and compared with its published verdict; a rule that
stands in both word for word is not evaluated again, so that only columns of changed rules are read. The policy
is the first stage of the cascade, so the comparison is exact for what it drops and keeps. What deduplication
would do afterwards needs the whole pipeline: a document that is newly kept may still be a duplicate (its count is an
upper bound), and where a newly dropped one was the survivor of a cluster, another member takes its place (counted as
`survivors`).

Parts are judged in parallel by the engine; a task returns counts and the few rows that could become samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.compute.stage import sum_stats
from plinth.corpus.policy.compiled_policy import compile_policy
from plinth.corpus.policy.explanation import annotations_of, rule_values
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.policy.policy import published
from plinth.corpus.policy.rights import Rights
from plinth.corpus.policy.whatif.count import CountTask, Flip, best, judge, no_counts, no_rule, rules_of
from plinth.corpus.sampling import excerpt
from plinth.corpus.sidecars import slots
from plinth.errors import IntegrityError
from plinth.records import Manifest
from plinth.storage.parts import read_row


@dataclass(frozen=True)
class PublishedBucket:
    """The published manifests of one bucket.

    Args:
        documents, policy, verdicts: its manifests.
        exact: `dedup/exact`, for the lengths of texts.
        annotations: its sidecars by annotator.
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
    """Count what would change, and choose documents to look at.

    Args:
        buckets: published manifests, by bucket.
        policies: the new policy of each.
        rights: the new licence gate; terms of sources are taken from the documents' manifests.
        samples: documents per direction, over all buckets.
        seed: key of the hash that chooses them.

    Returns:
        Statistics by bucket and their `total`, as `no_counts` has them with the published rules beside the new
        (`rules_before`), and the flips chosen, in order of direction and hash.

    Raises:
        RecipeError: a rule that cannot be read, or names a column that is not stored.
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
    names, rights = tuple(sorted(bucket.annotations)), rights.within(bucket.documents)
    before = published(bucket.policy)[0] if _same_sidecars(name, bucket) else None
    rules = rules_of(policy, rights, before, names, f"corpus.policies (bucket {name})")
    read = {one: {name: bucket.annotations[one]} for one in names if one in rules.sidecars}
    sides: dict[str, Any] = {"policy": {name: bucket.policy}, "verdicts": {name: bucket.verdicts}}
    for number, slot in enumerate(slots({name: bucket.documents}, **read, **sides, exact=bucket.exact)):
        yield CountTask(slot, number, policy, rights, before, names, samples, seed)


def _same_sidecars(name: str, bucket: PublishedBucket) -> bool:
    """Whether the published policy read the sidecars that are published now."""
    judged = {key.partition("/")[2]: digest for key, digest in bucket.policy.inputs.items()}
    return all(judged.get(one, made.digest) == made.digest for one, made in bucket.annotations.items())


def _finished(bucket: PublishedBucket, policy: Policy, counts: dict[str, Any]) -> dict[str, Any]:
    """Rules in the order of the policy, and what the published ones did."""
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
    """Flips as a person reads them: where from, an excerpt, and the values that made the rule fire."""
    rows = []
    for flip in flips:
        bucket, policy = buckets[flip.bucket], policies[flip.bucket]
        document = read_row(
            ctx.store, bucket.documents.named("part-")[flip.part], flip.row, ["id", "uri", "licence", "text"]
        )
        judging, gate = (policy, rights.within(bucket.documents)) if flip.after else published(bucket.policy)
        reason = str(flip.after or flip.before)
        rule = compile_policy(judging, tuple(sorted(bucket.annotations)), "policy", gate).rule(reason)
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
