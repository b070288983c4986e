"""Which runs of a workspace are open and which wrote last, remembered from look to look.

A run with a result has ended: its files are not looked at again before the time of `runs/` changes, which a run that is
made, removed or begun again does (`RunDirectory.reopen`). Does not belong here: what a run has (sinks/, telemetry/).
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

#: Nanoseconds within which a folder may change twice and keep its time.
_RACY_NS = 2_000_000_000


class TimelineFile(NamedTuple):
    """A timeline as its folder lists it: when it was written last (nanoseconds of Unix time), and its bytes."""

    written_ns: int
    size: int


class RunWatch:
    """The runs of a folder.

    Args:
        runs: `runs/` of the workspace.
        kept_s: of runs that have ended, names are kept of those that wrote within so many seconds; all are counted.
    """

    def __init__(self, runs: Path, kept_s: float = math.inf) -> None:
        self._runs, self._kept_s = runs, kept_s
        self._changed_ns = self._folder_ns = -1
        self._ended: dict[str, TimelineFile] = {}
        self._open: dict[str, TimelineFile] = {}
        self._ended_count = self.looked_at = 0

    def look(self) -> RunWatch:
        """Take what has changed: files of open runs, and of all where a run was made, removed or begun again."""
        try:
            folder = os.open(self._runs, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            self._folder_ns, self._ended_count, self._ended, self._open = 0, 0, {}, {}
            return self
        try:  # names from the folder on: the kernel walks the path to it once, not for each run
            changed_ns = self._folder_ns = os.fstat(folder).st_mtime_ns
            names = list(self._open)
            if changed_ns != self._changed_ns:
                names, self._ended, self._ended_count = os.listdir(folder), {}, 0
            self._open = {}
            for name in names:
                self._look_at(folder, name)
        finally:
            os.close(folder)
        settled = time.time_ns() - changed_ns > _RACY_NS
        self._changed_ns = changed_ns if settled else -1
        return self

    def facts(self) -> list[object]:
        """Changes when a run is made or removed, ends, or has a new event."""
        return [self._folder_ns, self._ended_count, sorted([name, *seen] for name, seen in self._open.items())]

    def timelines(self) -> dict[str, TimelineFile]:
        """Of each run that is open or whose name is kept; without a timeline all is 0."""
        return self._ended | self._open

    def open_runs(self) -> list[str]:
        """Runs without a result, by name."""
        return sorted(self._open)

    def newest(self) -> list[str]:
        """Runs with a timeline, the one with the newest event first."""
        found = {name: seen.written_ns for name, seen in self.timelines().items() if seen.written_ns}
        return sorted(found, key=lambda name: (-found[name], name))

    def _look_at(self, folder: int, name: str) -> None:
        self.looked_at += 1
        ended = os.access(f"{name}/result.json", os.F_OK, dir_fd=folder)  # written last: the timeline grows no more
        try:
            stat = os.stat(f"{name}/events.jsonl", dir_fd=folder)
            seen = TimelineFile(stat.st_mtime_ns, stat.st_size)
        except OSError:
            seen = TimelineFile(0, 0)
        self._ended_count += ended
        if not ended:
            self._open[name] = seen
        elif time.time() - seen.written_ns / 1e9 < self._kept_s:
            self._ended[name] = seen
