"""Exporter: time of a refresh and of a scrape with 1,000 runs, bytes read, memory; cost beside a run's steps."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from plinth.operation.metrics.exporter import Exporter, ExportPart, serve  # noqa: E402
from plinth.operation.metrics.runs import RunsCollector  # noqa: E402
from plinth.training import config as configuration  # noqa: E402
from plinth.training.sinks.metric import exposition  # noqa: E402
from plinth.training.sinks.run_follower import RunFollower  # noqa: E402
from plinth.training.sinks.run_metrics import RUN  # noqa: E402
from tests.plinth.training.conftest import tiny  # noqa: E402
from tests.prometheus_server import free_port  # noqa: E402

STEPS = 200


def event(seq: int, number: int, now: float) -> str:
    """A step as a rank writes it."""
    parts = {"data": 0.001, "host": 0.002, "forward": 0.3, "backward": 0.6, "communication": 0.05, "optimizer": 0.04}
    return json.dumps({
        "seq": seq, "time": now, "event": "step", "step": number, "loss": 3.2, "grad_norm": 1.1, "lr": 0.001,
        "loss_ema": 3.2, "batch": "0f" * 16, "tokens": number * 524288, "tokens_per_s": 524288.0, "data_wait_s": 0.001,
        "step_s": 1.0, "parts": parts, "host_memory_bytes": 10**10,
    }) + "\n"  # fmt: skip


def other(seq: int, kind: str, **fields: object) -> str:
    """Another event, at the time of a step."""
    return json.dumps({"seq": seq, "time": time.time() + seq, "event": kind, **fields}) + "\n"


def make(space: Path, name: str, active: bool, steps: int = STEPS) -> Path:
    """A run with so many steps, a second each; its timeline."""
    config = tiny(space, run_id=name)
    configuration.write(config)
    begin = time.time() - steps
    lines = [json.dumps({"seq": 1, "time": begin, "event": "job_started", "ranks": 2, "nodes": 1}) + "\n"]
    lines += [event(number + 1, number, begin + number) for number in range(1, steps + 1)]
    if not active:
        lines.append(json.dumps({"seq": steps + 2, "time": time.time(), "event": "finished"}) + "\n")
    config.directory.events.write_text("".join(lines))
    return config.directory.events


def measured(what: str, seconds: float, more: str = "") -> None:
    print(f"{what:<60}{seconds * 1000:>10.1f} ms  {more}", flush=True)


def workspace(active: int, of: int = 1000) -> None:
    """Refreshes and scrapes with so many runs under way."""
    with tempfile.TemporaryDirectory() as folder:
        timelines = [make(Path(folder), f"r{number:04d}", number < active) for number in range(of)]
        before, runs = psutil.Process().memory_info().rss, RunsCollector(Path(folder) / "runs")
        exporter = Exporter([ExportPart("runs", 0.0, runs.collect)], lambda: runs.read_bytes)
        begun = time.perf_counter()
        exporter.refresh()
        first = time.perf_counter() - begun
        measured(f"{active} of {of} runs under way: first refresh", first, f"{runs.read_bytes:,} bytes read")
        for path in timelines[: min(active, 100)]:
            with path.open("a") as stream:
                stream.write(event(10**6, STEPS + 1, time.time()))
        read, begun = runs.read_bytes, time.perf_counter()
        exporter.refresh()
        again = time.perf_counter() - begun
        measured("  refresh with an event of each of 100", again, f"{runs.read_bytes - read:,} bytes read")
        begun = time.perf_counter()
        exporter.refresh()
        measured("  refresh without any", time.perf_counter() - begun, f"{len(exporter.text):,} bytes of text")
        grown = (psutil.Process().memory_info().rss - before) / 2**20
        port, stop = free_port(), threading.Event()
        thread = threading.Thread(target=serve, args=(exporter, "127.0.0.1", port, stop.is_set, stop.wait))
        thread.start()
        time.sleep(2)
        taken = []
        for _ in range(20):
            begun = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()
            taken.append(time.perf_counter() - begun)
        stop.set()
        thread.join()
        slowest = f"slowest {max(taken) * 1000:.1f} ms; {grown:.0f} MiB more"
        measured("  scrape: median of 20", sorted(taken)[10], slowest)


def beside_a_run(steps: int) -> None:
    """CPU time of the process that follows a run, for a step of a second; its memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder), "r", True, 1)
        follower = RunFollower(configuration.load(path.with_name("config.json")))
        before, spent = psutil.Process().memory_info().rss, 0.0
        for first in range(2, steps, 5):  # five steps a look, as the relay's
            with path.open("a") as stream:
                stream.write("".join(event(n + 1, n, time.time() + n) for n in range(first, first + 5)))
                if first % 500 == 2:  # of three checkpoints, the earliest goes
                    stream.write(other(first, "checkpoint", step=first))
                    stream.write(other(first, "retired", steps=[first - 1500]))
            begun = time.process_time()
            follower.poll()
            exposition(RUN, follower.state.samples())
            spent += time.process_time() - begun
        grown = psutil.Process().memory_info().rss - before
        measured(f"beside a run: CPU a step, over {steps:,} steps", spent / steps, f"{grown / 2**20:.1f} MiB more")
    memory = psutil.Process().memory_full_info()
    shown = f"{memory.uss / 2**20:>10.1f} MiB  with libraries that ranks have too: {memory.rss / 2**20:.0f} MiB"
    print(f"{'memory of this process, its own':<60}{shown}")


if __name__ == "__main__":
    for steps in (5_000, 20_000):
        beside_a_run(steps)
    for active in (0, 100, 1000):
        workspace(active)
