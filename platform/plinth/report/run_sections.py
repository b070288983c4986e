"""Sections of a run's page: attempts, the guard's interventions, the parts of a step, probes, sections from packages;
number formatting.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.evaluation.probes.noise import Worth
from plinth.extensions import Catalogue
from plinth.report import run_panels as panels
from plinth.report import style
from plinth.report.run_metrics import Event, RunMetrics
from plinth.report.run_panels import INNER, LEFT, Panel, PanelLine, TimeAxis
from plinth.report.style import colours
from plinth.text import counted
from plinth.training.attempts import AttemptRecord, known, opened
from plinth.training.config import RunConfig
from plinth.training.telemetry.goodput_account import account
from plinth.training.telemetry.step_clock import PARTS
from plinth.training.validation.probe_curves import curves, value
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust


@dataclass(frozen=True, kw_only=True)
class AddedSection:
    """A section that a package adds to the page of a run, between rank-seconds and metrics.

    Args:
        name: anchor of the section.
        title: title in the table of contents.
        html: `(context, configuration)` -> HTML, computed from the run's files; empty if there is nothing to show.
        question: the question that the command answers, shown in the list of next steps.
        command: `plinth … RUN`; the page replaces RUN by the id of the run.
    """

    name: str
    title: str
    html: Callable[[Any, Any], str]
    question: str
    command: str


SECTIONS = Catalogue("plinth.run_sections", "section of a run's page", AddedSection, {})


def number(value: Any) -> str:
    """Format a number with four digits. None becomes empty text, and text is unchanged."""
    return f"{value:.4g}" if isinstance(value, int | float) else "" if value is None else str(value)


def percents(value: float) -> str:
    """Format a percentage with three digits."""
    return f"{value:.3g}%"


def watts(value: float) -> str:
    """Format a power in whole watts."""
    return f"{value:,.0f} W"


def degrees(value: float) -> str:
    """Format a temperature in degrees Celsius."""
    return f"{value:.3g} °C"


def seconds(value: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if value < 100:
        return f"{value:.3g} s"
    hours, rest = divmod(round(value), 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"


DOCUMENTS_SHOWN, SOURCES_SHOWN = 3, 3


def attested(ctx: Context, config: RunConfig) -> dict[str, Any]:
    """Return the attempts of a run, and the reason if they cannot be verified here."""
    try:
        envelopes = known(config.directory)
        authority = Trust.of(ctx.workspace).authority(TRAINER) if envelopes else None
        return {"attempts": opened(envelopes, authority, config.run_id)} if authority else {}
    except PlinthError as error:
        return {"unproved": f"The attempts are not proved: {error.what}"}


def attempts(events: Sequence[Event], records: Sequence[AttemptRecord]) -> list[dict[str, Any]]:
    """Return one row per attempt of a run: its machines, and the proofs in its attestation and by replays of steps."""
    replayed, current = Counter[int](), 0
    for event in events:
        if event["event"] == "run_started":
            current = int(event.get("attempt", 0))
        replayed[current] += event["event"] == "replay_checked"
    return [
        {
            "number": one.number,
            "at": one.at.replace("T", " ").removesuffix("+00:00"),
            "step": one.from_step,
            "place": f"{counted(one.ranks, 'rank')} on {_hosts(one)}",
            "proofs": "; ".join(_proofs(one, replayed[one.number])),
        }
        for one in records
    ]


def _hosts(one: AttemptRecord) -> str:
    names = sorted({host.host for host in one.hosts})
    return ", ".join(names) if len(names) <= 4 else counted(len(names), "machine")


def _proofs(one: AttemptRecord, replayed: int) -> Iterator[str]:
    if one.audit:
        yield "replay of the last steps"
    if one.contract:
        yield f"contract {one.contract[:12]}"
    if one.upgrade is not None:
        yield f"new code: {one.upgrade.in_words}"
    if one.continuation is not None:
        yield one.continuation.in_words
    if replayed:
        yield f"by the timeline, {counted(replayed, 'sampled step')} replayed with equal results"


def interventions(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return one row per intervention of the guard. Consecutive skips for the same reason share a row."""
    named = {_act(event): event for event in events if event["event"] == "documents"}
    groups: list[list[Event]] = []
    for event in (event for event in events if event["event"] == "intervention"):
        if groups and _goes_on(groups[-1][-1], event):
            groups[-1].append(event)
        else:
            groups.append([event])
    return [_row(group, [named[_act(event)] for event in group if _act(event) in named]) for group in groups]


def _act(event: Event) -> tuple[Any, ...]:
    """Return a key that is equal for an intervention and the event that names its documents."""
    return event.get("action"), event.get("rule"), event.get("number"), tuple(event.get("window") or ())


def _goes_on(before: Event, event: Event) -> bool:
    alike = all(before.get(name) == event.get(name) for name in ("rule", "action", "reason"))
    return alike and event.get("action") == "skip" and before["window"][1] + 1 == event["window"][0]


def _row(group: Sequence[Event], named: Sequence[Event]) -> dict[str, Any]:
    first, last = group[0], group[-1]
    window = [*first.get("window", ())[:1], *last.get("window", ())[1:]]
    worst = max(group, key=lambda event: float(event.get("value") or 0.0))
    return {
        "step": _span([first.get("step", ""), last.get("step", "")]),
        "rule": first.get("rule", ""),
        "value": number(worst.get("value")),
        "threshold": number(worst.get("threshold")),
        "action": first.get("action", ""),
        "why": first.get("reason", ""),
        "weight": "" if first.get("action") == "warn" else "bad",
        "window": _span(window) if window == sorted(window) else "none",
        "documents": _documents(named),
    }


def _span(values: Sequence[Any]) -> str:
    return "–".join(dict.fromkeys(map(str, values)))


def _documents(named: Sequence[Event]) -> str:
    """List the sources that have a larger share of tokens in a window than before, and some documents of the window."""
    if not named:
        return ""
    unknown = next((event["unknown"] for event in named if "unknown" in event), None)
    if unknown is not None:
        return str(unknown)
    sources = [source for source in named[0].get("sources", ()) if source["share"] > source["share_before"]]
    shares = [
        f"{source['source']} ({source['bucket']}) {source['share']:.0%} of the tokens, "
        f"{source['share_before']:.0%} before"
        for source in sources[:SOURCES_SHOWN]
    ]
    listed = list(dict.fromkeys(one["uri"] for event in named for one in event.get("documents", ())))
    total = sum(event.get("documents_count", 0) for event in named)
    names = f"{counted(total, 'document')}, such as {', '.join(listed[:DOCUMENTS_SHOWN])}"
    return "; ".join([*shares, *([names] if listed else [])])


# The parts of a step over a run as stacked shares: data, host, forward, backward, communication and so on.
#
# Steps that are close together on the page are drawn as one interval, with the mean of their shares.

#: Stretches that are drawn at most.
STRETCHES = 120

#: An interval extends to the next one, unless the gap is longer than this number of intervals, because no process
#: trained then.
WIDEST = 3

#: Seconds by part under the name that `panels.shares` draws, and the place on the canvas.
Stretch = tuple[dict[str, dict[str, float]], tuple[float, float]]


def stretches(measured: RunMetrics, scale: TimeAxis) -> list[Stretch]:
    """Return the fraction of time for each part of a step, in each interval that has steps. The list is empty if no
    step records its parts."""
    series = {part: measured.series[f"part:{part}"] for part in PARTS if f"part:{part}" in measured.series}
    if not series:
        return []
    places = scale.of(next(iter(series.values())))
    count = min(STRETCHES, 2 * len(places))  # of few steps each has a stretch of its own
    width = INNER / count
    sums: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    for part, own in series.items():
        for place, share in zip(places, own.values, strict=True):
            if math.isfinite(share):
                sums[min(int((scale.at(place) - LEFT) / width), count - 1)][part] += share
    ordered = sorted(sums)
    ends = [*ordered[1:], math.inf]
    return [
        (
            {"realised": {part: share / sum(sums[column].values()) for part, share in sums[column].items()}},
            (LEFT + width * column, min(LEFT + width * min(end, column + WIDEST), LEFT + INNER)),
        )
        for column, end in zip(ordered, ends, strict=True)
        if sum(sums[column].values()) > 0
    ]


def drawn(found: Sequence[Stretch], scale: TimeAxis) -> dict[str, Any]:
    """Return the figure with the parts of a step, and the names of the parts with their colors."""
    rows, places = [row for row, _ in found], [place for _, place in found]
    lines = [{"name": name, "colour": colour, "faint": False} for name, colour in colours(PARTS).items()]
    return {"lines": lines, "svg": panels.shares(rows, places, scale, "parts of a step", "parts")}


#: Scores of each probe in runs that differ only by seed, this run's score first.
OverSeeds = Mapping[str, Sequence[float]]


def worths(measured: RunMetrics, over_seeds: OverSeeds) -> dict[str, Worth]:
    """Return signal and noise of each probe at its last evaluation."""
    looks = curves(measured.events)
    return {name: value(own, over_seeds.get(name, ())) for name, own in sorted(looks.items()) if own}


def panel(measured: RunMetrics, over_seeds: OverSeeds) -> Panel:
    """Return the panel of probe scores, with bands of one standard deviation. The probes' controls have a paler
    tone."""
    found, palette = worths(measured, over_seeds), style.colours(measured.probes)
    lines = [
        PanelLine(name, series, palette[name], band=(found[name].noise or 0.0) if name in found else 0.0)
        for name, series in sorted(measured.probes.items())
    ]
    lines += [
        PanelLine(f"{name}, control", series, palette[name], faint=True)
        for name, series in sorted(measured.controls.items())
    ]
    return Panel("probes", "probes, bits per byte of the correct answers", lines, number, height=190)


def rows(measured: RunMetrics, over_seeds: OverSeeds) -> list[dict[str, Any]]:
    """Return one table row per probe of the last evaluation."""
    found = worths(measured, over_seeds)
    last: Mapping[str, Any] = next((event["probes"] for event in reversed(measured.events) if event.get("probes")), {})
    return [_probe_row(name, last[name], found[name]) for name in sorted(last) if name in found]


def share(measured: RunMetrics) -> str:
    """Return a sentence with the time that probes took, and the fraction of the run's time."""
    spent = math.fsum(float(event.get("probe_seconds", 0.0)) for event in measured.events)
    held = account(measured.events).held_s
    looks = sum(bool(event.get("probes")) for event in measured.events)
    if held <= 0:
        return ""
    took = f"{spent:.3g} s, {style.percent(spent / held)} of the run's time"
    return f"{counted(looks, 'probe evaluation')} took {took}."


def _probe_row(name: str, scores: Mapping[str, Any], worth: Worth) -> dict[str, Any]:
    over = f" over {worth.seeds} seeds" if worth.seeds else f" over {worth.checkpoints} evaluations"
    return {
        "name": name,
        "count": f"{scores['items']:,}",
        "score": number(scores["score"]),
        "noise": number(worth.noise) + over if worth.noise is not None else "unknown",
        "control": number(scores["control"]),
        "signal": number(worth.signal),
        "ratio": "" if worth.snr is None else f"{worth.snr:.3g}",
        "margin": number(scores.get("margin")),
        "accuracy": "" if scores.get("accuracy") is None else style.percent(scores["accuracy"]),
        "words": _words(worth),
        "weight": "good" if worth.decides else "soft",
    }


def _words(worth: Worth) -> str:
    if worth.decides:
        return "signal above noise"
    found = "no signal" if worth.signal <= 0 else "unknown noise" if worth.snr is None else "signal within its noise"
    return f"{found}; the probe can neither stop the run nor decide a gate"
