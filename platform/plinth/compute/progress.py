"""Progress of long work: a bar in a terminal, plain lines in a log, silence when asked."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Protocol

from plinth.text.terminal import visible

LOG_INTERVAL_S = 5.0


class Meter(Protocol):
    """Progress of one piece of work: a count, and lines of text."""

    def advance(self, n: int = 1, note: str = "") -> None: ...

    def tell(self, text: str) -> None: ...


class Progress(Protocol):
    """Makes a meter for one piece of work."""

    def meter(self, label: str, total: int) -> AbstractContextManager[Meter]: ...


class Silent:
    """No output; for tests and for callers that report by themselves."""

    @contextmanager
    def meter(self, label: str, total: int) -> Iterator[Meter]:
        yield _SilentMeter()


class _SilentMeter:
    def advance(self, n: int = 1, note: str = "") -> None:
        return

    def tell(self, text: str) -> None:
        return


class ProgressLines:
    """At most one line every few seconds while work goes on, and one at the end.

    Args:
        stream: where to; standard error, as it is when a line is written, unless given.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream

    @contextmanager
    def meter(self, label: str, total: int) -> Iterator[Meter]:
        meter = _LineMeter(label, total, self.stream)
        yield meter
        meter.finish()


class _LineMeter:
    def __init__(self, label: str, total: int, stream: IO[str] | None) -> None:
        self.label, self.total, self.done, self.stream = label, total, 0, stream
        self.started = self.spoke = time.monotonic()

    def advance(self, n: int = 1, note: str = "") -> None:
        self.done += n
        if time.monotonic() - self.spoke >= LOG_INTERVAL_S:
            self.spoke = time.monotonic()
            self._say(note)

    def tell(self, text: str) -> None:
        print(visible(f"{self.label}: {text}"), file=self.stream or sys.stderr, flush=True)

    def finish(self) -> None:
        self._say(f"in {time.monotonic() - self.started:.1f} s")

    def _say(self, note: str) -> None:
        line = f"{self.label}: {self.done}/{self.total} {note}".rstrip()
        print(visible(line), file=self.stream or sys.stderr, flush=True)


class ProgressBars:
    """Rich bars; finished ones stay on screen.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    @contextmanager
    def meter(self, label: str, total: int) -> Iterator[Meter]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description:<34}", markup=False),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
        )
        with RichProgress(*columns, console=Console(file=self.stream)) as bars:
            task = bars.add_task(visible(label), total=total, note="")
            yield _BarMeter(bars, task)


class _BarMeter:
    def __init__(self, bars: object, task: object) -> None:
        self.bars, self.task = bars, task

    def advance(self, n: int = 1, note: str = "") -> None:
        self.bars.update(self.task, advance=n, note=visible(note))  # type: ignore[attr-defined]

    def tell(self, text: str) -> None:
        self.bars.console.print(visible(text), markup=False, highlight=False)  # type: ignore[attr-defined]


def for_terminal() -> Progress:
    """Bars where a person watches, lines where a log is kept: on standard error as it is now.

    The stream is kept apart from `sys.stderr`, which an orchestrator may turn into a file while a step runs.
    """
    stream = os.fdopen(os.dup(2), "w", buffering=1)
    return ProgressBars(stream) if stream.isatty() else ProgressLines(stream)
