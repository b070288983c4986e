"""Indicators of the time of steps and between them: goodput, restore time, device utilisation, cost per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from plinth.operation.indicators.facts import RunFacts
from plinth.operation.indicators.parameters import Objectives
from plinth.operation.indicators.tallies import Tally, TallyPart, joined
from plinth.training.telemetry.goodput.ledger import TimeSpan

#: Parts of a step in which a device computes (`telemetry.step_clock`).
COMPUTING: Final = ("forward", "backward", "optimizer")
#: A sample stands for the time since the one before, at most so many seconds: jobs are not sampled between them.
SAMPLE_S: Final = 120.0


def goodput(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Seconds of steps that count are good."""
    return _of_spans("goodput", run, lambda span: TallyPart(span.begin_us, span.us, _good(span)))


def restore_time(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Each attempt's restore is good up to the bound."""
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
    """Devices as busy as their samples say; where none is sampled, ranks as they compute in steps that count."""
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
    """Rank-seconds that are paid for are good as far as the tokens of their steps pay for them at the objective.

    Without an objective there are no seconds, and money and tokens alone.
    """
    price = run.price
    if not price:
        return
    allowed = (objectives.cost_per_million_tokens or 0.0) / 1e6 / price * 3600e6  # rank-microseconds a token may take
    for one, spans in zip(run.attempts, run.spans, strict=True):
        parts = (_paid(span, one.ranks, price, run.tokens, allowed) for span in spans)
        for made in joined("cost per token", run.run, one.ranks, parts):
            yield made if allowed else made._replace(good_us=0, total_us=0)


def _paid(span: TimeSpan, ranks: int, price: float, tokens: Mapping[int, int], allowed: float) -> TallyPart:
    """Money of a span; tokens stand with the time of their step that counts, of which there is one."""
    own = tokens.get(span.step, 0) if span.cause == "goodput" and span.step is not None else 0
    good = min(max(0, span.us), round(own * allowed / ranks))
    return TallyPart(span.begin_us, span.us, good, span.us * ranks / 3600e6 * price, own / 1e6)


def _of_spans(indicator: str, run: RunFacts, piece: Callable[[TimeSpan], TallyPart]) -> Iterator[Tally]:
    for one, spans in zip(run.attempts, run.spans, strict=True):
        yield from joined(indicator, run.run, one.ranks, map(piece, spans))


def _good(span: TimeSpan) -> int:
    return span.us if span.cause == "goodput" else 0


def _computing(event: Any) -> float:
    """Share of a step's own time in which a device computes; of timelines that do not divide it, all of it."""
    parts = event.get("parts")
    if parts is None:
        return 1.0
    own = sum(seconds for name, seconds in parts.items() if name not in ("data", "checkpoint"))
    return sum(parts.get(name, 0.0) for name in COMPUTING) / own if own > 0 else 0.0


def _sampled(run: RunFacts) -> Iterator[Tally]:
    """A sample stands for the time since the one before it, of the same node."""
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
