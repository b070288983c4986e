"""Sinks hold the values of the timeline, one per step, wherever a relay is killed. The tools read them back."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Sinks
from plinth.training.sinks import relay
from plinth.training.sinks.relay import Feed, SinkRow, SinkSource, folder, sources_of
from plinth.training.sinks.run_metrics import scalars
from plinth.training.telemetry.timeline import Timeline

Make = Callable[..., RunConfig]


def story(config: RunConfig) -> list[dict[str, Any]]:
    """Five steps, a look, a checkpoint that ends late; a resume from step 3, a rollback to step 4, two steps more."""
    events, told = Timeline(config.directory.events), list[dict[str, Any]]()

    def add(event: str, **fields: Any) -> None:
        told.append(events.append(event, **fields))

    def step(number: int, loss: float, **more: Any) -> None:
        add("step", step=number, loss=loss, parts={"forward": min(loss, 8.0) / 4}, batch="0f", **more)

    add("run_started", ranks=1)
    for number in (1, 2, 3, 4, 5):
        step(number, 10.0 - number)
        if number == 3:
            add("evaluated", step=3, tokens=30, slices={"web": 1.5}, probes={"maths": {"score": 0.5, "control": 0.7}})
    add("checkpoint", step=3, seconds=2.0, bytes=7)
    add("restart", attempt=1, reason="killed")
    add("resumed", step=3)
    step(4, 3.5, redone=True)
    add("evaluated", step=4, tokens=40, slices={"web": 1.25}, probes={})
    step(5, 2.5, redone=True)
    step(6, float("inf"))
    add("rolled_back", step=4, undone=2, number=1)
    add("skipped", step=5)
    step(6, 1.5)
    step(7, 0.5)
    return told


#: Final values of the story that count, by name: step and value.
TOLD = {
    "loss": {1: 9.0, 2: 8.0, 3: 7.0, 4: 3.5, 6: 1.5, 7: 0.5},
    "parts/forward": {1: 2.0, 2: 2.0, 3: 1.75, 4: 0.875, 6: 0.375, 7: 0.125},
    "heldout/web": {3: 1.5, 4: 1.25},
    "probe/maths": {3: 0.5},
    "probe/maths/control": {3: 0.7},
    "events/rolled_back": {4: 1.0},
    "events/skipped": {4: 1.0},
}


class Memory:
    """A sink whose rows are what a tool would show; it dies at the n-th write or flush."""

    def __init__(self, kept: dict[str, dict[int, float]], dies_at: int = -1) -> None:
        self.kept, self.left = kept, dies_at

    def go_back(self, step: int) -> None:
        for values in self.kept.values():
            for later in [each for each in values if each >= step]:
                del values[later]

    def write(self, row: SinkRow) -> None:
        self._live()
        for name, value in row.values.items():
            assert row.step not in self.kept[name] or name.startswith("events/"), f"{name} twice at step {row.step}"
            self.kept[name][row.step] = value

    def flush(self) -> None:
        self._live()

    def close(self) -> None: ...

    def _live(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise ConnectionError("away")


def counted(kept: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    return {name: {step: pytest.approx(value) for step, value in kept[name].items()} for name in TOLD}


@pytest.mark.parametrize("killed", [False, True])
def test_every_step_has_one_value_wherever_a_relay_fails(make: Make, killed: bool) -> None:
    """Each write and each flush fails once; the relay goes on, or another one begins from the mark."""
    config = make()
    lines = len(story(config))
    text = config.directory.events.read_bytes().splitlines(keepends=True)
    folder(config).mkdir()
    for dies_at in range(1, 24):
        for chunk in (1, 4, lines):
            (folder(config) / "memory.json").unlink(missing_ok=True)
            kept: dict[str, dict[int, float]] = defaultdict(dict)
            sink = Memory(kept, dies_at)
            feed = Feed(config, SinkSource("memory", lambda sink=sink: sink))  # type: ignore[misc]
            for end in range(chunk, lines + chunk, chunk):
                config.directory.events.write_bytes(b"".join(text[:end]))
                feed._reader._file = config.directory.events.stat().st_ino or feed._reader._file
                try:
                    feed.advance()
                except ConnectionError:
                    if killed:
                        feed = Feed(config, SinkSource("memory", lambda sink=sink: sink))  # type: ignore[misc]
                    feed.advance()
            assert counted(kept) == TOLD, (dies_at, chunk)


def test_tensorboard_reads_back_what_the_timeline_says(make: Make) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make(sinks=Sinks(tensorboard=True))
    told = story(config)
    text = config.directory.events.read_bytes().splitlines(keepends=True)
    folder(config).mkdir()
    (source,) = sources_of(config)
    for end in (7, 12, len(text)):  # three relays, each of which begins where the one before had got to
        config.directory.events.write_bytes(b"".join(text[:end]))
        feed = Feed(config, source)
        feed.advance()
        feed.close()
        assert feed.advance() == 0
    read = EventAccumulator(str(folder(config) / "tensorboard"))
    read.Reload()
    found = {tag: [(each.step, each.value) for each in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    expected = {name: [(step, pytest.approx(value)) for step, value in values.items()] for name, values in TOLD.items()}
    assert {name: found[name] for name in TOLD if not name.startswith("events/")} == {
        name: values for name, values in expected.items() if not name.startswith("events/")
    }
    assert "batch" not in found
    last = read.Scalars("loss")[-1]
    assert last.wall_time == pytest.approx(told[-1]["time"])


def records(data: bytes) -> Iterator[bytes]:
    """The records of a file of W&B: LevelDB's log format after a header of seven bytes."""
    block, header, at, whole = 32768, 7, 7, b""
    while at + header <= len(data):
        if block - at % block < header:  # too little room in a block is padding
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + header])
        whole += data[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # a whole record, or its last part
            yield whole
            whole = b""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_wandb_holds_each_event_once_and_marks_what_is_redone(make: Make, monkeypatch: Any, tmp_path: Path) -> None:
    """Offline, by W&B's own client; its file is read with its own messages."""
    from wandb.proto import wandb_internal_pb2

    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    config = make(sinks=Sinks(wandb="team/pretraining", wandb_mode="offline"))
    told = story(config)
    folder(config).mkdir()
    (source,) = sources_of(config)
    feed = Feed(config, source)
    feed.advance()
    feed.close()
    (path,) = (folder(config) / "wandb").glob(f"offline-run-*-{config.run_id}/run-*.wandb")
    rows, runs = list[dict[str, float]](), list[Any]()
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): float(item.value_json) for item in record.history.item}
            rows.append(items)
        elif record.WhichOneof("record_type") == "run":
            runs.append(record.run)
    assert (runs[0].run_id, runs[0].project, runs[0].entity) == (config.run_id, "pretraining", "team")
    with_numbers = [event for event in told if scalars(event)]
    assert [row["_step"] for row in rows] == [event["seq"] for event in with_numbers]
    losses = [(row["step"], row["loss"], row.get("redone", 0.0)) for row in rows if "loss" in row]
    assert losses == [
        (1, 9, 0), (2, 8, 0), (3, 7, 0), (4, 6, 0), (5, 5, 0), (4, 3.5, 1), (5, 2.5, 1), (6, 1.5, 1), (7, 0.5, 0)
    ]  # fmt: skip


def test_prometheus_reads_the_last_numbers(make: Make) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    config = make(sinks=Sinks(prometheus=True))
    story(config)
    gpus = [{"gpu": 0, "utilisation": 90, "power_w": None}]
    Timeline(config.directory.devices / "node-0000.jsonl").append("devices", node=0, host='n"1', gpus=gpus)
    folder(config).mkdir()
    for _ in range(2):  # the second begins again, and counts the same
        feed = Feed(config, sources_of(config)[0])
        feed.advance()
        text = (folder(config) / "plinth.prom").read_text()
        families = text_string_to_metric_families(text)
        samples = {(s.name, *sorted(set(s.labels.items()))): s.value for one in families for s in one.samples}
        run = ("run", config.run_id)
        assert samples["plinth_train_loss", run] == 0.5
        assert samples["plinth_step", run] == 7
        assert samples["plinth_step_seconds", ("part", "forward"), run] == 0.125
        assert samples["plinth_heldout_bits_per_byte", run, ("slice", "web")] == 1.25
        assert samples["plinth_events_total", ("kind", "step"), run] == 10
        assert samples["plinth_gpu_utilisation", ("gpu", "0"), ("host", 'n"1'), run] == 90
        assert not any(name == "plinth_gpu_power_w" for name, *_ in samples)


def test_a_relay_ends_with_its_supervisor_and_has_written_all(make: Make, job_environment: Any) -> None:
    config = make(sinks=Sinks(tensorboard=True, prometheus=True))
    path = configuration.write(config)
    story(config)
    command = [sys.executable, "-m", "plinth.training.sinks.relay", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=job_environment())
    relay.end(process)
    assert process.returncode == 0
    assert (folder(config) / "plinth.prom").exists()
    assert list((folder(config) / "tensorboard").glob("events.out.tfevents.*"))
    assert relay.start(make(), path) is None  # no sink, no process


def test_a_sink_that_is_away_is_said_once_and_its_numbers_come_later(
    make: Make, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    config = make()
    story(config)
    folder(config).mkdir()
    kept: dict[str, dict[int, float]] = defaultdict(dict)
    tries = iter([ImportError("no such package"), ImportError("no such package"), None])

    def opened() -> Memory:
        if (error := next(tries)) is not None:
            raise error
        return Memory(kept)

    turns = iter([False, False, False, True])
    relay.follow([Feed(config, SinkSource("memory", opened))], lambda seconds: next(turns))
    assert counted(kept) == TOLD
    assert capfd.readouterr().err.count("sink memory rejected numbers") == 1
