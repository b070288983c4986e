"""Scores of items as a table, and estimates of every metric over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from plinth.evaluation.statistics import Estimate, from_replicates, mean, ratio, share_with_missing

#: A row per document, filter and metric. `hash` is of the document as lm-evaluation-harness hashes it, `bits` the
#: -log2 p of the right answer, `bytes` its UTF-8 length. A ratio of sums has numerator and denominator in `score` and
#: `weight`; a metric that only a whole set has (F1, BLEU) no score. A damaged item has a `reason`.
ITEMS = pa.schema(
    [
        pa.field("document", pa.int64()),
        pa.field("hash", pa.string(), nullable=False),
        pa.field("filter", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("weight", pa.float64()),
        pa.field("bits", pa.float64()),
        pa.field("bytes", pa.int64()),
        pa.field("output", pa.string()),
        pa.field("reason", pa.string()),
    ]
)

#: Metrics that are means or ratios of sums; intervals of others come from values over bootstrap samples.
LINEAR = ("mean", "perplexity", "bits_per_byte", "weighted_perplexity")

#: Nothing is known of the spread: the metric has no value for some samples.
WITHOUT_INTERVAL = "without_interval"


def estimates(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Every metric of a task: its value as lm-evaluation-harness aggregates it, with our interval.

    Args:
        rows: of `ITEMS`.
        facts: of the task, as `harness.run` gives them.
        seed: of the bootstrap.
    """
    found: dict[str, Any] = {}
    for key, value in sorted(facts["values"].items()):
        metric, _, filtered = key.partition(",")
        own = [row for row in rows if (row["metric"], row["filter"]) == (metric, filtered)]
        estimate = _linear(own, facts["aggregations"][metric], facts["damaged"], seed)
        drawn = facts["replicates"].get(key)
        if estimate is None and drawn and value is not None and None not in drawn:
            estimate = from_replicates(value, drawn, n=len(own), seed=seed)
        shown = estimate.model_dump(mode="json") if estimate else {"n": len(own), "flags": [WITHOUT_INTERVAL]}
        name = metric if filtered == "none" else key
        found[name] = shown | {"value": value, "higher_is_better": facts["higher_is_better"][metric]}
    return found


def _linear(rows: Sequence[Mapping[str, Any]], aggregation: str, damaged: int, seed: int) -> Estimate | None:
    """Of a mean or a ratio of sums; damaged items may have been right or wrong."""
    scores, weights = [row["score"] for row in rows], [row["weight"] for row in rows]
    if not rows or None in scores or aggregation not in LINEAR:
        return None
    if None in weights:
        if aggregation == "mean" and set(scores) <= {0.0, 1.0}:
            return share_with_missing(int(sum(scores)), len(scores), damaged)
        found = mean(scores)
        return found if aggregation == "mean" else _falling(found, lambda nats: math.exp(-nats))
    found = ratio(scores, weights, seed=seed)
    if aggregation == "bits_per_byte":
        return _falling(found, lambda rate: -rate / math.log(2))
    return _falling(found, lambda rate: math.exp(-rate))


def _falling(found: Estimate, through: Callable[[float], float]) -> Estimate:
    """The estimate of a falling function of a rate of log-likelihood, which is never above 0."""
    low, high = through(min(found.high, 0.0)), through(found.low)
    return found.model_copy(update={"value": through(found.value), "low": low, "high": high})
