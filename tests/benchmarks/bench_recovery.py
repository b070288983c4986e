"""Recovery in seconds: eight ranks of a tiny model on four nodes, each with a supervisor of its own on this machine.

    cost        one run with copies after the steps of every other block only: CPU seconds of the whole job in each
                block; the differences of neighbors are the cost of the copies
    recovery    a rank of another node than the first is killed; seconds from the kill to the next step, steps repeated
    lost node   every process of a node is killed, or its network cable is pulled, and a spare takes its place
    goodput     simulated for 64, 1,024 and 16,384 ranks from the measured phases and published failure rates, with
                copies in memory, and with a restart of all ranks from disk

Nodes are supervisors that share a file system. For `--lost-node` each has a network namespace of its own, with a cable
to a common bridge (needs root). Otherwise they talk over the loopback interface. In the simulation a copy stalls
training as long as a save, so that only the recovery differs.

    python tests/benchmarks/bench_recovery.py [--pairs 12] [--kills 3]
    python tests/benchmarks/bench_recovery.py --lost-node    # adds to the recorded results
"""

from __future__ import annotations

import argparse
import itertools
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "recovery.json"
sys.path[:0] = [str(ROOT / "platform"), str(ROOT), str(ROOT / "tests/plinth/training")]

NODES, RANKS, EVERY = 4, 8, 10

#: Steps of a block, and copies in each block that has some. The last arrives in its block.
BLOCK, COPIES = 10, 8

#: Ranks of the simulated jobs.
SIMULATED = (64, 1_024, 16_384)


#: Losses of a node: what happens to it, and its number.
LOSSES = {"killed": 2, "silent": 2, "killed node 0": 0, "silent node 0": 0}


def configured(workspace: Path, *, every: int, steps: int, **launch: Any) -> Any:
    """Return the configuration of a run with a copy every few steps, or without copies."""
    from plinth.launch.parameters import HostChecks, Launch, Supervision
    from plinth.model.parameters import Model
    from plinth.training.parameters.run import Checkpoints, Recovery
    from tests.plinth.training.conftest import tiny

    return tiny(
        workspace,
        model=Model(layers=4, dim=128, heads=4, kv_heads=2, ffn_dim=512),
        launch=Launch(kind="slurm", ranks=RANKS, nodes=NODES, **launch),
        micro_batch_sequences=4,
        global_batch_sequences=32,
        sequence_tokens=128,
        total_steps=steps,
        checkpoints=Checkpoints(every_steps=10 * steps, audit_steps=2, keep_last=2),
        recovery=Recovery(copies_every=every),
        supervision=Supervision(backoff_s=0.1, hang_s=1800.0, host_checks=HostChecks(enabled=False)),
    )


class Namespaces:
    """Network of a few nodes, each in a namespace with one interface `eth0`."""

    def __init__(self, count: int) -> None:
        self._own = ExitStack()
        self._ip(f"link add {self._name()} type bridge", f"link del {self._name()}")
        self._ip(f"link set {self._name()} up")
        for node in range(count):
            name, inside = self._name(node), f"-n {self._name(node)}"
            self._ip(f"netns add {name}", f"netns del {name}")
            self._ip(f"link add {name} type veth peer name eth0 netns {name}", f"link del {name}")
            self._ip(f"link set {name} master {self._name()} up")
            self._ip(f"{inside} addr add {self.address(node)}/24 dev eth0")
            self._ip(f"{inside} link set eth0 up")
            self._ip(f"{inside} link set lo up")

    def address(self, node: int) -> str:
        return f"10.213.{os.getpid() % 250}.{node + 1}"

    def command(self, node: int) -> list[str]:
        """Words before a command that runs on a node."""
        return ["ip", "netns", "exec", self._name(node)]

    def kill(self, node: int) -> None:
        """Kill every process of a node at once."""
        found = subprocess.run(["ip", "netns", "pids", self._name(node)], capture_output=True, text=True, check=True)
        for word in found.stdout.split():
            os.kill(int(word), signal.SIGKILL)

    def cut(self, node: int) -> None:
        """Pull a node's cable: nothing arrives, and no connection is closed."""
        self._ip(f"link set {self._name(node)} down")

    def close(self) -> None:
        """Remove all traces of the network."""
        self._own.close()

    @staticmethod
    def _name(node: int | None = None) -> str:
        return f"pl{os.getpid()}" + ("" if node is None else f"n{node}")

    def _ip(self, words: str, undo: str = "") -> None:
        subprocess.run(["ip", *words.split()], check=True)
        if undo:
            self._own.callback(subprocess.run, ["ip", *undo.split()], check=False)


@contextmanager
def job(config: Any, network: Namespaces | None = None) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a supervisor per node, and end what is left of them."""
    from plinth.training import config as configuration

    path = configuration.write(config)
    base = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path[:3]),
        "CUDA_VISIBLE_DEVICES": "",
        "PLINTH_NODES": f"{config.launch.machines}",
        "PLINTH_ADDRESS": network.address(0) if network else "127.0.0.1",
    }
    command = [sys.executable, "-m", "plinth.training.supervise.supervisor", str(path)]
    log = config.directory.log.open("ab")
    nodes = [
        subprocess.Popen(
            [*(network.command(node) if network else ()), *command],
            env={**base, "PLINTH_NODE": f"{node}"},
            stdout=log,
            stderr=log,
        )
        for node in range(config.launch.machines)
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

    children = psutil.Process(nodes[rank * NODES // RANKS].pid).children()
    return next(child for child in children if child.name() == f"rank-{rank}")


def steps_of(config: Any) -> list[dict[str, Any]]:
    return events_of(config, "step")


def wait_for_step(config: Any, step: int, after: int = 0) -> dict[str, Any]:
    """Wait for the first event of a step with a number above `after` in the timeline, and return it."""
    while True:
        for event in steps_of(config):
            if event["step"] >= step and event["seq"] > after:
                return event
        time.sleep(0.05)


def open_batches(config: Any, rank: int) -> Any:
    """Open the batches of a rank that copies its state in every other block, and logs CPU seconds in each.

    The first rank of a node also logs the CPU seconds of its node's supervisor, keeper and writers.
    """
    import psutil
    import synthetic

    from plinth.training.recovery.copies import Copier

    inner, log = synthetic.open_batches(config, rank), config.directory.root / f"cpu-{rank}.jsonl"
    Copier.due = lambda self, step: step // BLOCK % 2 == 1 and step % BLOCK < COPIES  # type: ignore[method-assign]

    def others() -> float:
        supervisor = psutil.Process(os.getppid())
        known = [one for one in supervisor.children() if not one.name().startswith("rank-")]
        return sum(sum(one.cpu_times()[:2]) for one in (supervisor, *known))

    def stream(first: int) -> Iterator[Any]:
        for step, batch in enumerate(inner(first), first):
            if step % BLOCK == 0:
                spent = time.process_time(), others() if os.environ["LOCAL_RANK"] == "0" else 0.0
                with log.open("a") as file:
                    file.write(json.dumps(spent) + "\n")
            yield batch

    return stream


def cost(pairs: int) -> dict[str, Any]:
    """CPU seconds of the whole job per step, and of a copy, from pairs of neighboring blocks."""
    with tempfile.TemporaryDirectory() as folder:
        steps = BLOCK * (2 * pairs + 3)
        config = configured(Path(folder), every=1, steps=steps)
        config = config.model_copy(update={"batches": "tests.benchmarks.bench_recovery:open_batches"})
        with job(config) as nodes:
            for node in nodes:
                node.wait()
        logs = [(config.directory.root / f"cpu-{rank}.jsonl").read_text().splitlines() for rank in range(RANKS)]
    blocks = [[json.loads(line) for line in lines] for lines in zip(*logs, strict=True)]
    blocks = blocks[2 : 2 * pairs + 3]  # without those in which all starts, and those of the audit
    ends = [tuple(map(sum, zip(*block, strict=True))) for block in blocks]
    spent = [(one[0] - two[0], one[1] - two[1]) for two, one in itertools.pairwise(ends)]
    with_, without = spent[0::2], spent[1::2]
    copies = [[(a - b) / COPIES for a, b in zip(*both, strict=True)] for both in zip(with_, without, strict=True)]
    step_s = statistics.median(sum(one) for one in without) / BLOCK
    copy_s = statistics.median(map(sum, copies))
    return {
        "cpu_s_per_step": step_s,
        "cpu_s_per_copy": copy_s,
        "of_which_ranks": statistics.median(one[0] for one in copies),
        "pairs": [round(sum(one), 5) for one in copies],
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
    return {"kills": rows, "median_s": statistics.median(row["next_step_s"] for row in rows)}


def lost_node(loss: str) -> dict[str, Any]:
    """Lose a node while a spare waits, and measure the seconds until the next step."""
    with ExitStack() as own:
        folder = own.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))  # writers still end
        network = Namespaces(NODES + 1)
        own.callback(network.close)
        interface = {"GLOO_SOCKET_IFNAME": "eth0"}
        config = configured(Path(folder), every=EVERY, steps=100_000, spares=1, environment=interface)
        own.enter_context(job(config, network))
        wait_for_step(config, 3 * EVERY + 5)
        time.sleep(20.0)  # the spare has loaded torch
        last, begun = events_of(config)[-1]["seq"], time.time()
        (network.cut if loss.startswith("silent") else network.kill)(LOSSES[loss])
        while not (resumed := events_of(config, "resumed", after=last)):
            time.sleep(0.05)
        following = wait_for_step(config, 0, resumed[0]["seq"])
        story = events_of(config, after=last)
        taken = max(event["step"] for event in events_of(config, "step") if event["seq"] < resumed[0]["seq"])
        return {
            "phases_s": {
                event["event"]: round(event["time"] - begun, 3) for event in story if event["event"] != "step"
            },
            "next_step_s": round(following["time"] - begun, 3),
            "repeated_steps": taken - resumed[0]["step"],
            "source": resumed[0]["source"],
        }


def events_of(config: Any, kind: str = "", after: int = -1) -> list[dict[str, Any]]:
    """Return the events of the timeline with a number above `after`."""
    from plinth.training.telemetry.timeline import read_events

    found = read_events(config.directory.events)
    return [event for event in found if event["seq"] > after and kind in ("", event["event"])]


def _restarted(config: Any, count: int) -> dict[str, Any]:
    while len(found := events_of(config, "restart")) < count:
        time.sleep(0.02)
    return found[count - 1]


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
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--lost-node", nargs="*", choices=LOSSES, help="lose a node in these ways; default: each")
    arguments = parser.parse_args()
    from tests.conftest import make_trust

    with tempfile.TemporaryDirectory() as folder:
        make_trust(Path(folder))
        os.environ["PLINTH_TRUST"] = str(Path(folder) / "trust")
        if arguments.lost_node is not None:
            found = json.loads(RESULTS.read_text())
            rows = {loss: lost_node(loss) for loss in arguments.lost_node or LOSSES}
            found["lost_node"] = {**found.get("lost_node", {}), **rows}
        else:
            found = {"nodes": NODES, "ranks": RANKS, "recovery": recovery(arguments.kills)}
            found["cost"] = cost(arguments.pairs)
            found["goodput"] = goodput(found["recovery"]["median_s"])
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
