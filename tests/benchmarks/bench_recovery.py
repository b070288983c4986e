"""Recovery in seconds: eight ranks of a tiny model on four nodes, each with a supervisor of its own on this machine.

    cost        one run with a copy after every step and one without, in pairs whose order alternates: CPU seconds of
                the whole job per step; their difference is the cost of a copy
    recovery    a rank of another node than the first is killed; seconds from the kill to the next step, steps repeated
    goodput     simulated for 64, 1,024 and 16,384 ranks from the measured phases and published failure rates, with
                copies in memory, and with a restart of all ranks from disk

Nodes are supervisors that share a file system and talk over TCP on the loopback interface. On a cluster the state moves
over the network. In the simulation a copy stalls training as long as a save, so that only the recovery differs.

    python tests/benchmarks/bench_recovery.py [--pairs 3] [--kills 3]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "recovery.json"
sys.path[:0] = [str(ROOT / "platform"), str(ROOT), str(ROOT / "tests/plinth/training")]

NODES, RANKS, EVERY = 4, 8, 10

#: Ranks of the simulated jobs.
SIMULATED = (64, 1_024, 16_384)


def configured(workspace: Path, *, every: int, steps: int) -> Any:
    """Return the configuration of a run with a copy every few steps, or without copies."""
    from plinth.launch.parameters import HostChecks, Launch, Supervision
    from plinth.model.parameters import Model
    from plinth.training.parameters.run import Checkpoints, Recovery
    from tests.plinth.training.conftest import tiny

    return tiny(
        workspace,
        model=Model(layers=4, dim=128, heads=4, kv_heads=2, ffn_dim=512),
        launch=Launch(kind="slurm", ranks=RANKS, nodes=NODES),
        micro_batch_sequences=4,
        global_batch_sequences=32,
        sequence_tokens=128,
        total_steps=steps,
        checkpoints=Checkpoints(every_steps=10 * steps, audit_steps=2, keep_last=2),
        recovery=Recovery(copies_every=every),
        supervision=Supervision(backoff_s=0.1, hang_s=1800.0, host_checks=HostChecks(enabled=False)),
    )


@contextmanager
def job(config: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a supervisor per node, and end what is left of them."""
    from plinth.training import config as configuration

    path = configuration.write(config)
    base = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path[:3]),
        "CUDA_VISIBLE_DEVICES": "",
        "PLINTH_NODES": f"{NODES}",
    }
    command = [sys.executable, "-m", "plinth.training.supervise.supervisor", str(path)]
    log = config.directory.log.open("ab")
    nodes = [
        subprocess.Popen(
            command, env={**base, "PLINTH_NODE": f"{node}", "PLINTH_ADDRESS": "127.0.0.1"}, stdout=log, stderr=log
        )
        for node in range(NODES)
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            if node.poll() is None:
                node.kill()
            node.wait()
        log.close()


def rank_process(nodes: list[subprocess.Popen[bytes]], rank: int) -> Any:
    """Return the process of a rank."""
    import psutil

    for child in psutil.Process(nodes[rank * NODES // RANKS].pid).children():
        words = child.cmdline()
        if "plinth.training" in words and "--standby" not in words and child.environ().get("RANK") == str(rank):
            return child
    raise LookupError(f"rank {rank} has no process")


def steps_of(config: Any) -> list[dict[str, Any]]:
    from plinth.training.telemetry.timeline import read_events

    return [event for event in read_events(config.directory.events) if event["event"] == "step"]


def wait_for_step(config: Any, step: int, after: int = 0) -> dict[str, Any]:
    """Wait for the first event of a step with a number above `after` in the timeline, and return it."""
    while True:
        for event in steps_of(config):
            if event["step"] >= step and event["seq"] > after:
                return event
        time.sleep(0.05)


def cpu_s(nodes: list[subprocess.Popen[bytes]]) -> float:
    """CPU seconds of supervisors, ranks, writers and keepers so far, without processes that only wait for a loss."""
    import psutil

    everyone = [process for node in nodes for process in psutil.Process(node.pid).children(recursive=True)]
    everyone += [psutil.Process(node.pid) for node in nodes]
    return sum(sum(process.cpu_times()[:2]) for process in everyone if "--standby" not in process.cmdline())


def cost(pairs: int) -> dict[str, Any]:
    """CPU seconds of the whole job per step, with a copy after every step and without copies."""
    first, last = 20, 120
    found: dict[int, list[float]] = {0: [], 1: []}
    for pair in range(pairs):
        for every in (1, 0) if pair % 2 else (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                config = configured(Path(folder), every=every, steps=last + 20)
                with job(config) as nodes:
                    wait_for_step(config, first)
                    begun = cpu_s(nodes), steps_of(config)[-1]["step"]
                    wait_for_step(config, last)
                    ended = cpu_s(nodes), steps_of(config)[-1]["step"]
            found[every].append((ended[0] - begun[0]) / (ended[1] - begun[1]))
    copies = [with_ - without for with_, without in zip(found[1], found[0], strict=True)]
    copy_s, step_s = statistics.median(copies), statistics.median(found[0])
    return {
        "cpu_s_per_step": step_s,
        "cpu_s_per_copy": copy_s,
        "pairs": copies,
        "share": {f"every {every} steps": round(copy_s / step_s / every, 5) for every in (10, 20, 50, 100)},
    }


def recovery(kills: int) -> dict[str, Any]:
    """Kill ranks of different nodes one after the other, and measure the seconds until the next new step."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        config = configured(Path(folder), every=EVERY, steps=100_000)
        with job(config) as nodes:
            wait_for_step(config, 25)
            for number in range(kills):
                rank = (3, 6, 0, 5)[number % 4]
                last = steps_of(config)[-1]
                begun = time.time()
                rank_process(nodes, rank).send_signal(signal.SIGKILL)
                following = wait_for_step(config, 0, _restarted(config, number + 1)["seq"])
                restart = _restarted(config, number + 1)
                rows.append(
                    {
                        "rank": rank,
                        "detected_and_left_s": round(restart["time"] - begun, 3),
                        "next_step_s": round(following["time"] - begun, 3),
                        "repeated_steps": restart["lost_steps"],
                    }
                )
                wait_for_step(config, last["step"] + 2 * EVERY + 5)
                time.sleep(8.0)  # the next process that waits has loaded torch
    return {"kills": rows, "median_s": statistics.median(row["next_step_s"] for row in rows)}


def _restarted(config: Any, count: int) -> dict[str, Any]:
    from plinth.training.telemetry.timeline import read_events

    while True:
        found = [event for event in read_events(config.directory.events) if event["event"] == "restart"]
        if len(found) >= count:
            return found[count - 1]
        time.sleep(0.02)


def simulated(ranks: int, phases: dict[str, float], days: float, seed: int) -> float:
    """Share of time that trains new steps, in a job that fails at random times at the published rate."""
    from plinth.operation.spending import between_failures_s

    draw, between = random.Random(seed), between_failures_s(ranks)
    clock, good, length = 0.0, 0.0, days * 86_400
    interval, stall, restore = phases["interval_s"], phases["stall_s"], phases["restore_s"]
    while clock < length:
        lasted = draw.expovariate(1 / between)
        whole = lasted // (interval + stall)
        good += whole * interval  # what was done since the last copy or save is lost
        clock += lasted + restore
    return good / clock


def goodput(recovery_s: float) -> list[dict[str, Any]]:
    """Compare copies in memory with restarts from disk, at each method's own best interval."""
    from plinth.operation.forecast import RESTORE_S
    from plinth.operation.spending import STALL_S, between_failures_s, daly

    rows = []
    for ranks in SIMULATED:
        between = between_failures_s(ranks)
        disk = {"interval_s": daly(STALL_S, between), "stall_s": STALL_S, "restore_s": RESTORE_S}
        memory = {**disk, "restore_s": recovery_s}
        row: dict[str, Any] = {"ranks": ranks, "hours_between_failures": round(between / 3600, 2)}
        for name, phases in (("disk", disk), ("memory", memory)):
            days = max(54.0, 2_000 * between / 86_400)
            row[name] = {**phases, "goodput": round(simulated(ranks, phases, days, seed=ranks), 5)}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    from tests.conftest import make_trust

    with tempfile.TemporaryDirectory() as folder:
        make_trust(Path(folder))
        os.environ["PLINTH_TRUST"] = str(Path(folder) / "trust")
        found: dict[str, Any] = {"nodes": NODES, "ranks": RANKS, "recovery": recovery(arguments.kills)}
        found["cost"] = cost(arguments.pairs)
    found["goodput"] = goodput(found["recovery"]["median_s"])
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
