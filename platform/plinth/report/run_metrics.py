"""The timeline of a run as columns over one axis, and the cost of the run: pure functions from events to numbers.

Every quantity is a `Series` of (time, step, value), so that a page can draw all quantities over the same axis. If a
resume or a rollback repeats steps, a series has these steps twice, in order of time. The first occurrence is lost work.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plinth.text import counted
from plinth.training.forensics.order_proof import OrderProof
from plinth.training.telemetry.step_clock import PARTS
from plinth.training.telemetry.timeline import host_memory_bytes, waited_s
from plinth.training.upgrade.record import REFUSED, UPGRADED, comparison_of

Event = Mapping[str, Any]

#: Events that are marked across all panels, with their severity.
MARKED = {
    "intervention": "bad", "rolled_back": "bad", "refused": "bad", "failed": "bad", "rank_failed": "bad",
    "device_error": "bad", "hang": "bad", "restart": "bad", "vanished": "bad", "lost": "bad", "node_replaced": "note",
    "spare_lost": "note", "save_failed": "bad", "upload_failed": "bad", "downloaded": "note", "signal": "note",
    "stragglers": "note", "profiled": "note", "resumed": "note", "reshaped": "note", "averaged": "note",
    "amended": "note", "stopped_by_rule": "note", "allowance_spent": "bad", "forecast_missed": "bad",
    UPGRADED: "note", REFUSED: "bad",
    "stopped": "note", "finished": "good",
}  # fmt: skip


@dataclass
class Series:
    """Values of one quantity, each with its time (Unix seconds) and step. Values that are not finite become gaps."""

    times: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, event: Event, value: Any) -> None:
        """Append the value of an event. Null, and text such as `inf`, are stored as NaN."""
        self.times.append(float(event["time"]))
        self.steps.append(int(event.get("step", self.steps[-1] if self.steps else 0)))
        self.values.append(float(value) if isinstance(value, int | float) else math.nan)


@dataclass(frozen=True)
class EventMark:
    """An event that is drawn as a line across all panels."""

    time: float
    step: int
    kind: str
    weight: str  # bad, note or good
    text: str


@dataclass(frozen=True)
class Cost:
    """Totals of a run. The goodput ledger (`goodput_account`) has the run's time by cause.

    Attributes:
        lost_steps: number of trained steps that were repeated, rolled back or had no update.
        skipped_steps: number of steps that a rollback skipped, or that were vetoed.
        jobs: number of jobs of the run.
    """

    lost_steps: int
    skipped_steps: int
    restarts: int
    jobs: int
    interventions: int
    tokens: int


@dataclass(frozen=True)
class RunMetrics:
    """Series, event marks and cost of a run."""

    series: Mapping[str, Series]
    slices: Mapping[str, Series]
    layers: Mapping[str, Series]  # gradient norm by layer
    marks: Sequence[EventMark]
    cost: Cost
    events: Sequence[Event]
    first_time: float
    last_time: float
    last_step: int
    probes: Mapping[str, Series] = field(default_factory=dict)  # bits per byte of the right answers
    experts: Mapping[str, Series] = field(default_factory=dict)  # largest load of an expert, by sparse layer
    controls: Mapping[str, Series] = field(default_factory=dict)  # the same answers where nothing leads to them


def run_metrics(events: Iterable[Event]) -> RunMetrics:
    """Return the series, event marks and cost of a run, computed from its timeline."""
    measured = list(events)
    series: dict[str, Series] = defaultdict(Series)
    slices: dict[str, Series] = defaultdict(Series)
    probes: dict[str, Series] = defaultdict(Series)
    controls: dict[str, Series] = defaultdict(Series)
    layers: dict[str, Series] = defaultdict(Series)
    experts: dict[str, Series] = defaultdict(Series)
    marks: list[EventMark] = []
    at_step, saved_at, ranks = 0, math.nan, math.nan
    for event in measured:
        kind = event["event"]
        at_step = int(event.get("step", at_step) or 0)
        if kind == "run_started":
            ranks = float(event["ranks"])
            saved_at = float(event["time"]) if math.isnan(saved_at) else saved_at
            for one in (*series.values(), *layers.values(), *experts.values()):
                one.add(event, None)  # a gap in the line where no process trained
        elif kind == "step":
            _step(event, series, layers, experts, saved_at)
            series["ranks"].add(event, ranks)
        elif kind == "devices":
            _devices({"step": at_step, **event}, series)
        elif kind == "checkpoint":
            series["checkpoint_age_s"].add(event, max(0.0, float(event["time"]) - saved_at))
            saved_at = float(event["time"])
            series["checkpoint_age_s"].add(event, 0.0)
        elif kind == "evaluated":
            for name, value in event.get("slices", {}).items():
                slices[name].add({"step": at_step, **event}, value)
            for name, scores in event.get("probes", {}).items():
                probes[name].add({"step": at_step, **event}, scores["score"])
                controls[name].add({"step": at_step, **event}, scores["control"])
        if kind in MARKED:
            weight = "note" if event.get("action") == "warn" else MARKED[kind]
            marks.append(EventMark(float(event["time"]), at_step, kind, weight, words(event)))
    times = [float(event["time"]) for event in measured] or [0.0]
    last = max((step for one in series.values() for step in one.steps), default=0)
    return RunMetrics(
        series=dict(series),
        slices=dict(slices),
        probes=dict(probes),
        controls=dict(controls),
        layers=dict(layers),
        experts=dict(experts),
        marks=marks,
        cost=cost(measured),
        events=measured,
        first_time=times[0],
        last_time=times[-1],
        last_step=last,
    )


#: Fields that only programs read, or that another part of the page shows.
_HIDDEN = frozenset(
    {"event", "seq", "time", "documents", "layers", "experts", "signals", "sources", "buckets", "number"}
)


def words(event: Event, hidden: Iterable[str] = ()) -> str:
    """Return the fields of an event as short text. Empty fields are omitted; if the event is a change, so are unchanged
    fields. A comparison of a resumed run is a sentence."""
    if event["event"] == "audited" and "compared_steps" in event:
        return _compared(event)
    if event["event"] == "replayed":
        return OrderProof.model_validate({name: event[name] for name in OrderProof.model_fields}).in_words
    if event["event"] in (UPGRADED, REFUSED):
        return comparison_of(event).in_words
    left_out = _HIDDEN.union(hidden)
    said = {name: value for name, value in event.items() if name not in left_out and value not in (None, "")}
    if said.get("factor") == 1.0:  # of the learning rate: as it was
        del said["factor"]
    before, after = said.get("from"), said.get("to")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        del said["from"], said["to"]
        changed = [name for name in after if after[name] != before.get(name)]
        said |= {name: f"{_short(before.get(name))} → {_short(after[name])}" for name in changed}
    if isinstance(said.get("hosts"), list):
        said["hosts"] = _hosts(said["hosts"])
    return ", ".join(f"{_name(name)} {_short(value)}" for name, value in said.items())


def _compared(event: Event) -> str:
    """Return the result of an audit: `resumed from step 392 and compared 8 steps: bit-identical`."""
    delta = event.get("delta")
    differs = "not bit-identical" + ("" if delta is None else f", losses differ by up to {delta:.2g} (relative)")
    steps = counted(event["compared_steps"], "step")
    start = f"resumed from step {event['from_step']} and " if event.get("from_step") is not None else ""
    return f"{start}compared {steps}: {'bit-identical' if event['bit_exact'] else differs}"


def _name(field: str) -> str:
    """Return the displayed name of a field: `lost_s` is `lost seconds`."""
    seconds = field.endswith("_s") and not field.endswith("_per_s")
    return (f"{field.removesuffix('_s')} seconds" if seconds else field).replace("_", " ")


def cost(events: Sequence[Event]) -> Cost:
    """Return the totals of a run, computed from its events."""
    counted: dict[int, Event] = {}
    for event in (event for event in events if event["event"] == "step"):
        counted[int(event["step"])] = event
    again = sum(event["event"] == "step" for event in events) - len(counted)
    of = Counter(str(event["event"]) for event in events)
    left_out = {int(event["step"]) for event in events if event["event"] == "skipped"}
    left_out |= {step for step, event in counted.items() if event.get("vetoed")}
    undone = left_out & set(counted)
    return Cost(
        lost_steps=again + len(undone),
        skipped_steps=len(left_out),
        restarts=of["restart"],
        jobs=of["job_started"],
        interventions=sum(event["event"] == "intervention" and event.get("action") != "warn" for event in events),
        tokens=max((int(event.get("tokens", 0)) for step, event in counted.items() if step not in undone), default=0),
    )


def _step(
    event: Event,
    series: dict[str, Series],
    layers: dict[str, Series],
    experts: dict[str, Series],
    saved_at: float,
) -> None:
    for name in ("loss", "loss_ema", "grad_norm", "lr", "tokens_per_s", "tokens"):
        if name in event:
            series[name].add(event, event[name])
    seconds = float(event["step_s"]) or math.nan
    series["data_wait_share"].add(event, waited_s(event) / seconds)
    series["host_memory_bytes"].add(event, host_memory_bytes(event) or None)
    for name, value in event.get("device_memory", {}).items():
        series[f"device_{name}_bytes"].add(event, value)
    if "slowest" in event:
        series["slowest_score"].add(event, event["slowest"]["score"])
    for part in PARTS if "parts" in event else ():
        series[f"part:{part}"].add(event, event["parts"].get(part, 0.0) / seconds)
    series["checkpoint_age_s"].add(event, max(0.0, float(event["time"]) - saved_at))
    if health := event.get("experts"):
        for name in ("most", "idle", "entropy"):
            series[f"experts_{name}"].add(event, health[name])
        by_layer = health["by_layer"]
        for layer, value in zip(by_layer["layers"], by_layer["most"], strict=True):
            experts[str(layer)].add(event, value)
    measured = event.get("layers")
    if measured:
        for name, value in zip(measured["names"], measured.get("grad_norm", ()), strict=False):
            layers[name].add(event, value)


def _devices(event: Event, series: dict[str, Series]) -> None:
    """Add a sample of one node's GPUs to the series: mean utilization, total power, maximum temperature."""
    for name, combined in (("utilisation", _mean), ("power_w", sum), ("temperature_c", max)):
        known = [gpu[name] for gpu in event["gpus"] if gpu.get(name) is not None]
        if known:
            series[f"gpu_{name}"].add(event, combined(known))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _hosts(checked: Sequence[Event]) -> str:
    """Return the number of nodes that passed all checks, and the failed checks of each other node."""
    failed = [
        f"node {one.get('node')} ({one.get('host')}): {', '.join(bad)}"
        for one in checked
        if (bad := [f"{name} {outcome}" for name, outcome in one.items() if outcome in ("fail", "undetermined")])
    ]
    return "; ".join([f"{len(checked) - len(failed)} of {len(checked)} passed all checks", *failed])


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return _cut(", ".join(map(_short, value)))
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_short(one)}" for name, one in value.items())
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "…"
