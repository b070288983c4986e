"""Relay that follows a run's timeline and passes the numbers of each event to the sinks once.

    python -m plinth.training.sinks.relay runs/RUN/config.json [--once]

The supervisor starts the relay with the ranks. An unreachable sink delays only its own numbers, until the next retry in
this job or a later job. The numbers of an event are assigned to the run's current step, so that a sink receives them in
the order of steps. When steps repeat after a resume or a rollback, the sink is rolled back.

A bookmark (`sinks/NAME.json`) is the last step whose numbers a sink has flushed. A restarted relay goes back to that
step, so no numbers are written twice, even if the previous relay was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prometheus_client import generate_latest

from plinth import processes
from plinth.errors import PlinthError
from plinth.storage.atomic import write_bytes
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.sinks.added import SINKS, SinkRow, TimelineSink
from plinth.training.sinks.run_metrics import RUN, Families, RunFollower, scalars
from plinth.training.telemetry.timeline import Event, TimelineReader

# The sinks of a timeline: TensorBoard, Weights & Biases, Prometheus, and those of packages.


class SinkSource(NamedTuple):
    """Name of a sink, and a function that opens it. If the sink cannot be opened, this is tried again later."""

    name: str
    open: Callable[[], TimelineSink]
    goes_on: bool = True  # True to continue from the sink's bookmark, False to start at the beginning of the timeline


def folder(config: RunConfig) -> Path:
    """Return the folder with the bookmarks and files of a run's sinks."""
    return config.directory.root / "sinks"


def sources_of(config: RunConfig) -> list[SinkSource]:
    """Return the sinks of the run's recipe, and those of packages that the environment configures."""
    place = folder(config)
    chosen = (config.sinks.tensorboard, bool(config.sinks.wandb), config.sinks.prometheus)
    known = (
        SinkSource("tensorboard", lambda: TensorBoardFiles(place / "tensorboard")),
        SinkSource("wandb", lambda: WandbRun(config, place)),
        SinkSource("prometheus", lambda: PrometheusFile(config, place / "plinth.prom"), goes_on=False),
    )
    return [*(source for source, wanted in zip(known, chosen, strict=True) if wanted), *_added(config)]


def _added(config: RunConfig) -> list[SinkSource]:
    found = list[SinkSource]()
    for name in SINKS:
        try:
            if (sink := SINKS[name]).enabled():
                opened = partial(sink.open, config, folder(config) / f"{name}.json")
                found.append(SinkSource(name, opened, goes_on=False))
        except PlinthError as error:  # a broken package must not stop the run
            print(error, file=sys.stderr, flush=True)
    return found


class TensorBoardFiles:
    """TensorBoard event files, written by TensorBoard's own writer. Show them with `tensorboard --logdir FOLDER`.

    A repeated step replaces the earlier step. A restart marker (`SessionLog.START`) at a step tells TensorBoard that
    all later steps are out of date.
    """

    def __init__(self, logdir: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(logdir))

    def go_back(self, step: int) -> None:
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, session_log=start))

    def write(self, row: SinkRow) -> None:
        values = [self._summary.Summary.Value(tag=tag, simple_value=value) for tag, value in row.values.items()]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=row.time, step=row.step, summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbRun:
    """W&B run with this run's id, written by W&B's own client. An existing W&B run is continued.

    The API key is W&B's own (`wandb login`, WANDB_API_KEY).

    W&B's rows cannot be replaced. A row's number is the `seq` of the event, which increases over all restarts. The step
    is a column that charts use as x axis (`define_metric`). A repeated step is thus a new row, marked `redone`. If a
    killed relay had already sent a row, it is sent again under the same number, and W&B drops the duplicate.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        import wandb

        entity, _, project = config.sinks.wandb.rpartition("/")
        self._run = wandb.init(
            project=project,
            entity=entity or None,
            id=config.run_id,
            name=config.run_id,
            resume="allow",
            mode=config.sinks.wandb_mode,
            dir=str(folder),
            config=config.model_dump(mode="json", exclude={"workspace", "provenance"}),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def go_back(self, step: int) -> None:
        """Do nothing: W&B's rows stay, and repeated steps are marked."""

    def write(self, row: SinkRow) -> None:
        redone = {"redone": 1.0} if row.redone else {}
        # a row with a number of its own would wait for the next row
        self._run.log({"step": row.step, **row.values, **redone}, step=row.seq, commit=True)

    def flush(self) -> None:
        """Do nothing: W&B's own process writes the rows, and it has received a row once `log` returns."""

    def close(self) -> None:
        self._run.finish()


class PrometheusFile:
    """Metrics of a run in Prometheus' text format, for node_exporter's textfile collector. Each update replaces the
    whole file.

    The names come from `run_metrics`. `plinth_last_event_timestamp_seconds` shows the age of the numbers.
    """

    def __init__(self, config: RunConfig, path: Path) -> None:
        self._follower, self._path = RunFollower(config), path

    def go_back(self, step: int) -> None:
        """Do nothing, because the file contains only the newest numbers."""

    def write(self, row: SinkRow) -> None:
        """Do nothing. `flush` reads the timeline itself, including events without numbers."""

    def flush(self) -> None:
        self._follower.poll()
        write_bytes(self._path, generate_latest(Families(RUN, self._follower.state.samples)))

    def close(self) -> None: ...


#: Seconds between two reads of the timeline.
INTERVAL_S = 5.0

#: Seconds for the remaining rows of a relay when its job ends.
LAST_S = 60.0


class Mark(NamedTuple):
    """Bookmark of a sink: the last flushed step and its event, and the run's position before the event."""

    seq: int = 0
    at: int = 0
    step: int = 0
    furthest: int = 0


class Feed:
    """Progress of one sink along a run's timeline."""

    def __init__(self, config: RunConfig, source: SinkSource) -> None:
        self.source, self._path = source, folder(config) / f"{source.name}.json"
        self._sink: TimelineSink | None = None
        self._reader = TimelineReader(config.directory.events)
        self._mark = _read_mark(self._path) if source.goes_on else Mark()
        self._step, self._furthest, self._reached = self._mark.step, self._mark.furthest, self._mark
        self._kept: list[Event] = []  # from the bookmark on
        self._written, self._again = 0, True  # last flushed event; True to repeat all from the bookmark on

    def advance(self) -> int:
        """Send new rows to the sink and flush them. Return the number of events with numbers."""
        self._kept += [event for event in self._reader.poll() if event["seq"] >= self._mark.seq]
        events = [event for event in self._kept if self._again or event["seq"] > self._written]
        if not events:
            return 0
        if self._sink is None:
            self._sink = self.source.open()
        if self._again:
            self._step, self._furthest, self._reached = self._mark.step, self._mark.furthest, self._mark
            self._sink.go_back(self._mark.at)  # a failed first try may have written a part
        self._again = True  # reset once all is flushed
        written = sum(self._take(self._sink, event) for event in events)
        self._sink.flush()
        if self._reached != self._mark:
            self._mark = self._reached
            if self.source.goes_on:
                write_bytes(self._path, json.dumps(self._mark._asdict()).encode())
        self._kept = [event for event in self._kept if event["seq"] >= self._mark.seq]
        self._written, self._again = events[-1]["seq"], False
        return written

    def close(self) -> None:
        """Close the sink."""
        if self._sink is not None:
            self._sink.close()

    def _take(self, sink: TimelineSink, event: Event) -> bool:
        redone = False
        if event["event"] == "step":
            step = int(event["step"])
            self._reached = Mark(event["seq"], step, self._step, self._furthest)
            if step <= self._step:
                sink.go_back(step)
            redone = step <= self._furthest
            self._step, self._furthest = step, max(step, self._furthest)
        elif event["event"] == "rolled_back" and int(event["step"]) < self._step:
            self._step = int(event["step"])
            sink.go_back(self._step + 1)
        values = scalars(event)
        if values:
            sink.write(SinkRow(event["seq"], float(event["time"]), self._step, values, redone))
        return bool(values)


def start(config: RunConfig, path: Path) -> subprocess.Popen[bytes] | None:
    """Start the relay process of a job, if it has sinks."""
    if not sources_of(config):
        return None
    command = processes.python("plinth.training.sinks.relay", str(path))
    process: subprocess.Popen[bytes] = processes.start(
        command, *processes.STORES, *processes.SERVICES, stdin=subprocess.PIPE
    )  # it ends with this process in any case
    return process


def end(relay: subprocess.Popen[bytes] | None) -> None:
    """Let the relay process write the remaining rows, then end it."""
    if relay is None:
        return
    if relay.stdin is not None:
        relay.stdin.close()
    try:
        relay.wait(LAST_S)
    except subprocess.TimeoutExpired:
        what = "the relay to the sinks did not finish in time; the next job sends the remaining metrics"
        print(what, file=sys.stderr, flush=True)
        relay.kill()
        relay.wait()


def follow(feeds: Sequence[Feed], over: Callable[[float], bool]) -> None:
    """Send new rows to all sinks until `over` returns True, then send the remaining rows once. `over` is called with
    the number of seconds to wait."""
    said: dict[str, str] = {}
    last = over(0.0)
    while True:
        for feed in feeds:
            try:
                feed.advance()
                said.pop(feed.source.name, None)
            except Exception as error:  # from any tool; its rows are retried
                _say(said, feed.source.name, f"{type(error).__name__}: {error}")
        if last:
            break
        last = over(INTERVAL_S)
    for feed in feeds:
        with contextlib.suppress(Exception):  # flushed rows are safe
            feed.close()


def main() -> int:
    """Relay the timeline of the run named on the command line until standard input closes. Return the exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m plinth.training.sinks.relay", description=__doc__)
    parser.add_argument("config", help="runs/<run_id>/config.json")
    parser.add_argument("--once", action="store_true", help="relay the current timeline and exit")
    arguments = parser.parse_args()
    config = configuration.load(arguments.config)
    folder(config).mkdir(exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # a scheduler signals every process: the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    feeds = [Feed(config, source) for source in sources_of(config)]
    follow(feeds, lambda seconds: arguments.once or bool(select.select([sys.stdin], [], [], seconds)[0]))
    return 0


def _say(said: dict[str, str], name: str, what: str) -> None:
    """Print why a sink rejected numbers, unless the last message about the sink was the same."""
    if said.get(name) != what:
        said[name] = what
        print(f"sink {name} rejected numbers, retrying: {what}", file=sys.stderr, flush=True)


def _read_mark(path: Path) -> Mark:
    try:
        return Mark(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return Mark()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlinthError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
