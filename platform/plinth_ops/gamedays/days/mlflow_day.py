"""Game day of MLflow: its server is away while a run trains and its timeline is relayed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import read_events
from plinth_assets.training import TimelineRelay
from plinth_jobs.recipes import find, load
from plinth_ops.gamedays import alerting, rehearsal, warm_job
from plinth_ops.gamedays.faulty_line import FaultyLine
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.play import variables
from plinth_ops.gamedays.rehearsal import Rehearsal
from plinth_registry.mlflow import connection
from plinth_registry.mlflow.server import ensure_server, stop_server
from plinth_registry.registration import ensure_run

_SERVER = "MLFLOW_TRACKING_URI"

#: For MLflow's own client: a line that is cut is tried again once; a server that is only slow is waited for.
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}


@dataclass(frozen=True)
class Served:
    """The undisturbed run, and a server of MLflow."""

    whole: Rehearsal
    workspace: Workspace
    uri: str
    recipe: Recipe


def serve(folder: Path) -> Served:
    """An undisturbed run that MLflow has not heard of, and its server."""
    workspace = Workspace(folder / "mlflow").ensure()
    return Served(rehearsal.rehearse(folder / "whole"), workspace, ensure_server(workspace), load(find("tiny")))


def mlflow_away(made: Served, folder: Path, chooser: Random) -> Struck:
    """Relay the timeline of a run to a server that is away from one event to another."""
    config = made.whole.copy(folder / "workspace")
    config = config.model_copy(update={"run_id": config.run_id})
    status = warm_job.run(config)
    events = list(read_events(config.directory.events))
    first = chooser.randrange(len(events) - 1)
    last = chooser.randint(first + 1, len(events))
    name = f"{config.run_id}-{folder.name}"
    host = made.uri.removeprefix("http://").rstrip("/")
    with FaultyLine(host, 0, 0) as line, variables({_SERVER: f"http://127.0.0.1:{line.port}", **_IMPATIENT}):
        refused = _relay(made, config, name, events, line, first, last)
        relayed = _steps(made, name)
    expected = [(event["step"], event["loss"]) for event in events if event["event"] == "step"]
    found = [
        rehearsal.finished(status),
        Outcome(what="while it is away nothing is lost silently", passed=bool(refused), seen="; ".join(refused[:1])),
        finding("afterwards MLflow has every step once, with its loss", relayed, expected),
        *made.whole.end_state(config),
        *alerting.no_page(config),
    ]
    return Struck(f"away from event {first + 1} to {last} of {len(events)}", tuple(found))


def _relay(
    made: Served, config: RunConfig, name: str, events: list[dict[str, Any]], line: FaultyLine, first: int, last: int
) -> list[str]:
    """Relay event by event; what was said of batches that MLflow did not accept."""
    said: list[str] = []
    relay = TimelineRelay(Context(Workspace(config.workspace)), made.recipe, name, said.append, interval_s=0.0)
    for number, event in enumerate(events):
        line.failures_left = 10**9 if first <= number < last else 0
        relay.add(event)
        if first <= number < last:
            relay.drain()
    if last == len(events):
        try:
            relay.finish([])
        except PlinthError as error:
            said.append(error.what)
    line.failures_left = 0
    relay.finish([])
    return said


def _steps(made: Served, name: str) -> list[tuple[int, float]]:
    """What MLflow has of the loss, in order of steps."""
    client = connection.connect(made.workspace)
    run = ensure_run(client, made.recipe.name, name)
    return sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss"))


def _end(made: Served) -> None:
    stop_server(made.workspace)


MLFLOW: Final = GameDay(
    name="mlflow-away",
    hypothesis="A run trains on while MLflow is away; what could not be relayed is said, kept, and relayed once it is "
    "back: every step once.",
    fault="The line to MLflow's server is cut from one event of the timeline to another.",
    blast_radius=f"{OWN} A server of MLflow of its own, on loopback.",
    protection="events wait until MLflow has accepted them, and marks keep those that it has from coming twice",
    abort_s=900.0,
    prepare=serve,
    play=mlflow_away,
    end=_end,
)
