"""Exporter: time of a refresh and of a scrape with 1,000 runs, bytes read, memory; its cost relative to the steps of a
run.

    python tests/benchmarks/bench_metrics.py [--workspace DIR] [--out FILE]

Memory is that of the process `plinth ops metrics serve` after every part was collected twice: resident and private;
and the peak memory and CPU seconds of the process of rarely collected parts, once in two minutes. DIR is a
workspace with releases.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil
from prometheus_client import generate_latest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from plinth.compute.context import Context  # noqa: E402
from plinth.storage.workspace import Workspace  # noqa: E402
from plinth.training import config as configuration  # noqa: E402
from plinth.training.sinks.run_metrics import (  # noqa: E402
    RUN,
    Families,
    RunFollower,
)
from plinth_ops.metrics.exporter import Exporter, ExportPart, serve  # noqa: E402
from plinth_ops.metrics.parts import RunsCollector  # noqa: E402
from plinth_ops.metrics.parts import exporter as workspace_exporter  # noqa: E402
from tests.living_job import give_job  # noqa: E402
from tests.plinth.training.conftest import tiny  # noqa: E402
from tests.prometheus_server import free_port, wait_for  # noqa: E402

STEPS = 200
DAY = 86400.0
RESULTS = Path(__file__).parent / "results" / "metrics.json"
#: Runs of a workspace: what they are, how many are under way, seconds since the others ended.
RUNS = (
    ("12 runs, of which 1 is under way", 12, 1, 2 * DAY),
    ("1,000 runs, ended two days ago", 1000, 0, 2 * DAY),
    ("1,000 runs, of which 10 are under way, others ended two days ago", 1000, 10, 2 * DAY),
    ("1,000 runs, ended just now", 1000, 0, 0.0),
    ("1,000 runs under way", 1000, 1000, 0.0),
)
MEASURED: list[dict[str, object]] = []


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


def make(space: Path, name: str, active: bool, steps: int = STEPS, ago: float = 0.0) -> Path:
    """Create a run with `steps` steps of one second each, the last of them `ago` seconds ago; return its timeline."""
    config = tiny(space, run_id=name)
    configuration.write(config)
    if active:
        give_job(config, outlives_test=True)
    begin = time.time() - steps - ago
    lines = [json.dumps({"seq": 1, "time": begin, "event": "job_started", "ranks": 2, "nodes": 1}) + "\n"]
    lines += [event(number + 1, number, begin + number) for number in range(1, steps + 1)]
    if not active:
        lines.append(json.dumps({"seq": steps + 2, "time": time.time() - ago, "event": "finished"}) + "\n")
    config.directory.events.write_text("".join(lines))
    os.utime(config.directory.events, (time.time() - ago,) * 2)
    return config.directory.events


def note(measure: str, value: float, unit: str) -> None:
    MEASURED.append({"measure": measure, "value": round(value, 6), "unit": unit})


def measured(what: str, seconds: float, more: str = "") -> None:
    note(what.strip(), seconds, "s")
    print(f"{what:<60}{seconds * 1000:>10.1f} ms  {more}", flush=True)


def workspace(active: int, of: int = 1000) -> None:
    """Measure refreshes and scrapes with `active` runs under way."""
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


def memory(pid: int) -> tuple[float, float]:
    """Resident and private MiB of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
    return found["Rss:"], found["Private_Clean:"] + found["Private_Dirty:"]


def process(what: str, space: Path, looks: int = 4) -> None:
    """The real process of a workspace: scrapes and memory, once all parts are collected and refreshes have passed."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "plinth_jobs.cli",
        "-w",
        str(space),
        "ops",
        "metrics",
        "serve",
        "--port",
        str(port),
    ]
    served = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: scrape(port) if b"plinth_sli_objective_ratio" in scrape(port)[1] else None, "all parts")
        taken = []
        for _ in range(looks * 5):
            time.sleep(1)
            taken.append(scrape(port)[0])
        resident, own = memory(served.pid)
        spent = psutil.Process(served.pid).cpu_times()
        up = [line for line in scrape(port)[1].splitlines() if line.startswith(b"plinth_collector_up")]
        assert all(line.endswith(b" 1.0") for line in up), up
    finally:
        served.terminate()
        served.wait()
    note(f"{what}: resident", resident, "MiB")
    note(f"{what}: private", own, "MiB")
    note(f"{what}: scrape, median", sorted(taken)[len(taken) // 2], "s")
    note(f"{what}: scrape, slowest", max(taken), "s")
    note(f"{what}: processor of the exporter and its seldom parts, first collection of all counted", spent.user
         + spent.system + spent.children_user + spent.children_system, "s")  # fmt: skip
    scrapes = f"scrape {sorted(taken)[len(taken) // 2] * 1000:.1f} ms, slowest {max(taken) * 1000:.1f}"
    print(f"{what:<66}{resident:>7.1f} MiB resident, {own:.1f} private; {scrapes}", flush=True)


def scrape(port: int) -> tuple[float, bytes]:
    """Seconds and text."""
    begun = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        body: bytes = answer.read()
    return time.perf_counter() - begun, body


def seldom(space: Path) -> None:
    """Measure the process of rarely collected parts, once for each of three collections."""
    found, most = workspace_exporter(Context(Workspace(space))), 0.0
    for _ in range(3):
        for part in found.parts:
            part.due = 0.0
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.refresh()
        while any(part.begun is not None for part in found.parts):
            time.sleep(0.02)
            most = max(most, *(child.memory_info().rss / 2**20 for child in psutil.Process().children()), 0.0)
            found.refresh()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        measured("seldom parts: processor time of their process", spent, f"{most:.0f} MiB at most")
    note("seldom parts: most memory of their process", most, "MiB")


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
            generate_latest(Families(RUN, follower.state.samples))
            spent += time.process_time() - begun
        grown = psutil.Process().memory_info().rss - before
        measured(f"beside a run: CPU a step, over {steps:,} steps", spent / steps, f"{grown / 2**20:.1f} MiB more")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workspace", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    for steps in (5_000, 20_000):
        beside_a_run(steps)
    for what, count, active, ago in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            space = Workspace(folder).ensure()
            for number in range(count):
                make(space.root, f"r{number:04d}", number < active, ago=0.0 if number < active else ago)
            process(what, space.root)
    if given.workspace:
        process("a workspace with a release", given.workspace)
        seldom(given.workspace)
    for active in (0, 100, 1000):
        workspace(active)
    given.out.write_text(json.dumps(MEASURED, indent=2) + "\n")
