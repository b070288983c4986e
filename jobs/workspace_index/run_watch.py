"""Which runs of a workspace are open and which wrote last, remembered from look to look.

A run with a result has ended: its files are not looked at again before the time of `runs/` changes, which a run that is
made, removed or begun again does (`RunDirectory.reopen`). Does not belong here: what a run has (`run_lines`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Nanoseconds within which a folder may change twice and keep its time.
_RACY_NS = 2_000_000_000


class RunWatch:
    """The runs of a folder.

    Args:
        runs: `runs/` of the workspace.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._changed_ns = self._folder = -1
        self._ended: dict[str, int] = {}
        self._open: dict[str, tuple[int, int]] = {}
        self.looked_at = 0

    def look(self) -> RunWatch:
        """Take what has changed: files of open runs, and of all where a run was made, removed or begun again."""
        changed_ns = self._folder = self._folder_ns()
        names = os.listdir(self._runs) if changed_ns != self._changed_ns and changed_ns else list(self._open)
        if changed_ns != self._changed_ns:
            self._ended = {}
        self._open = {}
        for name in names:
            self._look_at(name)
        settled = time.time_ns() - changed_ns > _RACY_NS
        self._changed_ns = changed_ns if settled else -1
        return self

    def facts(self) -> list[object]:
        """Changes when a run is made or removed, ends, or has a new event."""
        return [self._folder, len(self._ended), sorted([name, *seen] for name, seen in self._open.items())]

    def newest(self) -> list[str]:
        """Runs with a timeline, the one with the newest event first."""
        times = self._ended | {name: written for name, (written, _) in self._open.items()}
        return sorted((name for name, written in times.items() if written), key=lambda name: (-times[name], name))

    def _folder_ns(self) -> int:
        try:
            return os.stat(self._runs).st_mtime_ns
        except FileNotFoundError:
            return 0

    def _look_at(self, name: str) -> None:
        self.looked_at += 1
        folder = f"{self._runs}/{name}"
        ended = os.path.exists(f"{folder}/result.json")  # written last: the timeline grows no more
        try:
            timeline = os.stat(f"{folder}/events.jsonl")
            written, size = timeline.st_mtime_ns, timeline.st_size
        except OSError:
            written, size = 0, 0
        if ended:
            self._ended[name] = written
        else:
            self._open[name] = (written, size)
