"""Lines of the index about training runs."""

from __future__ import annotations

import os
from pathlib import Path

from jobs.workspace_index.links import beside
from jobs.workspace_index.pages import utc
from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation import goodput
from plinth.report.workspace_index import RunLine, Standing
from plinth.training import config as configuration
from plinth.training.job import launcher_of
from plinth.training.telemetry import run_figures
from plinth.training.telemetry.timeline import read_events


def stat_of(path: Path) -> os.stat_result | None:
    """Size and times of a file; None where it was removed meanwhile."""
    try:
        return path.stat()
    except OSError:
        return None


def line(ctx: Context, path: Path) -> RunLine:
    """A run by its configuration; one that cannot be read is `unknown`."""
    name = path.parent.name
    try:
        config = configuration.load(path)
        events = list(read_events(config.directory.events))
        state, standing = _run_state(config, str(events[-1]["event"]) if events else "")
        share = goodput.account(events, config.ranks).goodput
    except PlinthError as error:
        return RunLine(run=name, state=error.what, standing="unknown", steps=0, total_steps=0)
    steps = [event for event in events if event["event"] == "step"]
    last = max(steps, key=lambda event: int(event["step"]), default=None)
    return RunLine(
        run=name,
        state=state,
        standing=standing,
        steps=int(last["step"]) if last else 0,
        total_steps=config.total_steps,
        loss=run_figures.of_events(events).final_loss,
        goodput=share,
        updated=utc(float(events[-1]["time"])) if events else "",
        href=beside(ctx, f"{name}.html"),
    )


def _run_state(config: configuration.RunConfig, last: str) -> tuple[str, Standing]:
    """In a word, from the last event and, where that is no end, from its launcher."""
    ends: dict[str, Standing] = {"finished": "good", "failed": "bad", "lost": "bad", "stopped": "attention"}
    if last in ends:
        return last, ends[last]
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    if handle is not None and launcher.poll(handle).alive:
        return "under way", "good"
    return "ended without a word", "bad"
