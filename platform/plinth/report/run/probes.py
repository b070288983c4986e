"""Probes on the page of a run: curves over steps with their noise, and a table that says which of them may decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plinth.evaluation.probes.noise import Worth
from plinth.report import style
from plinth.report.run.metrics import RunMetrics
from plinth.report.run.panels import Panel, PanelLine
from plinth.report.run.sections import number
from plinth.text import counted
from plinth.training.telemetry.goodput.account import account
from plinth.training.validation.probe_curves import curves, value

#: Scores of a probe over runs that differ by the seed alone, this one's first.
OverSeeds = Mapping[str, Sequence[float]]


def worths(measured: RunMetrics, over_seeds: OverSeeds) -> dict[str, Worth]:
    """What each probe is worth at its last look."""
    looks = curves(measured.events)
    return {name: value(own, over_seeds.get(name, ())) for name, own in sorted(looks.items()) if own}


def panel(measured: RunMetrics, over_seeds: OverSeeds) -> Panel:
    """Scores with a band of one standard deviation to either side, and faint the controls."""
    found, palette = worths(measured, over_seeds), style.colours(measured.probes)
    lines = [
        PanelLine(name, series, palette[name], band=(found[name].noise or 0.0) if name in found else 0.0)
        for name, series in sorted(measured.probes.items())
    ]
    lines += [
        PanelLine(f"{name}, control", series, palette[name], faint=True)
        for name, series in sorted(measured.controls.items())
    ]
    return Panel("probes", "probes, bits per byte of the right answers", lines, number, height=190)


def rows(measured: RunMetrics, over_seeds: OverSeeds) -> list[dict[str, Any]]:
    """A row for each probe of the last look."""
    found = worths(measured, over_seeds)
    last: Mapping[str, Any] = next((event["probes"] for event in reversed(measured.events) if event.get("probes")), {})
    return [_row(name, last[name], found[name]) for name in sorted(last) if name in found]


def share(measured: RunMetrics) -> str:
    """What the looks took of the run, in words."""
    spent = math.fsum(float(event.get("probe_seconds", 0.0)) for event in measured.events)
    held = account(measured.events).held_s
    looks = sum(bool(event.get("probes")) for event in measured.events)
    if held <= 0:
        return ""
    return f"{counted(looks, 'evaluation')} took {spent:.3g} s, {style.percent(spent / held)} of the run's time."


def _row(name: str, scores: Mapping[str, Any], worth: Worth) -> dict[str, Any]:
    over = f" over {worth.seeds} seeds" if worth.seeds else f" over {worth.checkpoints} looks"
    return {
        "name": name,
        "count": f"{scores['items']:,}",
        "score": number(scores["score"]),
        "noise": number(worth.noise) + over if worth.noise is not None else "not known yet",
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
        return "may decide"
    found = "no signal" if worth.signal <= 0 else "noise not known yet" if worth.snr is None else "within its noise"
    return f"{found}: stops nothing and opens or closes no gate"
