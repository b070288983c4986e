"""The last numbers of a run in Prometheus' text format, for node_exporter's textfile collector.

    plinth_train_loss{run="…"}   every number of the last step        plinth_step_seconds{run="…",part="forward"}
    plinth_heldout{run="…",name="web"}, plinth_probe{…}               plinth_events_total{run="…",kind="restart"}
    plinth_gpu_utilisation{run="…",host="…",gpu="0"} and the like     plinth_last_event_timestamp_seconds{run="…"}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.sinks.relay import SinkRow
from plinth.training.telemetry.timeline import TimelineReader

_NAME = re.compile(r"[^a-zA-Z0-9_]")

#: Numbers of a step and their names with units, as Prometheus' conventions have them.
STEP = {
    "loss": "plinth_train_loss",
    "loss_ema": "plinth_train_loss_ema",
    "grad_norm": "plinth_grad_norm",
    "lr": "plinth_learning_rate",
    "tokens": "plinth_tokens",
    "tokens_per_s": "plinth_tokens_per_second",
    "step_s": "plinth_step_duration_seconds",
    "host_memory_bytes": "plinth_host_memory_bytes",
    "slowest/score": "plinth_slowest_rank_score",
}

#: Parts of names before the slash, and the metric that has the rest as a label.
LABELLED = {
    "parts": ("plinth_step_seconds", "part"),
    "besides": ("plinth_between_steps_seconds", "what"),
    "device_memory": ("plinth_device_memory_bytes", "what"),
    "heldout": ("plinth_heldout_bits_per_byte", "slice"),
    "probe": ("plinth_probe", "name"),
    "checkpoint": ("plinth_checkpoint", "what"),
}

Sample = tuple[str, tuple[tuple[str, str], ...]]


class PrometheusFile:
    """One file that is replaced as a whole."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        self._run, self._path = config.run_id, path
        self._values: dict[Sample, float] = {}
        self._events, self._counted = TimelineReader(config.directory.events), Counter[str]()
        self._devices = config.directory.devices
        self._readers: dict[Path, TimelineReader] = {}

    def go_back(self, step: int) -> None:
        """Nothing: only the last numbers are kept."""

    def write(self, row: SinkRow) -> None:
        self._values[self._sample("plinth_step")] = float(row.step)
        self._values[self._sample("plinth_last_event_timestamp_seconds")] = row.time
        for name, value in row.values.items():
            head, _, rest = name.partition("/")
            if name in STEP:
                self._values[self._sample(STEP[name])] = value
            elif rest and head in LABELLED:
                metric, label = LABELLED[head]
                self._values[self._sample(metric, **{label: rest})] = value

    def flush(self) -> None:
        self._counted.update(event["event"] for event in self._events.poll())
        for path in sorted(self._devices.glob("node-*.jsonl")):
            for event in self._readers.setdefault(path, TimelineReader(path)).poll()[-1:]:
                self._add_devices(event)
        write_bytes(self._path, "".join(self._lines()).encode())

    def close(self) -> None: ...

    def _add_devices(self, event: Mapping[str, Any]) -> None:
        for gpu in event["gpus"]:
            for name, value in gpu.items():
                if name != "gpu" and value is not None:
                    sample = self._sample(f"plinth_gpu_{name}", host=event["host"], gpu=str(gpu["gpu"]))
                    self._values[sample] = float(value)

    def _sample(self, metric: str, **labels: str) -> Sample:
        return _NAME.sub("_", metric), (("run", self._run), *sorted(labels.items()))

    def _lines(self) -> Iterator[str]:
        counts = {self._sample("plinth_events_total", kind=kind): count for kind, count in self._counted.items()}
        samples = sorted([*self._values.items(), *counts.items()])
        metric = ""
        for (name, labels), value in samples:
            if name != metric:
                metric = name
                yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n"
            written = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            yield f"{name}{{{written}}} {float(value)!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
