"""Interface of a sink, and the sinks that packages add.

The environment configures a package's sink, not the recipe.
Does not belong here: the relay that feeds sinks. It runs as a program, so a package that imported it would get a second
copy of its classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from plinth.extensions import Catalogue
from plinth.training.config import RunConfig


class SinkRow(NamedTuple):
    """Numbers of an event at the current step of the run."""

    seq: int
    time: float
    step: int
    values: dict[str, float]
    redone: bool = False  # True if the step is a repetition


class TimelineSink(Protocol):
    """A sink for one tool. Its exceptions are printed, and the same rows are retried."""

    def go_back(self, step: int) -> None:
        """Discard the rows that were written for this step and later steps."""

    def write(self, row: SinkRow) -> None: ...

    def flush(self) -> None:
        """Write all rows, and return when they are visible to other processes."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class AddedSink:
    """Sink that a package adds: a member of the entry point group `plinth.sinks`. It gets each event of the timeline.

    Args:
        name: name of the entry point.
        enabled: function that returns True if the environment configures the sink.
        open: `(configuration, file for the sink's bookmark)` -> sink, which reads the timeline itself at each flush.
    """

    name: str
    enabled: Callable[[], bool]
    open: Callable[[RunConfig, Path], TimelineSink]


SINKS = Catalogue("plinth.sinks", "sink of a run", AddedSink, {})
