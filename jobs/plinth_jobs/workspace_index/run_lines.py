"""Lines of the index about training runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation import goodput
from plinth.report.workspace_index import RunLine, Standing
from plinth.training import config as configuration
from plinth.training.run_state import RunState, run_state
from plinth.training.telemetry import run_figures
from plinth.training.telemetry.timeline import read_events
from plinth_jobs.workspace_index.links import beside
from plinth_jobs.workspace_index.pages import utc

#: Words of the page for states that need some.
WORDS = {RunState.LOST: "lost (its job is gone)", RunState.UNKNOWN: "unknown (its scheduler does not answer here)"}
STANDINGS: dict[RunState, Standing] = {
    RunState.PREPARED: "none",
    RunState.QUEUED: "good",
    RunState.RUNNING: "good",
    RunState.FINISHED: "good",
    RunState.STOPPED: "attention",
    RunState.FAILED: "bad",
    RunState.LOST: "bad",
    RunState.UNKNOWN: "unknown",
}


def states_of(ctx: Context, runs: Iterable[str]) -> list[tuple[str, str]]:
    """The state of each open run: a job that is killed changes no file."""
    found = []
    for run in runs:
        with suppress(PlinthError):
            found.append((run, str(run_state(configuration.load(ctx.workspace.runs / run / "config.json")))))
    return found


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
        state = run_state(config)
        share = goodput.account(events, config.ranks).goodput
    except PlinthError as error:
        return RunLine(run=name, state=error.what, standing="unknown", steps=0, total_steps=0)
    steps = [event for event in events if event["event"] == "step"]
    last = max(steps, key=lambda event: int(event["step"]), default=None)
    return RunLine(
        run=name,
        state=WORDS.get(state, str(state)),
        standing=STANDINGS[state],
        steps=int(last["step"]) if last else 0,
        total_steps=config.total_steps,
        loss=run_figures.of_events(events).final_loss,
        goodput=share,
        updated=utc(float(events[-1]["time"])) if events else "",
        href=beside(ctx, f"{name}.html"),
    )
