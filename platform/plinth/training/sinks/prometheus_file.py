"""The metrics of a run as a file of Prometheus' text format, for node_exporter's textfile collector.

Names are those of `run_metrics`; `plinth_last_event_timestamp_seconds` says how old the numbers are.
"""

from __future__ import annotations

from pathlib import Path

from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.sinks.metric import exposition
from plinth.training.sinks.relay import SinkRow
from plinth.training.sinks.run_follower import RunFollower
from plinth.training.sinks.run_metrics import RUN


class PrometheusFile:
    """One file that is replaced as a whole."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        self._follower, self._path = RunFollower(config), path

    def go_back(self, step: int) -> None:
        """Nothing: only the last numbers are kept."""

    def write(self, row: SinkRow) -> None:
        """Nothing: the follower reads the timeline itself, whose events without numbers count as well."""

    def flush(self) -> None:
        self._follower.poll()
        write_bytes(self._path, exposition(RUN, self._follower.state.samples()))

    def close(self) -> None: ...
