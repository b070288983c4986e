"""Metrics of a run, and their values after any event of its timeline.

    Metric, MetricSample   a metric, and one value of a metric
    RUN            the table of all metrics
    MetricState    consumes events in order; `samples` are the current values
    RunFollower    reads a timeline and the samples of GPUs
    scalars        the numbers of an event by name, the same in every sink

Every event is consumed once. Memory does not grow with the run, except for the steps since the earliest kept checkpoint
and one number per earlier step. Does not belong here: the file or page that shows the samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from pydantic import Field

from plinth.model.architectures import flops_exact
from plinth.records import Frozen
from plinth.training.config import RunConfig
from plinth.training.telemetry.devices import is_hardware_error
from plinth.training.telemetry.goodput_account import GoodputAccount
from plinth.training.telemetry.timeline import JOB_ENDS, TimelineReader, waited_s

# Records of metrics and samples, and their conversion for prometheus_client.

#: When a metric has a series: whenever its part is collected, for every run with a live job, or only sometimes.
Presence = Literal["always", "active", "sometimes"]


class Metric(Frozen):
    """Name, unit and meaning of one metric of a run.

    Attributes:
        unit: suffix of the metric's name; empty for plain numbers and ratios.
        source: file, record or event from which the values come.
        part: part of the exporter; the metrics of a part are collected together, and fail together.
    """

    name: str = Field(pattern=r"^plinth_[a-z0-9_]+$")
    kind: Literal["gauge", "counter"] = "gauge"
    unit: str = ""
    labels: tuple[str, ...] = ()
    meaning: str
    source: str
    part: str = "runs"
    presence: Presence = "sometimes"


class MetricSample(NamedTuple):
    """One value of a metric, with its labels."""

    name: str
    labels: tuple[str, ...]  # values, in the order of the metric's labels
    value: float


class Families(Collector):
    """Collector for prometheus_client: samples by metric, in the order of the table.

    Metrics without samples are left out.

    Args:
        metrics: the table of all metrics.
        samples: returns the current samples.
    """

    def __init__(self, metrics: Mapping[str, Metric], samples: Callable[[], Iterable[MetricSample]]) -> None:
        self._metrics, self._samples = metrics, samples

    def collect(self) -> list[Family]:
        """Return the metric families.

        Raises:
            KeyError: a sample has a metric that is not in the table.
        """
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, labels, value in self._samples():
            if name not in found:
                kind = CounterMetricFamily if self._metrics[name].kind == "counter" else GaugeMetricFamily
                found[name] = kind(name, self._metrics[name].meaning, labels=self._metrics[name].labels)
            found[name].add_metric(labels, value)
        return [found[name] for name in self._metrics if name in found]


_STEP, _OF = "event `step`", ("run",)


def _of_step(name: str, meaning: str, unit: str = "", *labels: str) -> Metric:
    return Metric(name=name, meaning=meaning, unit=unit, labels=(*_OF, *labels), source=_STEP)


#: Numbers of a step by their name in the timeline.
STEP: Final = {
    "loss": _of_step("plinth_train_loss", "Loss of the last step, in nats per token."),
    "loss_ema": _of_step("plinth_train_loss_ema", "Moving mean of the loss."),
    "grad_norm": _of_step("plinth_grad_norm", "Norm of the gradient of the last step."),
    "lr": _of_step("plinth_learning_rate", "Learning rate of the last step."),
    "tokens": _of_step("plinth_tokens", "Tokens trained."),
    "tokens_per_s": _of_step("plinth_tokens_per_second", "Tokens per second of the last step, over all ranks."),
    "step_s": _of_step("plinth_step_duration_seconds", "Duration of the last step.", "seconds"),
    "host_memory_bytes": _of_step("plinth_host_memory_bytes", "Peak host memory of the leading rank.", "bytes"),
    "slowest/score": _of_step(
        "plinth_slowest_rank_score", "Relative speed of the slowest rank; the fastest rank has 1."
    ),
}

#: Prefixes of metric names that contain a slash. The part after the slash becomes the last label.
NESTED: Final = {
    "parts": _of_step("plinth_step_seconds", "Seconds spent in each part of the last step.", "seconds", "part"),
    "besides": _of_step("plinth_between_steps_seconds", "Seconds between the last two steps.", "seconds", "what"),
    "experts": _of_step(
        "plinth_experts", "Largest load relative to the mean, idle experts, and mean entropy of routers.", "", "what"
    ),
    "device_memory": _of_step("plinth_device_memory_bytes", "Memory of the leading rank's device.", "bytes", "what"),
    "heldout": Metric(
        name="plinth_heldout_bits_per_byte",
        labels=(*_OF, "slice"),
        meaning="Bits per byte of held-out text.",
        source="event `evaluated`",
    ),
    "probe": Metric(
        name="plinth_probe", labels=(*_OF, "name"), meaning="Scores of probes.", source="event `evaluated`"
    ),
    "checkpoint": Metric(
        name="plinth_checkpoint",
        labels=(*_OF, "what"),
        meaning="Measurements of the last checkpoint commit: seconds, bytes, stall_s, wait_s.",
        source="event `checkpoint`",
    ),
}

#: Fields of a GPU sample, and their metrics.
GPU: Final = {
    field: Metric(
        name=f"plinth_gpu_{field}",
        labels=(*_OF, "host", "gpu"),
        meaning=f"{meaning} of a GPU, from NVML.",
        unit=unit,
        source="samples of devices/",
    )
    for field, meaning, unit in (
        ("utilisation", "Utilization in percent", ""),
        ("power_w", "Power in watts", ""),
        ("temperature_c", "Temperature in degrees Celsius", ""),
        ("memory_bytes", "Memory in use", "bytes"),
        ("ecc_uncorrected", "Uncorrected ECC errors", ""),
    )
}

_STATE = {
    "active": Metric(
        name="plinth_run_active",
        labels=_OF,
        meaning="1 while a job runs; 0 after it has ended or lost its processes.",
        source="the events `job_started`, `finished`, `failed` and `stopped`; the launcher",
    ),
    "failed": Metric(
        name="plinth_run_failed",
        labels=_OF,
        meaning="1 if the last job failed or was killed, until the next submission.",
        source="events `failed`, `lost`; the launcher",
    ),
    "ranks": Metric(
        name="plinth_run_ranks", labels=_OF, meaning="Number of ranks of the last job.", source="event `job_started`"
    ),
    "step": Metric(name="plinth_step", labels=_OF, meaning="Last step.", source=_STEP),
    "planned": Metric(
        name="plinth_steps_planned", labels=_OF, meaning="Planned number of steps.", source="config.json of the run"
    ),
    "last": Metric(
        name="plinth_last_event_timestamp_seconds",
        unit="seconds",
        labels=_OF,
        meaning="Time of the last event.",
        source="timeline",
        presence="active",
    ),
    "saved": Metric(
        name="plinth_checkpoint_timestamp_seconds",
        unit="seconds",
        labels=_OF,
        meaning="Time of the last checkpoint commit, or of the job's first step if that is later.",
        source="events `checkpoint`, `step`",
        presence="active",
    ),
    "wait": Metric(
        name="plinth_data_wait_ratio",
        labels=_OF,
        meaning="Fraction of the last step spent waiting for its batch.",
        source=_STEP,
        presence="active",
    ),
    "flops": Metric(
        name="plinth_rank_flops_per_second",
        labels=_OF,
        meaning="Model FLOP/s of a rank in the last step, from the exact FLOPs per token.",
        source=f"{_STEP}, config.json of the run",
    ),
    "held": Metric(
        name="plinth_held_rank_seconds",
        unit="seconds",
        labels=_OF,
        meaning="Rank-seconds used by the jobs, according to the goodput ledger.",
        source="goodput ledger",
        presence="active",
    ),
    "cause": Metric(
        name="plinth_goodput_rank_seconds",
        unit="seconds",
        labels=(*_OF, "cause"),
        meaning="Rank-seconds by cause, including `goodput`. Later events may reassign earlier time.",
        source="goodput ledger",
        presence="active",
    ),
    "when": Metric(
        name="plinth_event_timestamp_seconds",
        unit="seconds",
        labels=(*_OF, "kind"),
        meaning="Time of the last event of each kind.",
        source="timeline",
    ),
    "events": Metric(
        name="plinth_events_total",
        kind="counter",
        labels=(*_OF, "kind"),
        meaning="Number of events of each kind. A `device_error` whose XID was caused by a program counts as "
        "`program_error`.",
        source="timeline",
    ),
}

RUN: Final = {one.name: one for one in (*_STATE.values(), *STEP.values(), *NESTED.values(), *GPU.values())}

#: Events after which a job has failed.
_FAILURES = frozenset({"failed", "lost"})

#: Events of a job with ranks.
_ALIVE = frozenset({"job_started", "run_started", "step"})

#: Kind of a `device_error` with an XID caused by a program: the GPU is healthy, and no alert fires.
PROGRAM_ERROR: Final = "program_error"

#: Kinds that are counted from 0, so the first event is an increase.
COUNTED_FROM_0: Final = ("restart", "checkpoint", "intervention")


class MetricState:
    """Metric values of one run.

    Args:
        run: id of the run.
        flops_per_token: function that returns the exact training FLOPs per token of a step, which depend on the
            length of its sequences; None if they are unknown.
    """

    def __init__(
        self, run: str, ranks: int = 1, planned: int = 0, flops_per_token: Callable[[int], float] | None = None
    ) -> None:
        self.run, self.active, self.last = run, False, 0.0
        self._ranks, self._planned, self._flops = ranks, planned, flops_per_token
        self._account = GoodputAccount(ranks, bounded=True)
        self._ledger: tuple[float, dict[str, float]] | None = (0.0, {})
        self._failed, self._saved, self._step = False, 0.0, 0
        self._nested: dict[tuple[str, str], float] = {}
        self._plain: dict[str, float] = {}
        self._gpus: dict[tuple[str, str, str], float] = {}
        self._counts, self._when = Counter[str](), dict[str, float]()

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event of the timeline."""
        kind, now = str(event["event"]), float(event["time"])
        self.last = max(self.last, now)
        named = PROGRAM_ERROR if kind == "device_error" and not is_hardware_error(event) else kind
        self._counts[named] += 1
        self._when[named] = now
        self._account.add(event)
        self._ledger = None
        if kind in _ALIVE:
            self.active, self._failed = True, False
        elif kind == "submitted":
            self._failed = False
        elif kind in JOB_ENDS or kind in _FAILURES:
            self.active, self._failed = False, kind in _FAILURES or (self._failed and kind != "finished")
        if kind == "job_started":
            self._saved, self._ranks = 0.0, int(event["ranks"])
        elif kind == "checkpoint":
            self._saved = now
        elif kind == "step":
            self._add_step(event, now)
        self._add_numbers(event)

    def lose(self) -> None:
        """Record that the job vanished without a final event. The run counts as failed until another job starts."""
        self.active, self._failed = False, True

    def add_devices(self, event: Mapping[str, Any]) -> None:
        """Add the newest sample of a node's GPUs."""
        for gpu in event["gpus"]:
            for name, metric in GPU.items():
                if gpu.get(name) is not None:
                    self._gpus[metric.name, str(event["host"]), str(gpu["gpu"])] = float(gpu[name])

    def samples(self) -> Iterator[MetricSample]:
        """Yield the current metric values. After the job has ended, these are the last values."""
        yield self._of("active", float(self.active))
        yield self._of("failed", float(self._failed))
        yield self._of("ranks", float(self._ranks))
        yield self._of("step", float(self._step))
        yield self._of("planned", float(self._planned))
        yield self._of("last", self.last)
        held, causes = self._time()
        yield self._of("held", held)
        yield from (self._of("cause", seconds, cause) for cause, seconds in causes.items())
        for kind in sorted({*self._counts, *COUNTED_FROM_0}):
            yield self._of("events", float(self._counts[kind]), kind)
        yield from (self._of("when", when, kind) for kind, when in self._when.items())
        if self._saved:
            yield self._of("saved", self._saved)
        yield from (MetricSample(name, (self.run,), value) for name, value in self._plain.items())
        yield from (MetricSample(name, (self.run, rest), one) for (name, rest), one in self._nested.items())
        yield from (MetricSample(name, (self.run, *at), one) for (name, *at), one in self._gpus.items())

    def _add_step(self, event: Mapping[str, Any], now: float) -> None:
        self._step, self._saved = int(event["step"]), self._saved or now
        seconds = float(event.get("step_s", 0.0))
        if seconds > 0:
            self._plain[_STATE["wait"].name] = waited_s(event) / seconds
            if self._flops and self._ranks:
                flops = float(event["tokens_per_s"]) * self._flops(self._step)
                self._plain[_STATE["flops"].name] = flops / self._ranks

    def _add_numbers(self, event: Mapping[str, Any]) -> None:
        for name, value in scalars(event).items():
            head, _, rest = name.partition("/")
            if name in STEP:
                self._plain[STEP[name].name] = value
            elif rest and head in NESTED:
                self._nested[NESTED[head].name, rest] = value

    def _time(self) -> tuple[float, dict[str, float]]:
        """Return the rank-seconds that the jobs used, in total and by cause."""
        if self._ledger is None:
            ledger = self._account.ledger()
            causes = {str(cause): seconds for cause, seconds in ledger.rank_s.items() if cause != "queue"}
            self._ledger = ledger.held_rank_s, causes
        return self._ledger

    def _of(self, which: str, value: float, *labels: str) -> MetricSample:
        return MetricSample(_STATE[which].name, (self.run, *labels), value)


class RunFollower:
    """Reader of a run's timeline and of its GPU samples. Each byte is read once. `state` has the current metric
    values."""

    def __init__(self, config: RunConfig) -> None:
        steps, planned = config.steps, config.total_steps
        flops = {one.length: flops_exact(config.model, config.vocab_size, one.length) for one in steps.stretches}
        self.state = MetricState(
            config.run_id, config.ranks, planned, lambda step: flops[steps.length(min(step, planned) - 1)]
        )
        self._events = TimelineReader(config.directory.events)
        self._folder = config.directory.devices
        self._devices: dict[Path, TimelineReader] = {}

    @property
    def read_bytes(self) -> int:
        """Number of bytes read so far."""
        return self._events.read_bytes + sum(reader.read_bytes for reader in self._devices.values())

    def poll(self) -> None:
        """Read the events and GPU samples that were written since the last call.

        Raises:
            ValueError: a line is not an event.
        """
        for event in self._events.poll():
            self.state.add(event)
        for path in sorted(self._folder.glob("node-*.jsonl")):
            for event in self._devices.setdefault(path, TimelineReader(path)).poll()[-1:]:
                self.state.add_devices(event)


#: Fields of an event that are not quantities.
PLACE = frozenset({"seq", "step", "time", "attempt", "number"})

#: Kinds of events that are marked.
MARKED = frozenset(
    {"resumed", "reshaped", "intervention", "rolled_back", "skipped", "amended", "restart", "refused", "save_failed"}
    | {"rank_failed", "stragglers", "device_error", "hang", "profiled", "signal", "stopped_by_rule"}
)


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an event by name, the same for every sink. If sinks show no number of the event, return {}.

    step        numbers under their own names, and names such as `parts/forward`, `besides/save`, `device_memory/peak`
    evaluated   `heldout/SLICE`, `probe/NAME` (bits per byte), and names such as `probe/NAME/control`
    checkpoint  `checkpoint/seconds`, `checkpoint/bytes`, `checkpoint/stall_s`, `checkpoint/wait_s`
    others      `events/KIND`: 1 for kinds of events that pages mark

    Text such as `inf` is left out.
    """
    kind = event["event"]
    if kind == "step":
        own = {name: value for name, value in event.items() if name not in PLACE}
        nested = {f"{name}/{key}": value for name, each in own.items() for key, value in _numbers(each).items()}
        nested.pop("slowest/rank", None)  # a name, not a number
        return _finite(own) | _finite(nested)
    if kind == "evaluated":
        found: dict[str, Any] = {f"heldout/{name}": value for name, value in event.get("slices", {}).items()}
        for name, scores in event.get("probes", {}).items():
            found |= {f"probe/{name}" + ("" if key == "score" else f"/{key}"): value for key, value in scores.items()}
        return _finite(found)
    if kind == "checkpoint":
        return _finite({f"checkpoint/{name}": event.get(name) for name in ("seconds", "bytes", "stall_s", "wait_s")})
    return {f"events/{kind}": 1.0} if kind in MARKED else {}


def _numbers(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
