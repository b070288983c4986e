"""Progress of long work: a bar in a terminal, plain lines in a log, or no output on request."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

from plinth.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

T = TypeVar("T")

#: Longest interval without a line in a log, and polling interval for work that does not advance; together five seconds.
LOG_INTERVAL_S, TICK_S = 4.5, 0.5
#: Commands that usually answer at once show progress only after this many seconds.
PATIENCE_S = 3.0
#: Steps within longer work print no line of their own if they take fewer seconds.
BRIEF_S = 0.5


class Meter(Protocol):
    """Progress of one piece of work: a count, and lines of text."""

    def advance(self, n: int = 1, note: str = "") -> None: ...

    def tell(self, text: str) -> None: ...


class Progress(Protocol):
    """Factory of meters for pieces of work. A total of 0 means unknown; such work is shown without a count. `unit` is
    the plural noun of what is counted."""

    def meter(self, label: str, total: int, unit: str = "") -> AbstractContextManager[Meter]: ...


class Silent:
    """Progress display without output; for tests and for callers that report by themselves."""

    @contextmanager
    def meter(self, label: str, total: int, unit: str = "") -> Iterator[Meter]:
        yield SilentMeter()


class SilentMeter:
    """Meter without output."""

    def advance(self, n: int = 1, note: str = "") -> None:
        return

    def tell(self, text: str) -> None:
        return


class _Shown:
    """Open meters, outermost first. A thread refreshes meters that advance too rarely."""

    def __init__(self, stream: IO[str] | None = None, patience_s: float = 0.0) -> None:
        self.stream, self.patience_s, self.spoke = stream, patience_s, 0.0
        self._open = list[_Ticked]()
        self._closed = threading.Event()

    @property
    def is_open(self) -> bool:
        """True if work is in progress."""
        return bool(self._open)

    def say(self, line: str) -> None:
        self.spoke = time.monotonic()
        print(visible(line), file=self.stream or sys.stderr, flush=True)

    @contextmanager
    def _lines(self, label: str, total: int, unit: str) -> Iterator[Meter]:
        if not self._open:  # the command has printed nothing since its process started, including the imports
            self.spoke = time.monotonic() - (time.process_time() if self.patience_s else 0.0)
        meter = _LineMeter(label, total, unit, self)
        with self._opened(meter):
            yield meter
        meter.finish()

    @contextmanager
    def _opened(self, meter: _Ticked) -> Iterator[None]:
        self._open.append(meter)
        ticker = threading.Thread(target=self._tick, daemon=True) if len(self._open) == 1 else None
        if ticker:
            self._closed.clear()
            ticker.start()
        try:
            yield
        finally:
            self._open.remove(meter)
            if ticker:
                self._closed.set()
                ticker.join()

    def _tick(self) -> None:
        while not self._closed.wait(TICK_S):
            for meter in self._open[:]:
                meter.tick(innermost=meter is self._open[-1])


class _Ticked(Protocol):
    def tick(self, *, innermost: bool) -> None: ...


SILENT: Progress = Silent()


class ProgressLines(_Shown):
    """Progress as text: a line every few seconds, whether the work advances or not, and a line at the end.

    Args:
        stream: destination; by default, standard error at the time of writing.
        patience_s: work that takes fewer seconds prints nothing.
    """

    def meter(self, label: str, total: int, unit: str = "") -> AbstractContextManager[Meter]:
        return self._lines(label, total, unit)


class _LineMeter:
    def __init__(self, label: str, total: int, unit: str, lines: _Shown) -> None:
        self.label, self.total, self.done, self.note, self.lines = label, total, 0, "", lines
        self.unit = f"{unit} " if unit else ""
        self.started = time.monotonic()

    def advance(self, n: int = 1, note: str = "") -> None:
        self.done, self.note = self.done + n, note
        if self._due():
            self._say(note)

    def tell(self, text: str) -> None:
        self.lines.say(f"{self.label}: {text}")

    def tick(self, *, innermost: bool) -> None:
        if innermost and self._due():
            self._say(f"{self.note} ({time.monotonic() - self.started:.0f} s)".lstrip())

    def finish(self) -> None:
        took, least = time.monotonic() - self.started, BRIEF_S if self.lines.is_open else 0.0
        if self.total and took >= max(least, self.lines.patience_s):
            self._say(f"in {took:.1f} s")

    def _due(self) -> bool:
        now = time.monotonic()
        return now - self.lines.spoke >= LOG_INTERVAL_S and now - self.started >= self.lines.patience_s

    def _say(self, note: str) -> None:
        count = f"{self.done:,}/{self.total:,} {self.unit}" if self.total else f"{self.done:,} " if self.done else ""
        self.lines.say(f"{self.label}: {count}{note}".rstrip())


class ProgressBars(_Shown):
    """Progress as Rich bars; finished bars stay on screen.

    Args:
        stream: the terminal.
        patience_s: work that takes fewer seconds shows no bar.
    """

    @cached_property
    def console(self) -> Console:
        """Console shared by all bars, so that nested bars are drawn together."""
        from rich.console import Console

        return Console(file=self.stream)

    def meter(self, label: str, total: int, unit: str = "") -> AbstractContextManager[Meter]:
        return self._bar(f"{label}, {unit}" if unit else label, total) if total else self._lines(label, total, unit)

    @contextmanager
    def _bar(self, label: str, total: int) -> Iterator[Meter]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description:<34}", markup=False),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
        )
        bars = RichProgress(*columns, console=self.console, redirect_stdout=sys.stdout.isatty())
        meter = _BarMeter(bars, bars.add_task(visible(label), total=total, note=""), self.patience_s)
        meter.tick(innermost=True)
        with self._opened(meter):
            try:
                yield meter
            finally:
                meter.stop()


class _BarMeter:
    """Meter whose bar appears after `patience_s` seconds, unless the work has ended by then."""

    def __init__(self, bars: RichProgress, task: TaskID, patience_s: float) -> None:
        self.bars, self.task, self.due = bars, task, time.monotonic() + patience_s
        self.lock, self.hidden = threading.Lock(), True

    def advance(self, n: int = 1, note: str = "") -> None:
        self.bars.update(self.task, advance=n, note=visible(note))

    def tell(self, text: str) -> None:
        self.bars.console.print(visible(text), markup=False, highlight=False)

    def tick(self, *, innermost: bool) -> None:
        with self.lock:
            if self.hidden and time.monotonic() >= self.due:
                self.hidden = False
                self.bars.start()

    def stop(self) -> None:
        with self.lock:
            if not self.hidden:
                self.bars.stop()
            self.hidden, self.due = True, math.inf


def metered(progress: Progress, label: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items, counted by a meter as they are processed."""
    with progress.meter(label, total) as meter:
        for item in items:
            yield item
            meter.advance()


def for_terminal(patience_s: float = 0.0) -> Progress:
    """Return a progress display on the current standard error: bars in a terminal, lines in a log.

    The stream is stored, because an orchestrator may turn `sys.stderr` into a file while a step runs.
    """
    stream = os.fdopen(os.dup(2), "w", buffering=1)
    return ProgressBars(stream, patience_s) if stream.isatty() else ProgressLines(stream, patience_s)


def for_command() -> Progress:
    """Return a progress display like `for_terminal`; work shorter than `PATIENCE_S` seconds shows nothing."""
    return ProgressBars(sys.stderr, PATIENCE_S) if sys.stderr.isatty() else ProgressLines(None, PATIENCE_S)
