"""The page of one training run: what happened, why, and what it cost, on one axis. Self-contained.

Everything is drawn before the page is written; its script only reads values out at the pointer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from plinth.records import Frozen
from plinth.report import panels, style
from plinth.report.course_of_run import Cost, Course, Event, Series, course, words
from plinth.report.panels import Axis, Line, Panel, Scale
from plinth.report.style import ACCENT, FAINT, MUTED, PALETTE, WARNING

if TYPE_CHECKING:
    from jinja2 import Template

#: Ordinary events are counted, not listed.
UNLISTED = frozenset({"step", "checkpoint", "evaluated", "uploaded", "documents", "skipped", "removed"})
DOCUMENTS_SHOWN = 5


class About(Frozen):
    """What the page says of a run besides its timeline.

    Attributes:
        flops_per_token: of training, exact; gives FLOP/s.
        peak_flops: of one device in the run's precision; gives the model FLOPs utilisation (Chowdhery et al. 2022).
        price_per_rank_hour: in `currency`.
        mixture: rows of `tokens.realised.course`, with the tokens of a sequence.
    """

    run_id: str
    description: str = ""
    ranks: int = 1
    total_steps: int = 0
    total_tokens: int = 0
    flops_per_token: float = 0.0
    peak_flops: float | None = None
    price_per_rank_hour: float | None = None
    currency: str = "USD"
    mixture: tuple[Mapping[str, Any], ...] = ()
    sequence_tokens: int = 0


def page(events: Sequence[Event], about: About) -> str:
    """The page as HTML. The same timeline gives the same bytes, also of a run that is under way."""
    told = course(events)
    views = [_view(axis, told, about) for axis in ("time", "step")]
    pointed = {f"{view['axis']}-{panel['key']}": panel["points"] for view in views for panel in view["panels"]}
    return _template().render(
        title=f"Run {about.run_id}",
        subtitle=about.description,
        facts=_facts(told, about),
        spent=_spent(told.cost),
        views=views,
        interventions=_interventions(told.events),
        events=_events(told),
        next=_next(told, about),
        points=json.dumps(pointed, separators=(",", ":")).replace("<", "\\u003c"),
        width=panels.WIDTH,
    )


def _view(axis: Axis, told: Course, about: About) -> dict[str, Any]:
    scale = Scale(axis, told)
    made = []
    for panel in _panels(told, about):
        drawn = panels.draw(panel, scale, told.marks)
        if drawn:
            lines = [{"name": line.name, "colour": line.colour} for line in panel.lines]
            points = panels.points(panel, scale)
            made.append({"key": panel.key, "title": panel.title, "lines": lines, "svg": drawn, "points": points})
    made += _extra(told, about, scale)
    return {"axis": axis, "panels": made, "ruler": panels.ruler(scale)}


def _panels(told: Course, about: About) -> list[Panel]:
    s = told.series
    palette = style.colours(told.slices)
    speed = s.get("tokens_per_s", Series())
    flops = Series(speed.times, speed.steps, [v * about.flops_per_token / about.ranks for v in speed.values])
    peak = about.peak_flops
    used = Series(flops.times, flops.steps, [v / peak for v in flops.values]) if peak else flops
    return [
        Panel("loss", "loss, nats per token", [
            Line("each step", s.get("loss", Series()), ACCENT, faint=True),
            Line("smoothed", s.get("loss_ema", Series()), ACCENT),
        ], _number, height=190),
        Panel("slices", "held-out slices and probes", [
            Line(name, one, palette[name]) for name, one in sorted(told.slices.items())
        ], _number, height=130),
        Panel("grad_norm", "gradient norm", [
            Line("global", s.get("grad_norm", Series()), PALETTE[2])], _number, log=True),
        Panel("lr", "learning rate", [Line("rate", s.get("lr", Series()), MUTED)], _number, zero=True, height=64),
        Panel("tokens_per_s", "tokens per second", [Line("all ranks", speed, PALETTE[1])], style.count, zero=True),
        Panel("mfu", "model FLOPs utilisation" if peak else "FLOP/s of one rank, as the model counts them",
              [Line("utilisation" if peak else "FLOP/s", used, PALETTE[3])],
              style.percent if peak else style.count, zero=True, height=84),
        Panel("wait", "share of a step that waited for data", [
            Line("waiting", s.get("data_wait_share", Series()), PALETTE[5])], style.percent, zero=True, height=64),
        Panel("memory", "memory of the leading rank", [
            Line("resident", s.get("memory_bytes", Series()), PALETTE[4])], style.size, zero=True, height=64),
        Panel("age", "age of the last checkpoint", [
            Line("age", s.get("checkpoint_age_s", Series()), MUTED)], _seconds, zero=True, height=64),
    ]  # fmt: skip


def _extra(told: Course, about: About, scale: Scale) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if told.layers:
        drawn = panels.heat(told.layers, scale, told.marks, "gradient norm by layer")
        made.append({"key": "layers", "title": "gradient norm by layer, darker is larger", "svg": drawn})
    places = _places(told, about, scale)
    if places:
        rows = [row for row, _ in places]
        names = sorted(rows[0]["realised"])
        lines = [{"name": name, "colour": PALETTE[i % len(PALETTE)]} for i, name in enumerate(names)]
        drawn = panels.shares(rows, [place for _, place in places], "mixture")
        made.append({"key": "mixture", "title": "mixture", "lines": lines, "svg": drawn})
    return [{"lines": [], "points": {}, **one} for one in made if one["svg"]]


def _places(told: Course, about: About, scale: Scale) -> list[tuple[Mapping[str, Any], tuple[float, float]]]:
    """Stretches of the mixture that the run has come to, and where they lie on the axis."""
    tokens = told.series.get("tokens")
    if tokens is None or not about.mixture:
        return []
    reached = list(zip(scale.of(tokens), tokens.values, strict=True))
    if scale.axis == "time":
        reached.sort()
    found, before = [], scale.low
    for row in about.mixture:
        end = row["stop"] * about.sequence_tokens
        at = next((x for x, value in reached if value >= end and x >= before), None)
        stop = reached[-1][0] if at is None else at
        if stop > before:
            found.append((row, (scale.at(before), scale.at(stop))))
        before = max(before, stop)
        if at is None:
            break
    return found


def _facts(told: Course, about: About) -> list[dict[str, str]]:
    cost, series = told.cost, told.series
    speeds = sorted(v for v in series["tokens_per_s"].values) if "tokens_per_s" in series else []
    median = speeds[len(speeds) // 2] if speeds else 0.0
    flops = median * about.flops_per_token / about.ranks
    facts = [
        ("steps", f"{told.last_step:,}", f"of {about.total_steps:,}" if about.total_steps else ""),
        ("loss, smoothed", _number(series["loss_ema"].values[-1]) if "loss_ema" in series else "", "nats per token"),
        ("tokens", style.count(cost.tokens), f"of {style.count(about.total_tokens)}" if about.total_tokens else ""),
        ("tokens per second", style.count(median), "median over steps"),
        ("utilisation", style.percent(flops / about.peak_flops), "of the device's peak")
        if about.peak_flops
        else ("FLOP/s of a rank", style.count(flops), "no peak was stated"),
        ("goodput", style.percent(cost.goodput), "of the clock on steps that count"),
        ("lost", _seconds(cost.lost_s), f"{cost.lost_steps:,} steps done again or undone"),
        ("restarts", str(cost.restarts), f"{cost.interventions} acts of the guard, {cost.skipped_steps} steps skipped"),
        ("rank hours", f"{cost.rank_hours:,.2f}", f"{about.ranks} ranks by the clock"),
    ]
    if about.price_per_rank_hour is not None:
        money = cost.rank_hours * about.price_per_rank_hour
        wasted = money * (1 - cost.goodput)
        facts.append(("money", f"{money:,.2f} {about.currency}", f"{wasted:,.2f} of it not on steps that count"))
    return [{"label": label, "value": value, "note": note} for label, value, note in facts]


def _spent(cost: Cost) -> list[dict[str, Any]]:
    parts = (
        ("steps that count", cost.useful_s, PALETTE[2]),
        ("waiting for data", cost.wait_s, PALETTE[1]),
        ("standing still for checkpoints", cost.save_s, PALETTE[4]),
        ("steps lost", cost.lost_s, WARNING),
        ("start, resume, back-off, the rest", cost.idle_s, FAINT),
    )
    total = sum(seconds for _, seconds, _ in parts) or 1.0
    return [
        {
            "name": name,
            "share": round(100 * seconds / total, 3),
            "colour": colour,
            "words": f"{_seconds(seconds)} ({style.percent(seconds / total)})",
        }
        for name, seconds, colour in parts
    ]


def _interventions(events: Sequence[Event]) -> list[dict[str, Any]]:
    named = {event.get("number"): event for event in events if event["event"] == "documents"}
    return [
        {
            "step": event.get("step", ""),
            "rule": event.get("rule", ""),
            "value": _number(event.get("value")),
            "threshold": _number(event.get("threshold")),
            "action": event.get("action", ""),
            "window": "–".join(map(str, event.get("window") or ())),
            "documents": _documents(named.get(event.get("number"))),
        }
        for event in events
        if event["event"] == "intervention"
    ]


def _documents(event: Event | None) -> str:
    if event is None:
        return ""
    counted = ", ".join(
        f"{name} {count:,}" if isinstance(count, int) else str(name)
        for key in ("sources", "buckets")
        for name, count in _pairs(event.get(key))
    )
    listed = event.get("documents") or []
    shown = (one.get("id", one) if isinstance(one, Mapping) else one for one in listed[:DOCUMENTS_SHOWN])
    names = ", ".join(str(one)[:12] for one in shown)
    more = f" and {len(listed) - DOCUMENTS_SHOWN:,} more" if len(listed) > DOCUMENTS_SHOWN else ""
    return "; ".join(part for part in (counted, f"{names}{more}" if names else "") if part)


def _pairs(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(name), count) for name, count in value.items()]
    return [(str(name), None) for name in value or ()]


def _events(told: Course) -> list[dict[str, Any]]:
    rows, counts, step = [], dict[str, int](), 0
    for event in told.events:
        step = int(event.get("step", step) or 0)
        if event["event"] in UNLISTED:
            counts[event["event"]] = counts.get(event["event"], 0) + 1
            continue
        weight = next((mark.weight for mark in told.marks if mark.kind == event["event"]), "")
        after = _seconds(float(event["time"]) - told.first_time)
        rows.append({"after": after, "step": step, "kind": event["event"], "weight": weight, "text": words(event)})
    summed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
    return [*rows, {"after": "", "step": "", "kind": "besides", "weight": "", "text": summed}]


def _next(told: Course, about: About) -> list[dict[str, str]]:
    bad = next((mark.step for mark in told.marks if mark.kind == "intervention"), max(1, told.last_step))
    return [
        {"what": "the documents of a step", "command": f"plinth batch {about.run_id} {bad}"},
        {"what": "a step's loss, document by document", "command": f"plinth replay {about.run_id} {bad}"},
        {"what": "which sources a step's loss came from", "command": f"plinth blame {about.run_id} {bad}"},
        {"what": "what is committed, and whether it is intact", "command": f"plinth checkpoint list {about.run_id}"},
        {"what": "prove that a resume is exact", "command": f"plinth audit resume {about.run_id}"},
    ]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "" if value is None else str(value)


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"


@cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("plinth.report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("run_page.html.j2")
