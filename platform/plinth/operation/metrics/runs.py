"""The metrics of all runs of a workspace; each look reads what timelines have got since the last one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from plinth.errors import PlinthError
from plinth.operation.metrics.table import METRICS
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.run_state import RunState, run_state
from plinth.training.run_watch import RunWatch, TimelineFile
from plinth.training.sinks.metric import MetricLines, lines
from plinth.training.sinks.run_follower import RunFollower

#: Seconds after its last event for which a run is exported; Prometheus keeps what was before.
KEPT_S: Final = 86400.0

#: Seconds between two questions to the launcher of a run: a killed supervisor is an alert within a minute.
ASKED_EVERY_S: Final = 15.0
#: Seconds that one collection spends on asking; a scheduler may answer slowly, and the rest is asked the next time.
ASKING_S: Final = 2.0


class RunsCollector:
    """All runs of a workspace.

    Args:
        folder: `runs/` of the workspace.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._watch = folder, RunWatch(folder, KEPT_S)
        self._followed: dict[str, RunFollower] = {}
        self._seen: dict[str, TimelineFile] = {}  # the timeline when it was read
        self._lines: dict[str, MetricLines] = {}  # of runs that are exported
        self._last: dict[str, float] = {}  # time of the last event
        self._configs: dict[str, RunConfig] = {}  # of followed runs
        self._polled: dict[str, float] = {}  # when their launchers were asked last
        self._read = 0

    @property
    def read_bytes(self) -> int:
        """Bytes of timelines and samples read until now."""
        return self._read + sum(one.read_bytes for one in self._followed.values())

    def collect(self) -> Iterator[MetricLines]:
        """Lines of runs that have an event of the last day; a timeline that nobody wrote since is not read."""
        now, timelines = time.time(), self._watch.look().timelines()
        for gone in self._seen.keys() - timelines.keys():
            self._forget(gone)
        for name, timeline in sorted(timelines.items()):
            if now - timeline.written_ns / 1e9 >= KEPT_S:
                self._forget(name)
                continue
            if self._seen.get(name) != timeline:
                self._seen[name] = timeline
                self._lines[name] = self._look(name)
            if name in self._followed and time.time() - now < ASKING_S and self._is_lost(name):
                self._followed[name].state.lose()
                self._lines[name] = lines(METRICS, self._followed[name].state.samples())
                self._unfollow(name)
            if now - self._last.get(name, 0.0) < KEPT_S:
                yield self._lines[name]

    def _look(self, name: str) -> MetricLines:
        """What a run has now; what it had, where its files cannot be read."""
        try:
            follower = self._followed.get(name) or self._follow(name)
            follower.poll()
        except (PlinthError, ValueError, KeyError, TypeError, OSError):  # one broken run hides no other
            return self._lines.get(name, {})
        self._last[name] = follower.state.last
        if not follower.state.active:  # its account is let go; whoever starts another job has it read again
            self._unfollow(name)
        return lines(METRICS, follower.state.samples())

    def _is_lost(self, name: str) -> bool:
        """Ask the launcher of a run whose timeline has no end, at its pace."""
        now = time.time()
        if now - self._polled.get(name, 0.0) < ASKED_EVERY_S:
            return False
        self._polled[name] = now
        with suppress(PlinthError):
            return run_state(self._configs[name]) is RunState.LOST
        return False

    def _follow(self, name: str) -> RunFollower:
        self._configs[name] = configuration.load(RunDirectory(self._folder / name).config)
        self._followed[name] = RunFollower(self._configs[name])
        return self._followed[name]

    def _unfollow(self, name: str) -> None:
        if follower := self._followed.pop(name, None):
            self._read += follower.read_bytes
        self._configs.pop(name, None)

    def _forget(self, name: str) -> None:
        self._unfollow(name)
        for known in (self._seen, self._lines, self._last, self._polled):
            known.pop(name, None)

