"""Self-contained page of one training run: metrics, events and cost over one axis.

All curves are drawn when the page is written. A script in the page shows values at the pointer and zooms.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import merge
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.model import architectures as planned
from plinth.records import Frozen
from plinth.report import run_panels as panels
from plinth.report import run_sections as sections
from plinth.report import style
from plinth.report.figures import gathered
from plinth.report.page import template
from plinth.report.run_metrics import MARKED, Event, RunMetrics, Series, run_metrics, words
from plinth.report.run_panels import Axis, Panel, PanelLine, TimeAxis
from plinth.report.run_sections import SECTIONS, AddedSection, degrees, interventions, number, percents, seconds, watts
from plinth.report.style import ACCENT, MUTED, PALETTE
from plinth.storage.atomic import write_bytes
from plinth.text import counted
from plinth.tokens.mixture.apportion import shares_over_run
from plinth.training.attempts import AttemptRecord
from plinth.training.config import RunConfig
from plinth.training.parameters.trainer import UNPROVED
from plinth.training.telemetry import timeline
from plinth.training.telemetry.devices import read_samples
from plinth.training.telemetry.goodput import CAUSES, GoodputLedger
from plinth.training.telemetry.goodput_account import account
from plinth.training.telemetry.timeline import LABELS, read_events
from plinth.training.validation import probe_curves
from plinth.training.validation.probe_curves import curves

#: Events that end a run's job.
ENDS = frozenset({"finished", "failed", "lost", "stopped"})
#: Ordinary events are counted, not listed.
UNLISTED = frozenset({"step", "checkpoint", "evaluated", "uploaded", "retired", "skipped", "devices"})
UNLISTED |= {"intervention", "documents"}  # which have a table of their own


class About(Frozen):
    """Facts about a run that its timeline does not contain.

    Attributes:
        flops_per_token: pairs (first step, training FLOPs per token) in order; each value applies from its step on.
        peak_flops: peak FLOP/s of one device in the run's precision; used for the model FLOPs utilization (Chowdhery et
            al. 2022).
        price_per_rank_hour: price in `currency`.
        attempts: signed starts of the ranks; unproved: reason if their signatures or their chain do not verify.
        over_seeds: last score of each probe in this run, and in runs that differ from it only by seed.
        added: sections from other packages, each with its HTML.
        mixture: rows of `apportion.shares_over_run`.
        sequence_tokens: tokens per sequence.
    """

    run_id: str
    description: str = ""
    ranks: int = 1
    total_steps: int = 0
    total_tokens: int = 0
    flops_per_token: tuple[tuple[int, float], ...] = ()
    peak_flops: float | None = None
    price_per_rank_hour: float | None = None
    currency: str = "USD"
    added: tuple[tuple[AddedSection, str], ...] = ()
    mixture: tuple[Mapping[str, Any], ...] = ()
    sequence_tokens: int = 0
    attempts: tuple[AttemptRecord, ...] = ()
    unproved: str = ""
    over_seeds: Mapping[str, Sequence[float]] = {}


def page(events: Sequence[Event], about: About) -> str:
    """Return the page of a run as HTML. The same timeline gives the same bytes, even while the run is in progress."""
    measured = run_metrics(events)
    ledger = account(measured.events, about.ranks)
    views = [_view(axis, measured, about) for axis in ("time", "step")]
    return template("run_page.html.j2").render(
        title=f"Run {about.run_id}",
        subtitle=about.description,
        verdict=_verdict(measured, about),
        tone={"finished": "pass", "failed": "fail", "lost": "fail", "stopped": "look"}.get(_end(measured), ""),
        findings=_findings(measured, about, ledger),
        facts=_facts(measured, about),
        added=[{"name": one.name, "title": one.title, "html": html} for one, html in about.added if html],
        spent=_spent(ledger),
        queued=bool(ledger.rank_us["queue"]),
        views=views,
        probes=sections.rows(measured, about.over_seeds),
        probes_cost=sections.share(measured),
        interventions=interventions(measured.events),
        attempts=sections.attempts(measured.events, about.attempts),
        unproved=about.unproved,
        events=_events(measured),
        next=_next(measured, about),
    )


def _verdict(measured: RunMetrics, about: About) -> str:
    """Return one sentence on the run: state, step, loss, restarts and interventions."""
    state = {"finished": "Finished", "stopped": "Stopped", "failed": "Failed", "lost": "Failed"}
    of = f" of {about.total_steps:,}" if about.total_steps else ""
    found = timeline.of_events(measured.events).rounded()
    loss = f", loss {found['final_loss']}" if "final_loss" in found else ""
    rest = f"{counted(measured.cost.restarts, 'restart')}, {counted(measured.cost.interventions, 'intervention')}"
    return f"{state.get(_end(measured), 'Not ended yet,')} at step {measured.last_step:,}{of}{loss}; {rest}."


def _end(measured: RunMetrics) -> str:
    """Return the name of the event that ended the last job, or `job_started` if the job has not ended."""
    ends = {"job_started", *ENDS}
    return next((event["event"] for event in reversed(measured.events) if event["event"] in ends), "")


def _findings(measured: RunMetrics, about: About, ledger: GoodputLedger) -> dict[str, str]:
    """Return the heading of each section, which is a sentence with the section's main result."""
    losses, last = measured.series.get("loss", Series()).values, timeline.of_events(measured.events).final_loss
    probes, cost = sections.worths(measured, about.over_seeds).values(), measured.cost
    return {
        "cost": f"{style.percent(ledger.goodput)} of the rank-seconds were spent on kept steps",
        "metrics": style.change("Training loss", losses[0], last, measured.last_step) if losses else "",
        "probes": f"Probes with a signal above noise: {sum(one.decides for one in probes)} of {len(probes)}",
        "interventions": f"The guard made {counted(cost.interventions, 'intervention')}",
        "attempts": about.unproved or f"The trainer signed {counted(len(about.attempts), 'attempt')}",
        "events": f"The run had {counted(cost.restarts, 'restart')} in {counted(cost.jobs, 'job')}",
    }


def _view(axis: Axis, measured: RunMetrics, about: About) -> dict[str, Any]:
    scale = TimeAxis(axis, measured)
    made = []
    for panel in _panels(measured, about):
        drawn = panels.draw(panel, scale, measured.marks)
        if drawn:
            lines = [{"name": line.name, "colour": line.colour, "faint": line.faint} for line in panel.lines]
            made.append({"key": panel.key, "title": panel.title, "lines": lines, "svg": drawn})
    made += _extra(measured, about, scale)
    return {"axis": axis, "panels": made, "ruler": panels.ruler(scale)}


def _panels(measured: RunMetrics, about: About) -> list[Panel]:
    s = measured.series
    palette = style.colours(measured.slices)
    speed = s.get("tokens_per_s", Series())
    flops, peak = _flops(measured, about), about.peak_flops
    used = Series(flops.times, flops.steps, [v / peak for v in flops.values]) if peak else flops
    return [
        Panel("loss", "loss, nats per token", [
            PanelLine("each step", s.get("loss", Series()), ACCENT, faint=True),
            PanelLine("smoothed", s.get("loss_ema", Series()), ACCENT),
        ], number, height=190),
        Panel("slices", "bits per byte of held-out slices", [
            PanelLine(name, one, palette[name]) for name, one in sorted(measured.slices.items())
        ], number, height=130),
        sections.panel(measured, about.over_seeds),
        Panel("grad_norm", "gradient norm", [
            PanelLine("global", s.get("grad_norm", Series()), PALETTE[2])], number, log=True),
        Panel("experts_load", "largest load of an expert, relative to its layer's mean", [
            PanelLine("load", s.get("experts_most", Series()), PALETTE[3])], number, height=64),
        Panel("experts_idle", "idle experts, over all layers", [
            PanelLine("experts", s.get("experts_idle", Series()), PALETTE[5])], number, zero=True, height=64),
        Panel("experts_entropy", "mean entropy of the routers, in nats", [
            PanelLine("entropy", s.get("experts_entropy", Series()), PALETTE[1])], number, height=64),
        Panel("lr", "learning rate", [PanelLine("rate", s.get("lr", Series()), MUTED)], number, zero=True, height=64),
        Panel("tokens_per_s", "tokens per second", [PanelLine("all ranks", speed, PALETTE[1])], style.count, zero=True),
        Panel("mfu", "model FLOPs utilization" if peak else "model FLOP/s of one rank",
              [PanelLine("utilization" if peak else "FLOP/s", used, PALETTE[3])],
              style.percent if peak else style.count, zero=True, height=84),
        Panel("wait", "fraction of a step spent waiting for data", [
            PanelLine("waiting", s.get("data_wait_share", Series()), PALETTE[5])], style.percent, zero=True, height=64),
        Panel("slowest", "speed of the slowest rank, as a fraction of the fastest", [
            PanelLine("score", s.get("slowest_score", Series()), PALETTE[5])], style.percent, zero=True, height=64),
        Panel("memory", "memory of the leading rank's process on the host", [
            PanelLine("peak", s.get("host_memory_bytes", Series()), PALETTE[4])], style.size, zero=True, height=64),
        Panel("device_memory", "memory of the leading rank's device", [
            PanelLine(name, s.get(f"device_{name}_bytes", Series()), PALETTE[at])
            for at, name in enumerate(("allocated", "reserved", "peak"))], style.size, zero=True, height=84),
        Panel("gpu_utilisation", "mean utilization of a node's GPUs", [
            PanelLine("utilization", s.get("gpu_utilisation", Series()), PALETTE[3])], percents, zero=True, height=64),
        Panel("gpu_power", "total power of a node's GPUs", [
            PanelLine("power", s.get("gpu_power_w", Series()), PALETTE[1])], watts, zero=True, height=64),
        Panel("gpu_temperature", "temperature of the hottest GPU of a node", [
            PanelLine("temperature", s.get("gpu_temperature_c", Series()), PALETTE[5])], degrees, height=64),
        Panel("age", "age of the last checkpoint", [
            PanelLine("age", s.get("checkpoint_age_s", Series()), MUTED)], seconds, zero=True, height=64),
    ]  # fmt: skip


def _flops(measured: RunMetrics, about: About) -> Series:
    """Return FLOP/s per rank at each step, from the FLOPs per token and the number of ranks at that step."""
    speed, ranks = measured.series.get("tokens_per_s", Series()), measured.series.get("ranks", Series())
    starts = [first for first, _ in about.flops_per_token]
    values = [
        tokens * about.flops_per_token[max(0, bisect_right(starts, step) - 1)][1] / (among or about.ranks)
        for step, tokens, among in zip(speed.steps, speed.values, ranks.values, strict=True)
        if starts
    ]
    return Series(speed.times, speed.steps, values) if starts else Series()


def _extra(measured: RunMetrics, about: About, scale: TimeAxis) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if measured.layers:
        drawn = panels.heat(measured.layers, scale, measured.marks, "gradient norm by layer")
        made.append({"key": "layers", "title": "gradient norm by layer, darker is larger", "svg": drawn})
    if measured.experts:
        title = "largest load of an expert by layer"
        drawn = panels.heat(measured.experts, scale, measured.marks, title, "experts")
        made.append({"key": "experts", "title": f"{title}, relative to the mean; darker is larger", "svg": drawn})
    divided = sections.stretches(measured, scale)
    if divided:
        made.append({"key": "parts", "title": "parts of a step, of the leading rank", **sections.drawn(divided, scale)})
    places = _places(measured, about, scale)
    if places:
        rows = [row for row, _ in places]
        names = sorted(rows[0]["realised"])
        lines = [{"name": name, "colour": colour, "faint": False} for name, colour in style.colours(names).items()]
        spans = [place for _, place in places]
        drawn = panels.shares(rows, spans, scale, "mixture")
        made.append({"key": "mixture", "title": "mixture", "lines": lines, "svg": drawn})
    return [{"lines": [], **one} for one in made if one["svg"]]


def _places(measured: RunMetrics, about: About, scale: TimeAxis) -> list[tuple[Mapping[str, Any], tuple[float, float]]]:
    """Return the mixture intervals that the run has reached, with the start and end of each on the axis."""
    tokens = measured.series.get("tokens")
    if tokens is None or not about.mixture:
        return []
    reached = list(zip(scale.of(tokens), tokens.values, strict=True))
    if scale.axis == "time":
        reached.sort()
    found, before = [], scale.low
    for row in gathered(about.mixture):
        end = row["stop"] * about.sequence_tokens
        at = next((x for x, value in reached if value >= end and x >= before), None)
        stop = reached[-1][0] if at is None else at
        if stop > before:
            found.append((row, (scale.at(before), scale.at(stop))))
        before = max(before, stop)
        if at is None:
            break
    return found


def _facts(measured: RunMetrics, about: About) -> list[dict[str, str]]:
    cost, ledger = measured.cost, account(measured.events, about.ranks)
    figures, flops = timeline.of_events(measured.events), _median(_flops(measured, about))
    quoted = figures.rounded()
    lost_s = ledger.rank_s["redone work"] + ledger.rank_s["guard"]
    facts = [
        ("steps", f"{measured.last_step:,}", f"of {about.total_steps:,} planned steps" if about.total_steps else ""),
        (LABELS["final_loss"], quoted.get("final_loss", "–"), "nats per token"),
        ("tokens", style.count(cost.tokens), f"of {style.count(about.total_tokens)}" if about.total_tokens else ""),
        (LABELS["median_step_s"], quoted.get("median_step_s", "–"), "median over all kept steps"),
        (LABELS["median_tokens_per_s"], quoted.get("median_tokens_per_s", "–"), "sum of all ranks"),
        ("utilization", style.percent(flops / about.peak_flops), "of the device's peak")
        if about.peak_flops
        else ("FLOP/s of a rank", style.count(flops), "peak FLOP/s unknown"),
        ("goodput", style.percent(ledger.goodput), "rank-seconds spent on kept steps"),
        ("lost", seconds(lost_s), f"sum of all ranks; {counted(cost.lost_steps, 'step')} repeated or rolled back"),
        ("restarts", str(cost.restarts), f"within {counted(cost.jobs, 'job')}"),
        ("interventions", str(cost.interventions), f"by the guard; {counted(cost.skipped_steps, 'skipped step')}"),
        ("rank hours", f"{ledger.held_rank_s / 3600:,.2f}", "sum over jobs, from start to end"),
    ]
    if about.price_per_rank_hour is not None:
        money = ledger.held_rank_s / 3600 * about.price_per_rank_hour
        wasted = money * (1 - ledger.goodput)
        facts.append(("cost", f"{money:,.2f} {about.currency}", f"{wasted:,.2f} of it was not spent on kept steps"))
    return [{"label": label, "value": value, "note": note} for label, value, note in facts]


def _spent(ledger: GoodputLedger) -> list[dict[str, Any]]:
    """Return the rank-seconds by cause. The shares add up to 100.0%."""
    tones = style.colours(CAUSES)
    return [
        {
            "name": cause,
            "share": share,
            "colour": tones[cause],
            "words": f"{seconds(ledger.rank_s[cause])} ({share:.1f}%)",
        }
        for cause, share in ledger.percentages().items()
    ]


def _median(series: Series) -> float:
    values = sorted(value for value in series.values if math.isfinite(value))
    return values[len(values) // 2] if values else 0.0


def _events(measured: RunMetrics) -> list[dict[str, Any]]:
    rows, counts, step = [], dict[str, int](), 0
    for event in measured.events:
        step = int(event.get("step", step) or 0)
        if event["event"] in UNLISTED:
            counts[event["event"]] = counts.get(event["event"], 0) + 1
            continue
        weight = MARKED.get(event["event"], "")
        after = panels.clock(float(event["time"]) - measured.first_time)
        text = words(event, hidden=("step",))
        rows.append({"after": after, "step": step, "kind": event["event"], "weight": weight, "text": text})
    summed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
    return [*rows, {"after": "", "step": "", "kind": "other events", "weight": "", "text": summed}]


def _next(measured: RunMetrics, about: About) -> list[dict[str, str]]:
    acts = (event for event in measured.events if event["event"] == "intervention" and event.get("action") != "warn")
    windows = (event["window"] for event in acts if event.get("window"))
    bad = next((first for first, last in windows if first <= last), max(1, measured.last_step))
    return [
        {"what": "Documents of a step", "command": f"plinth run batch {about.run_id} {bad}"},
        {"what": "Loss of a step by document", "command": f"plinth run replay {about.run_id} {bad}"},
        {"what": "Loss of a step by source", "command": f"plinth run blame {about.run_id} {bad}"},
        *({"what": one.question, "command": one.command.replace("RUN", about.run_id)} for one, _ in about.added),
        {
            "what": "Committed checkpoints and their integrity",
            "command": f"plinth run checkpoint list {about.run_id}",
        },
        {"what": "Test that a resume is bit-exact", "command": f"plinth run audit resume {about.run_id}"},
    ]


#: Stretches of the mixture that are drawn.
STRETCHES = 120


def path(ctx: Context, config: RunConfig) -> Path:
    """Return the path of a run's page."""
    return ctx.workspace.reports / f"{config.run_id}.html"


def write(
    ctx: Context,
    config: RunConfig,
    *,
    peak_flops: float | None = None,
    price_per_rank_hour: float | None = None,
    target: Path | None = None,
) -> Path:
    """Write the page of a run that is finished or in progress, and return its path.

    Args:
        peak_flops: peak FLOP/s of one device in the run's precision, for the utilization.
        price_per_rank_hour: price; if None, the price in the recipe (`training.stopping`) is used.

    Raises:
        MissingError: the run has no events yet.
        StorageError, DiskFullError: the page could not be written.
    """
    events, samples = list(read_events(config.directory.events)), read_samples(config.directory)
    if not events:
        raise MissingError(
            f"run {config.run_id} has no timeline yet",
            expected=config.directory.events,
            remedy="wait for its ranks to start",
        )
    price = config.stopping.price_per_rank_hour or None if price_per_rank_hour is None else price_per_rank_hour
    about = About(
        run_id=config.run_id,
        description=_described(config, events),
        ranks=config.ranks,
        total_steps=config.total_steps,
        total_tokens=config.tokens_through(config.total_steps),
        flops_per_token=tuple(
            (stretch.first_step + 1, planned.flops_exact(config.model, config.vocab_size, stretch.length))
            for stretch in config.steps.stretches
        ),
        peak_flops=peak_flops,
        price_per_rank_hour=price,
        added=tuple((one, one.html(ctx, config)) for one in SECTIONS.values()),
        mixture=tuple(shares_over_run(ctx.refs.load(config.mixture).stats, STRETCHES)),
        sequence_tokens=config.sequence_tokens,
        **sections.attested(ctx, config),
        over_seeds=probe_curves.over_seeds(config, curves(events)),
    )
    place = target or path(ctx, config)
    together = list(merge(events, samples, key=lambda event: float(event["time"])))
    write_bytes(place, page(together, about).encode())
    return place


def _described(config: RunConfig, events: Sequence[dict[str, Any]]) -> str:
    started = [event for event in events if event["event"] == "run_started"]
    last = started[-1] if started else {}
    model, parameters = config.model, planned.parameters(config.model, config.vocab_size)
    sizes = sorted({batch * config.sequence_tokens for batch in config.steps.batches})
    batch = f"{' to '.join(f'{size:,}' for size in sizes)} tokens per step in sequences of {config.sequence_tokens:,}"
    device = f"{last.get('device', 'device unknown')}, {last.get('precision', config.precision)}"
    place = f"{counted(config.ranks, 'rank')} ({device})"
    active = f", of which {parameters.active:,} are active" if model.experts else ""
    shape = f"{model.layers} layers of {model.dim}, {parameters.total:,} parameters{active}"
    how = f"ZeRO-{config.parallel.zero_stage} over {place}; seed {config.seed}"
    if config.trainer is not None:
        how = f"trained by `{' '.join(config.trainer.command)}` on {place}; resume: {UNPROVED}"
    described = f"{shape}; {batch}; {how}"
    return "; ".join([described, *_private(events)])


def _private(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence with the privacy budget that a differentially private run has spent, or nothing for other
    runs."""
    spent = [event for event in events if event["event"] == "privacy"][-1:]
    return [
        f"differentially private by {one['unit']}: epsilon {one['epsilon']:.4g} at delta {one['delta']:g} "
        f"after step {one['step']:,}"
        for one in spent
    ]
