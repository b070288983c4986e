"""Removal rates of learned rules per bucket, computed from stored columns. Text is read only for samples.

A rule is measured on all buckets, even if the policy of a bucket does not have the rule. Documents that a rule removes
from trusted reference text are false positives. If their share exceeds the limit, the pipeline stops before documents
are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.annotate.base import Available, annotator, available, parameters, resolved
from plinth.corpus.policy.compiled_policy import DOCUMENTS, by_sidecar, columns_of, rule_values
from plinth.corpus.policy.expressions import Expression, parse
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.sidecars import Smallest, excerpt, ranks, slots
from plinth.corpus.slices.rates import percent, wilson
from plinth.errors import RemovalRateError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import SCORE_GROUP_ROWS, iter_aligned, read_row, read_table, write_batches
from plinth.storage.store import Store
from plinth_text.arrays import I64

ASSET, VERSION = "removal_rates", "1"
#: Sample size per rule and part for review, chosen by the smallest keyed hashes of ids.
SAMPLES, SEED = 50, 1
#: Share of a bucket's documents above which a rule gets a warning.
UNUSUAL = 0.10
SCHEMA = pa.schema(
    [
        pa.field("rule", pa.int32(), nullable=False),  # number in the statistics' `rules`
        pa.field("rank", pa.uint64(), nullable=False),
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)
_COUNTS = ("documents", "fired", "bytes", "fired_bytes")


@dataclass(frozen=True)
class _Task:
    rules: tuple[str, ...]
    documents: Part
    sidecars: tuple[tuple[str, Part], ...]
    annotators: tuple[Available, ...]


def run(
    ctx: Context,
    rules: Sequence[LearnedRule],
    documents: Mapping[str, Manifest],
    annotations: Mapping[str, Mapping[str, Manifest]],
) -> Manifest:
    """Measure every rule on every bucket.

    Args:
        documents: manifests of documents, by bucket.
        annotations: sidecars that the rules read, by annotator and bucket.

    Returns:
        Manifest of `{bucket}/part-*` with `SCHEMA`. The statistic `rules` lists for each rule `rule`, `reason`,
        `policies`, and `buckets` (by bucket: `documents`, `fired`, source `bytes`, `fired_bytes`).

    Raises:
        IntegrityError: a sidecar does not belong to the documents.
    """
    texts = tuple(dict.fromkeys(rule.expression.text for rule in rules))
    step = Step(name=ASSET, version=VERSION, params={"rules": list(texts)})
    places = slots(documents, **annotations)
    annotators = available({name: next(iter(own.values())) for name, own in annotations.items() if own})
    items = []
    for slot in places:
        sidecars = tuple(slot.sides.items())
        digests = (slot.documents.blob.sha256, *(f"{name}:{side.blob.sha256}" for name, side in sidecars))
        items.append(Item(digests, _Task(texts, slot.documents, sidecars, annotators), slot.documents.rows))
    made = run_items(ctx, step, _measure, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/{DOCUMENTS}": one for bucket, one in documents.items()}
    inputs |= {f"{bucket}/{name}": one for name, own in annotations.items() for bucket, one in own.items()}
    return manifest(ASSET, step, inputs, parts, {"rules": _rules(rules, texts, parts)})


def _rules(rules: Sequence[LearnedRule], texts: Sequence[str], parts: Sequence[Part]) -> list[dict[str, Any]]:
    rows = []
    for number, text in enumerate(texts):
        same = [rule for rule in rules if rule.expression.text == text]
        buckets: dict[str, dict[str, int]] = {}
        for part in parts:
            own = buckets.setdefault(part.name.split("/", 1)[0], dict.fromkeys(_COUNTS, 0))
            for name, count in zip(_COUNTS, part.stats["counts"][number], strict=True):
                own[name] += count
        row = {"rule": text, "reason": same[0].reason, "policies": sorted({rule.policy for rule in same})}
        rows.append({**row, "buckets": buckets})
    return rows


def _measure(store: Store, task: _Task) -> tuple[Part, ...]:
    schema = columns_of(task.annotators)
    rules = [parse(text, schema, ASSET) for text in task.rules]
    counts = np.zeros((len(rules), len(_COUNTS)), dtype=np.int64)
    chosen = [Smallest(SAMPLES) for _ in rules]
    for first, columns, ids, size in _columns(store, task, rules):
        for rule, count, sample in zip(rules, counts, chosen, strict=True):
            fires = rule.evaluate(columns, size.size)
            count += (size.size, int(fires.sum()), int(size.sum()), int(size[fires].sum()))
            at = np.flatnonzero(fires)
            some = ids.take(pa.array(at))
            place = ranks(some, SEED).tolist()
            pairs = zip(place, some.to_pylist(), (first + at).tolist(), strict=True)
            sample.extend((rank, (rank, id_, row)) for rank, id_, row in pairs)
    rows = [(number, *one) for number, sample in enumerate(chosen) for one in sample.chosen()]
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    part = write_batches(store, "part.parquet", SCHEMA, table.to_batches())
    return (part.model_copy(update={"stats": {"counts": counts.tolist()}}),)


def _columns(
    store: Store, task: _Task, rules: Sequence[Expression]
) -> Iterator[tuple[int, dict[str, pa.Array], pa.Array, I64]]:
    """Yield for each batch its first row, the columns that the rules read, the document ids, and the source bytes."""
    wanted = by_sidecar({column for rule in rules for column in rule.columns})
    own = sorted({*wanted.pop(DOCUMENTS, ()), "id", "source_bytes"})
    sources = [(task.documents, own), *((part, wanted[name]) for name, part in task.sidecars)]
    names = [DOCUMENTS, *(name for name, _ in task.sidecars)]
    first = 0
    for batches in iter_aligned(store, *sources, rows=SCORE_GROUP_ROWS):
        named = zip(names, batches, strict=True)
        columns = {f"{name}.{one}": batch.column(one) for name, batch in named for one in batch.schema.names}
        ids, size = columns[f"{DOCUMENTS}.id"], columns[f"{DOCUMENTS}.source_bytes"].to_numpy()
        yield first, columns, ids, size
        first += size.size


def shares(counts: Mapping[str, int]) -> tuple[float, float]:
    """Return the shares of a bucket's documents and bytes that a rule removes."""
    documents = counts["fired"] / counts["documents"] if counts["documents"] else 0.0
    return documents, counts["fired_bytes"] / counts["bytes"] if counts["bytes"] else 0.0


def require_bound(ctx: Context, made: Manifest, documents: Mapping[str, Manifest], reference: Sequence[str],
                  bound: float) -> None:  # fmt: skip
    """Raise RemovalRateError if a rule removes more than the share `bound` of a trusted bucket.

    Args:
        reference: buckets trusted as reference.
        bound: maximum share of a reference bucket's documents, and of its bytes.

    Raises:
        RemovalRateError: a rule exceeds the limit on a bucket; the error lists all rules that do.
    """
    above = [
        (number, row, bucket)
        for number, row in enumerate(made.stats["rules"])
        for bucket in reference
        if max(shares(row["buckets"][bucket])) > bound
    ]
    if not above:
        return
    number, row, bucket = above[0]
    others = [f"{other['reason']} {percent(max(shares(other['buckets'][b])))} of {b}" for _, other, b in above[1:]]
    first = [one["uri"] for one in samples(ctx, made, documents, {}, number, [bucket], 3)]
    raise RemovalRateError(
        f"rule {row['reason']} ({row['rule']}) removes {percent(max(shares(row['buckets'][bucket])))} of the bucket "
        f"{bucket}, a trusted reference bucket",
        found="; ".join([f"{in_words(row['buckets'][bucket])}; for example {', '.join(first)}", *others]),
        expected=f"at most {bound:.1%} of its documents and bytes (corpus.max_reference_removed)",
        remedy=f"read the texts: `plinth corpus policy removal --reason {row['reason']} --bucket {bucket}`; then "
        "fix the model, its labels or the threshold, or remove the rule",
    )


def in_words(counts: Mapping[str, int]) -> str:
    """Format the counts of a rule on a bucket as text, with Wilson's interval."""
    low, high = wilson(counts["fired"], counts["documents"]) if counts["documents"] else (0.0, 1.0)
    documents, volume = shares(counts)
    return (
        f"{counts['fired']:,} of {counts['documents']:,} documents ({percent(documents)}, 95%: {100 * low:.1f}-"
        f"{100 * high:.1f}), {percent(volume)} of the bytes"
    )


def samples(
    ctx: Context,
    made: Manifest,
    documents: Mapping[str, Manifest],
    annotations: Mapping[str, Mapping[str, Manifest]],
    number: int,
    buckets: Sequence[str],
    count: int,
) -> list[dict[str, Any]]:
    """Return sample documents that a rule matches, smallest hash first. The rows can be labeled with `plinth corpus
    review`.

    Args:
        annotations: sidecars by annotator and bucket; values of missing sidecars are omitted.
        number: number of the rule.
    """
    annotators = available({name: next(iter(own.values())) for name, own in annotations.items() if own})
    best, row = Smallest(count), made.stats["rules"][number]
    for bucket in buckets:
        for at, part in enumerate(made.named(f"{bucket}/part-")):
            for one in read_table(ctx.store, part).to_pylist():
                if one["rule"] == number:
                    best.offer(one["rank"], (bucket, at, one["row"]))
    rule = parse(row["rule"], columns_of(annotators), ASSET) if annotators else None
    return [_shown(ctx, documents[place[0]], annotations, rule, row, place) for place in best.chosen()]


def _shown(
    ctx: Context,
    documents: Manifest,
    annotations: Mapping[str, Mapping[str, Manifest]],
    rule: Expression | None,
    row: Mapping[str, Any],
    place: tuple[str, int, int],
) -> dict[str, Any]:
    bucket, part, at = place
    found = read_row(ctx.store, documents.named("part-")[part], at, ["id", "uri", "text"])
    own = {name: made[bucket] for name, made in annotations.items()}
    return {
        "id": found["id"].hex(),
        "bucket": bucket,
        "uri": found["uri"],
        "reason": row["reason"],
        "rule": row["rule"],
        "values": rule_values(ctx.store, rule, documents, own, part, at) if rule else {},
        "characters": len(found["text"]),
        "excerpt": excerpt(found["text"]),
        "label": None,
        "note": "",
    }


# Rules of policies that drop documents by learned models, and the trusted reference buckets.
#
# A model trained on one kind of text may misclassify harmless text of another kind. So every rule that reads a learned
# column needs independent evidence (`recipe.extension_checks`), and its removals are measured on every bucket
# (`removal_rates`).

#: Kinds of models that predict the likelihood of a text instead of a class, so they need no labels.
WITHOUT_CLASSES = ("ngram",)
Raw = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class LearnedRule:
    """Policy rule that reads learned columns.

    Args:
        policy, reason: policy of the rule, and its reason.
        expression: the rule.
        annotators: annotators whose learned columns the rule reads, sorted.
    """

    policy: str
    reason: str
    expression: Expression
    annotators: tuple[str, ...]


def learned_rules(policies: Mapping[str, Policy], annotate: Raw) -> tuple[LearnedRule, ...]:
    """Return the rules of all policies that read a learned column, in order.

    Args:
        annotate: parameters of the recipe's annotators, by name.

    Raises:
        RecipeError: a rule or a parameter is invalid.
    """
    schema, learned, found = columns_of(available(annotate)), learned_columns(annotate), list[LearnedRule]()
    for name, policy in policies.items():
        for rule in policy.rules:
            expression = parse(rule.drop, schema, f"corpus.policies.{name}.rules.{rule.reason}")
            own = sorted({column.partition(".")[0] for column in expression.columns & learned})
            if own:
                found.append(LearnedRule(name, rule.reason, expression, tuple(own)))
    return tuple(found)


def learned_columns(annotate: Raw) -> frozenset[str]:
    """Return the names of the columns that models compute, as `annotator.column`."""
    found: set[str] = set()
    for name, raw in annotate.items():
        chosen = annotator(name)
        if models_of(name, raw) or chosen.asks:
            chosen = resolved(name, parameters(name, raw))
            columns = chosen.schema.names if chosen.learned is None else chosen.learned
            found.update(f"{name}.{column}" for column in columns)
    return frozenset(found)


def models_of(name: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the models in `corpus.models` that an annotator needs."""
    needed = annotator(name).needs(parameters(name, raw))
    return tuple(key.removeprefix("models/") for key in needed if key.startswith("models/"))


def has_classes(model: Mapping[str, Any]) -> bool:
    """Return True if a model predicts classes, so that labeled text can be displayed by class."""
    return model.get("of", model.get("kind")) not in WITHOUT_CLASSES


def trusted(named: Sequence[str], models: Raw) -> tuple[str, ...]:
    """Return the trusted reference buckets of the recipe. By default, these are the buckets that models use as
    `reference`."""
    from_models: Iterable[Any] = (one for model in models.values() for one in model.get("reference") or ())
    return tuple(dict.fromkeys(map(str, named or from_models)))
