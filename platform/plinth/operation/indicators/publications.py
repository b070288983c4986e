"""Indicators of assets: suite pass rate, ingestion lag; from the log of assets."""

from __future__ import annotations

from collections.abc import Iterator

from plinth.operation.indicators.facts import ARRIVED, CHECKED, PUBLISHED, AssetFacts
from plinth.operation.indicators.parameters import Objectives
from plinth.operation.indicators.tallies import Tally, up_to, whole

DOCUMENTS = "/documents"


def suite_pass_rate(facts: AssetFacts, objectives: Objectives) -> Iterator[Tally]:
    """From a check to the next of the same suite, or to now: good where it passed."""
    last: dict[str, tuple[float, bool]] = {}
    for event in facts.events:
        if event["event"] == CHECKED:
            asset, time = str(event["asset"]), float(event["time"])
            if asset in last:
                yield _checked(asset, time, *last[asset])
            last[asset] = time, bool(event["passed"])
    for asset, before in last.items():
        yield _checked(asset, facts.until, *before)


def _checked(asset: str, until: float, since: float, passed: bool) -> Tally:
    return whole("suite pass rate", asset, since, until, passed)


def ingestion_lag(facts: AssetFacts, objectives: Objectives) -> Iterator[Tally]:
    """From the arrival of source files until the documents of their bucket are published: good up to the bound.

    Files cannot have arrived before the last publication, which would have had them; before the first there was no
    pipeline for them to wait for.
    """
    waiting: dict[str, float] = {}
    published: dict[str, float] = {}
    for event in facts.events:
        asset, time = str(event["asset"]), float(event["time"])
        bucket = asset.removesuffix(DOCUMENTS)
        if event["event"] == ARRIVED:
            at = max(float(event["at"]), published.get(asset, time))
            waiting[asset] = min(waiting.get(asset, at), at)
        elif event["event"] == PUBLISHED and bucket != asset:
            published[bucket] = time
            if bucket in waiting:
                yield from _waited(bucket, waiting.pop(bucket), time, objectives.ingestion_lag_s)
    for bucket, since in waiting.items():
        yield from _waited(bucket, since, facts.until, objectives.ingestion_lag_s)


def _waited(bucket: str, begin: float, end: float, bound_s: float) -> Iterator[Tally]:
    for made in up_to("ingestion lag", bucket, begin, end, bound_s):
        yield made._replace(measured=end - begin)
