"""Several nodes of a Ray cluster: one bundle and one supervisor per node, as with Slurm and Kubernetes.

    python -m plinth.launch.ray_nodes NODES BUNDLE COMMAND…

This is the entry point of a job with several nodes (ray_jobs). It places NODES bundles with the resources BUNDLE (JSON)
on different nodes (STRICT_SPREAD), and runs COMMAND in each bundle with PLINTH_NODE, PLINTH_NODES and PLINTH_ADDRESS. A
request to stop is forwarded to all nodes. The exit status is the status of node 0.

If a node is lost and no spare takes its place, node 0's supervisor ends; if node 0 itself is lost, the other
supervisors end. The command is then restarted on available nodes from the last commit, like a requeued job, at most
`REPLACEMENTS` times; after that the exit status is 75.

The command is also restarted if a supervisor has excluded nodes. Their Ray identifiers (PLINTH_HOST) are in the file
named by PLINTH_EXCLUDED; these nodes are not used again.

The interpreter must have Ray in the cluster's version.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plinth.launch.base import LEFT

POLL_S = 0.5

#: Variable with the file of excluded nodes (`plinth.launch.base`), one identifier per line.
EXCLUDED_VARIABLE = "PLINTH_EXCLUDED"

#: Maximum replacements of lost nodes per job.
REPLACEMENTS = 6

PR_SET_PDEATHSIG = 1

#: Resources that have their own actor option in Ray. All others are passed as `resources`.
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Node:
    """Actor that runs the command on its node. It imports nothing from Plinth, which Ray's workers may not have
    installed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = threading.Event()

    def address(self) -> str:
        """Return the address at which other nodes reach this node."""
        from ray import util

        return str(util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def name(self) -> str:
        """Return Ray's identifier of this node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command; return its exit status. The command gets SIGTERM when this process dies."""
        import ctypes
        import os

        libc = ctypes.CDLL(None)
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
            cwd="/",  # keeps the cluster's own folder off the import path
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        if self._asked.is_set():
            self._process.terminate()
        return self._process.wait()

    def stop(self) -> None:
        """Ask the command to stop, as soon as it runs."""
        self._asked.set()
        if self._process is not None:
            self._process.terminate()


def run(nodes: int, bundle: Mapping[str, float], command: Sequence[str], asked: threading.Event) -> int:
    """Run a command on each of `nodes` nodes, and restart it if a node is lost; return the exit status of node 0."""
    for left in reversed(range(REPLACEMENTS + 1)):
        before = excluded()
        status, lost = _run_once(nodes, bundle, command, asked, before)
        unfit = [name for name in excluded() if name not in before] if status == LEFT else []
        if status != LEFT or not (lost or unfit) or asked.is_set() or not left:
            break
        words = ", ".join([*(f"node {node}" for node in lost), *unfit])
        print(f"lost or excluded: {words}; restarting on {nodes} nodes, restarts left: {left}", flush=True)
    return status


def excluded() -> list[str]:
    """Return identifiers of nodes on which the job must not be placed."""
    path = Path(os.environ.get(EXCLUDED_VARIABLE) or os.devnull)
    return path.read_text().split() if path.exists() else []


def _run_once(
    nodes: int, bundle: Mapping[str, float], command: Sequence[str], asked: threading.Event, without: Sequence[str]
) -> tuple[int, list[int]]:
    """Run the command once on all nodes, and wait until it has ended everywhere.

    Return the exit status of the first node that was not lost, and the lost nodes.

    Args:
        without: identifiers of nodes to exclude.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    elsewhere = [{"ray.io/node-id": f"!in({','.join(without)})"}] * nodes if without else None
    group = placement_group([dict(bundle)] * nodes, strategy="STRICT_SPREAD", bundle_label_selector=elsewhere)
    try:
        while not group.wait(POLL_S):
            if asked.is_set():
                return LEFT, []
        supervisors = _start(group, nodes, bundle)
        try:
            address = ray.get(supervisors[0].address.remote())
            names = ray.get([supervisor.name.remote() for supervisor in supervisors])
        except ray.exceptions.RayActorError:
            return LEFT, [0]
        ends = [
            supervisor.run.remote(
                command,
                {
                    "PLINTH_NODE": str(node),
                    "PLINTH_NODES": str(nodes),
                    "PLINTH_ADDRESS": address,
                    "PLINTH_HOST": names[node],
                },
            )
            for node, supervisor in enumerate(supervisors)
        ]
        handed_on = False
        while ray.wait(ends, num_returns=nodes, timeout=POLL_S)[1]:
            if asked.is_set() and not handed_on:
                handed_on = True
                for supervisor in supervisors:
                    supervisor.stop.remote()
        codes = [_status(end) for end in ends]
        status = next((code for code in codes if code is not None), LEFT)  # a spare may lead after the loss of node 0
        return status, [node for node, code in enumerate(codes) if code is None]
    finally:
        remove_placement_group(group)  # and all processes in it


def _status(end: Any) -> int | None:
    """Return the exit status of a command, or None if its node was lost."""
    import ray

    try:
        return int(ray.get(end))
    except ray.exceptions.RayActorError:
        return None


def _start(group: Any, nodes: int, bundle: Mapping[str, float]) -> list[Any]:
    """Start one actor in each bundle."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    options: dict[str, Any] = {_OPTIONS[name]: amount for name, amount in bundle.items() if name in _OPTIONS}
    options["resources"] = {name: amount for name, amount in bundle.items() if name not in _OPTIONS}
    return [
        ray.remote(Node)
        # allows `stop` in parallel with `run`
        .options(max_concurrency=2, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index), **options)
        .remote()
        for index in range(nodes)
    ]


def main() -> int:
    """Run the entry point of the cluster's job."""
    import ray

    asked = threading.Event()
    ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    for number in (signal.SIGTERM, signal.SIGINT):  # replaces Ray's handler, which exits at once
        signal.signal(number, lambda *_: asked.set())
    return run(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:], asked)


if __name__ == "__main__":
    sys.exit(main())
