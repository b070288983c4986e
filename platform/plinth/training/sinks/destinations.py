"""The sinks of a timeline: TensorBoard, Weights & Biases, Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from prometheus_client import generate_latest

from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.sinks.metric import Families
from plinth.training.sinks.run_metrics import RUN, RunFollower


class SinkRow(NamedTuple):
    """The numbers of an event at the step that the run had come to."""

    seq: int
    time: float
    step: int
    values: dict[str, float]
    redone: bool = False  # the step came before, and comes again


class TimelineSink(Protocol):
    """One tool. What it raises is printed, and the same rows come again."""

    def go_back(self, step: int) -> None:
        """Rows from this step on that were written before do not count any more."""

    def write(self, row: SinkRow) -> None: ...

    def flush(self) -> None:
        """Return when all rows are where another process finds them."""

    def close(self) -> None: ...


class SinkSource(NamedTuple):
    """How a sink is opened, which may fail and is tried again."""

    name: str
    open: Callable[[], TimelineSink]
    goes_on: bool = True  # from its mark; otherwise from the beginning of the timeline


def folder(config: RunConfig) -> Path:
    """Where sinks keep their marks and files."""
    return config.directory.root / "sinks"


def sources_of(config: RunConfig) -> list[SinkSource]:
    """The sinks of the run's recipe."""
    place = folder(config)
    chosen = (config.sinks.tensorboard, bool(config.sinks.wandb), config.sinks.prometheus)
    known = (
        SinkSource("tensorboard", lambda: TensorBoardFiles(place / "tensorboard")),
        SinkSource("wandb", lambda: WandbRun(config, place)),
        SinkSource("prometheus", lambda: PrometheusFile(config, place / "plinth.prom"), goes_on=False),
    )
    return [source for source, wanted in zip(known, chosen, strict=True) if wanted]


class TensorBoardFiles:
    """Event files of TensorBoard, by its own writer: `tensorboard --logdir FOLDER` shows them.

    A step that comes again replaces the one before: a restart mark (`SessionLog.START`) at a step tells TensorBoard
    that all from that step on is out of date.
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
    """The run of this id, by W&B's own client; one that exists is continued. The key is W&B's own (`wandb login`,
    WANDB_API_KEY).

    W&B's rows cannot be replaced. Its row number is the `seq` of the event, which rises over all restarts, and the step
    is a column that charts are drawn over (`define_metric`): so a step that comes again is a row of its own, marked
    `redone`. A row that a killed relay had handed over comes again under its own number, which W&B drops for a run that
    it knows.
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
        """Nothing: its rows stay, and those that come again are marked."""

    def write(self, row: SinkRow) -> None:
        redone = {"redone": 1.0} if row.redone else {}
        # with a number of its own a row would wait for the next one
        self._run.log({"step": row.step, **row.values, **redone}, step=row.seq, commit=True)

    def flush(self) -> None:
        """W&B's own process writes; a row is with it once `log` returns."""

    def close(self) -> None:
        self._run.finish()


class PrometheusFile:
    """The metrics of a run as a file of Prometheus' text format, for node_exporter's textfile collector; it is replaced
    as a whole.

    Names are those of `run_metrics`; `plinth_last_event_timestamp_seconds` says how old the numbers are.
    """

    def __init__(self, config: RunConfig, path: Path) -> None:
        self._follower, self._path = RunFollower(config), path

    def go_back(self, step: int) -> None:
        """Nothing: only the last numbers are kept."""

    def write(self, row: SinkRow) -> None:
        """Nothing: the follower reads the timeline itself, whose events without numbers count as well."""

    def flush(self) -> None:
        self._follower.poll()
        write_bytes(self._path, generate_latest(Families(RUN, self._follower.state.samples)))

    def close(self) -> None: ...
