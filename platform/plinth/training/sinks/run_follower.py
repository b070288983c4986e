"""Follows one run: its timeline and the samples of its GPUs, each byte read once, into the values of its metrics."""

from __future__ import annotations

from pathlib import Path

from plinth.model.flops import flops_exact
from plinth.training.config import RunConfig
from plinth.training.sinks.run_metrics import MetricState
from plinth.training.telemetry.timeline import TimelineReader


class RunFollower:
    """One run; `state` has its values."""

    def __init__(self, config: RunConfig) -> None:
        flops = flops_exact(config.model, config.vocab_size, config.sequence_tokens)
        self.state = MetricState(config.run_id, config.ranks, config.total_steps, float(flops))
        self._events = TimelineReader(config.directory.events)
        self._folder = config.directory.devices
        self._devices: dict[Path, TimelineReader] = {}

    @property
    def read_bytes(self) -> int:
        """Bytes read until now."""
        return self._events.read_bytes + sum(reader.read_bytes for reader in self._devices.values())

    def poll(self) -> None:
        """Take what is new.

        Raises:
            ValueError: a line is no event.
        """
        for event in self._events.poll():
            self.state.add(event)
        for path in sorted(self._folder.glob("node-*.jsonl")):
            for event in self._devices.setdefault(path, TimelineReader(path)).poll()[-1:]:
                self.state.add_devices(event)
