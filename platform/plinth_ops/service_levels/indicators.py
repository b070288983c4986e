"""Indicators by name, each with its unit, optional measure and function; error budgets and their gate.

job success, lineage completeness, reproducibility delta, time to fine-tune
suite pass rate, ingestion lag
goodput, restore time, device utilization, cost per token
checkpoint age, checkpoint frequency, validation trend

The gate blocks a promotion while an error budget is exhausted, until a waiver is signed. Budgets are recomputed each
time from timelines, ledgers and the log of assets, against the objectives of the signed policy. The workspace's own
`objectives.yaml` is for display only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from plinth.operation.workspace_files import ARRIVED, CHECKED, PUBLISHED
from plinth.training.telemetry.goodput import TimeSpan
from plinth_ops.service_levels.tallies import (
    AssetFacts,
    ErrorBudget,
    Event,
    Objectives,
    RunFacts,
    Tally,
    TallyPart,
    clipped,
    joined,
    up_to,
    whole,
)


def job_success(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally jobs: all seconds of a job are bad if it failed, was lost or was killed. Restarts within a job are good."""
    for number, one in enumerate(run.attempts):
        yield whole("job success", run.run, *run.held(number), one.job not in run.lost_jobs, one.ranks)


def lineage_completeness(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally lineage: all seconds of a run with incomplete data lineage are bad."""
    if run.complete is None:
        return
    for number, one in enumerate(run.attempts):
        yield whole("lineage completeness", run.run, *run.held(number), run.complete, one.ranks)


def reproducibility_delta(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally replays: all seconds of a replayed run are good if its last replay agrees within the limit."""
    last = max(run.of("audited"), key=lambda event: float(event["time"]), default=None)
    if last is None:
        return
    delta = 0.0 if last["bit_exact"] else float(last.get("delta", math.inf))  # missing in timelines of earlier versions
    for number, one in enumerate(run.attempts):
        good = delta <= objectives.reproducibility_bound
        made = whole("reproducibility delta", run.run, *run.held(number), good, one.ranks)
        yield made._replace(measured=delta)


def time_to_fine_tune(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally fine-tuning: seconds from a run's submission until it finishes or is abandoned are good up to the limit."""
    if not run.fine_tunes or not run.events:
        return
    begin, last = float(run.events[0]["time"]), run.events[-1]
    done = next((float(event["time"]) for event in run.of("finished")), None)
    given_up = run.silent or last["event"] == "failed"
    end = done if done is not None else float(last["time"]) if given_up else run.until
    for made in up_to("time to fine-tune", run.run, begin, end, objectives.fine_tune_s):
        yield made._replace(measured=(end - begin) / 3600)


DOCUMENTS = "/documents"


def suite_pass_rate(facts: AssetFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally suites: the seconds after each check, until the suite's next check, are good if the check passed."""
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
    """Tally ingestion: seconds from the arrival of source files to their publication are good up to the limit.

    The wait does not start before the last publication, which would have included the files. If there was no
    publication, the wait does not start before the arrival was recorded.
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


#: Step parts in which a device computes (`telemetry.step_clock`).
COMPUTING: Final = ("forward", "backward", "optimizer")
#: Maximum seconds that a sample covers, back to the previous sample: there are no samples between jobs.
SAMPLE_S: Final = 120.0


def goodput(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally goodput: the seconds of a step are good unless the step is trained again or discarded."""
    return _of_spans("goodput", run, lambda span: TallyPart(span.begin_us, span.us, _good(span)))


def restore_time(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally restores: the restore time of each attempt is good up to the limit."""
    for one, spans in zip(run.attempts, run.spans, strict=True):
        left = round(objectives.restore_time_s * 1e6)
        for span in spans:
            if span.cause == "restore":
                good = min(left, span.us)
                left -= good
                cuts = (TallyPart(span.begin_us, good, good), TallyPart(span.begin_us + good, span.us - good, 0))
                for cut in cuts:
                    yield from joined("restore time", run.run, one.ranks, [cut] if cut.us else [])


def device_utilisation(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally busy device time from samples. If there are no samples, tally the computing time of steps that are kept."""
    if run.samples:
        yield from _sampled(run)
        return
    shares = {int(event["step"]): _computing(event) for event in run.of("step")}
    yield from _of_spans(
        "device utilisation",
        run,
        lambda span: TallyPart(span.begin_us, span.us, round(_good(span) * shares.get(span.step or 0, 0.0))),
    )


def cost_per_token(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally cost: paid rank-seconds are good up to the cost that the objective allows for the tokens of their steps.

    Without an objective, only money and tokens are tallied.
    """
    price = run.price
    if not price:
        return
    allowed = (objectives.cost_per_million_tokens or 0.0) / 1e6 / price * 3600e6  # allowed rank-microseconds per token
    for one, spans in zip(run.attempts, run.spans, strict=True):
        parts = (_paid(span, one.ranks, price, run.tokens, allowed) for span in spans)
        for made in joined("cost per token", run.run, one.ranks, parts):
            yield made if allowed else made._replace(good_us=0, total_us=0)


def _paid(span: TimeSpan, ranks: int, price: float, tokens: Mapping[int, int], allowed: float) -> TallyPart:
    """Return the cost of a time span. A step's tokens are counted in its goodput span only."""
    own = tokens.get(span.step, 0) if span.cause == "goodput" and span.step is not None else 0
    good = min(max(0, span.us), round(own * allowed / ranks))
    return TallyPart(span.begin_us, span.us, good, span.us * ranks / 3600e6 * price, own / 1e6)


def _of_spans(indicator: str, run: RunFacts, piece: Callable[[TimeSpan], TallyPart]) -> Iterator[Tally]:
    for one, spans in zip(run.attempts, run.spans, strict=True):
        yield from joined(indicator, run.run, one.ranks, map(piece, spans))


def _good(span: TimeSpan) -> int:
    return span.us if span.cause == "goodput" else 0


def _computing(event: Any) -> float:
    """Return the computing share of a step's time, or 1 if the timeline does not record the parts of a step."""
    parts = event.get("parts")
    if parts is None:
        return 1.0
    own = sum(seconds for name, seconds in parts.items() if name not in ("data", "checkpoint"))
    return sum(parts.get(name, 0.0) for name in COMPUTING) / own if own > 0 else 0.0


def _sampled(run: RunFacts) -> Iterator[Tally]:
    """Yield busy device time from samples. Each sample covers the time since the previous sample of the same node."""
    before: dict[int, float] = {}
    for sample in run.samples:
        node, time = int(sample["node"]), float(sample["time"])
        busy = [gpu["utilisation"] for gpu in sample["gpus"] if gpu["utilisation"] is not None]
        earlier = before.get(node)
        before[node] = time
        if earlier is None or not busy or not 0 < time - earlier <= SAMPLE_S:
            continue
        us = round((time - earlier) * 1e6)
        good = round(us * sum(busy) / 100)
        yield Tally("device utilisation", run.run, earlier, time, good, us * len(busy))


def checkpoint_age(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally checkpoint age: seconds since the last checkpoint (or the first step) are good up to the limit."""
    for one, begin, end, _ in _gaps(run):
        yield from up_to("checkpoint age", run.run, begin, end, objectives.checkpoint_age_s, one)


def checkpoint_frequency(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally checkpoint intervals: an interval is entirely good or entirely bad, depending on its length.

    An interval that has not ended counts with its current length.
    """
    for ranks, begin, end, closed in _gaps(run):
        good = end - begin <= objectives.checkpoint_every_s
        made = whole("checkpoint frequency", run.run, begin, end, good, ranks)
        yield made._replace(measured=end - begin, weight=1.0) if closed else made._replace(measured=0.0, weight=0.0)


def validation_trend(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Tally held-out evaluations: the seconds before an evaluation are good unless its loss rose above the limit.

    The loss is compared with the best earlier evaluation.
    """
    looks: dict[int, float] = {}
    for one, its in zip(run.attempts, run.inside, strict=True):
        since = _first_step(its)
        if since is None:
            continue
        for event in its:
            if event["event"] != "evaluated" or not event.get("slices"):
                continue
            tokens, loss, time = int(event["tokens"]), _mean(event), float(event["time"])
            best = min((own for at, own in looks.items() if at < tokens), default=math.inf)
            rise = loss - best if math.isfinite(best) else 0.0 if math.isfinite(loss) else math.inf
            made = whole("validation trend", run.run, since, time, rise <= objectives.validation_rise, one.ranks)
            yield made._replace(measured=max(0.0, rise))
            if math.isfinite(loss):
                looks[tokens] = loss
            since = time


def _mean(event: Event) -> float:
    """Return the mean loss over slices, or infinity if the loss of a slice is not finite."""
    values = [float(one) for one in event["slices"].values()]
    mean = math.fsum(values) / len(values)
    return mean if math.isfinite(mean) and not event.get("not_finite") else math.inf


def _first_step(its: Sequence[Event]) -> float | None:
    return next((float(event["time"]) for event in its if event["event"] == "step"), None)


def _gaps(run: RunFacts) -> Iterator[tuple[int, float, float, bool]]:
    """Yield (ranks, begin, end, closed) of each checkpoint interval.

    The first interval of an attempt begins at its first step. If steps follow the last checkpoint, the last interval
    ends with the attempt. `closed` is True if a checkpoint ended the interval.
    """
    for one, its in zip(run.attempts, run.inside, strict=True):
        steps = [float(event["time"]) for event in its if event["event"] == "step"]
        if not steps:
            continue
        commits = [float(event["time"]) for event in its if event["event"] == "checkpoint"]
        times = [steps[0], *(time for time in commits if time > steps[0])]
        for begin, end in pairwise(times):
            yield one.ranks, begin, end, True
        if steps[-1] > times[-1] or len(times) == 1:
            yield one.ranks, times[-1], max(one.end, steps[-1]), False


OfRun = Callable[[RunFacts, Objectives], Iterable[Tally]]
OfAssets = Callable[[AssetFacts, Objectives], Iterable[Tally]]


class Indicator(NamedTuple):
    """Service level indicator of runs or of assets.

    Args:
        unit: unit of the tallied seconds, such as `rank-s`.
        measured_in: unit of the measure; empty if there is no measure. The measure is a mean if the tallies have
            weights, otherwise the maximum.
    """

    unit: str
    measured_in: str = ""
    of_run: OfRun | None = None
    of_assets: OfAssets | None = None


INDICATORS: Final[Mapping[str, Indicator]] = MappingProxyType(
    {
        "job success": Indicator("rank-s", of_run=job_success),
        "goodput": Indicator("rank-s", of_run=goodput),
        "checkpoint age": Indicator("rank-s", of_run=checkpoint_age),
        "checkpoint frequency": Indicator("rank-s", "s between checkpoints on average", checkpoint_frequency),
        "restore time": Indicator("rank-s", of_run=restore_time),
        "validation trend": Indicator("rank-s", "bits per byte above the best evaluation, maximum", validation_trend),
        "device utilisation": Indicator("device-s", of_run=device_utilisation),
        "cost per token": Indicator("rank-s", "money per million tokens", cost_per_token),
        "lineage completeness": Indicator("rank-s", of_run=lineage_completeness),
        "reproducibility delta": Indicator("rank-s", "relative difference, maximum", reproducibility_delta),
        "time to fine-tune": Indicator("run-s", "hours, maximum", time_to_fine_tune),
        "suite pass rate": Indicator("suite-s", of_assets=suite_pass_rate),
        "ingestion lag": Indicator("bucket-s", "s, maximum", of_assets=ingestion_lag),
    }
)


def of_run(facts: RunFacts, objectives: Objectives) -> list[Tally]:
    """Return the tallies of a run for every indicator of runs."""
    made = [one for row in INDICATORS.values() if row.of_run for one in row.of_run(facts, objectives)]
    return [one for one in made if one.total_us or one.measured]


def of_assets(facts: AssetFacts, objectives: Objectives) -> list[Tally]:
    """Return the tallies of a workspace's assets for every indicator of assets."""
    made = [one for row in INDICATORS.values() if row.of_assets for one in row.of_assets(facts, objectives)]
    return [one for one in made if one.total_us]


def budgets(tallies: Iterable[Tally], objectives: Objectives, until: float) -> list[ErrorBudget]:
    """Return every indicator's error budget over the objectives' window, which ends at `until` (Unix seconds)."""
    since = until - objectives.window_days * 86400
    counted: dict[str, list[Tally]] = {name: [] for name in INDICATORS}
    for one in tallies:
        if cut := clipped(one, since, until):
            counted[one.indicator].append(cut)
    return [
        ErrorBudget(
            indicator=name,
            unit=row.unit,
            target=objectives.target(name),
            good_s=sum(one.good_us for one in counted[name]) / 1e6,
            total_s=sum(one.total_us for one in counted[name]) / 1e6,
            measure=_measure(counted[name]) if row.measured_in else None,
            measured_in=row.measured_in,
            covered_s=sum(one.end - one.begin for one in counted[name]),
            minimum_s=objectives.minimum_s(name),
        )
        for name, row in INDICATORS.items()
    ]


def _measure(tallies: Sequence[Tally]) -> float | None:
    """Return an indicator's measure: the ratio of sums if the tallies have weights, otherwise the maximum."""
    numbers = [one.measured for one in tallies if one.measured is not None]
    weights = [one.weight for one in tallies if one.weight is not None]
    if weights:
        return sum(numbers) / sum(weights) if sum(weights) else None
    largest = max(numbers, default=math.inf)
    return largest if math.isfinite(largest) else None  # NaN or infinity: its seconds are bad
