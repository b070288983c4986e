"""Settings of a Ray cluster on a busy machine, for tests: its parts wait for each other for minutes."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

#: Names of Ray's `ray_config_def.h`: a raylet that waits for its agent, a head that asks a node for a sign of life,
#: a node that waits for a worker it has started. Who has gone is still noticed at once: connections break.
PATIENCE = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_initial_delay_ms": "60000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
}


#: Factor on the 30 s that Ray allows a node to start.
TIMES = 10

#: Maximum number of starts of a cluster, since one of its parts may still give up.
TRIES = 3

T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def agent_ports() -> list[int]:
    """Ports for the agents of a node: gRPC, HTTP, metrics and runtime environments. A raylet waits 15 s to hear which
    port an agent has chosen for itself, and dies."""
    return [free_port() for _ in range(4)]


def small_node(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Arguments of a small node with a core, for `ray.cluster_utils.Cluster`."""
    names = ("metrics_agent_port", "dashboard_agent_listen_port", "metrics_export_port", "runtime_env_agent_port")
    more = dict(zip(names, agent_ports(), strict=True))
    more |= {"no_monitor": True, "include_log_monitor": False}
    return {"num_cpus": 1, "object_store_memory": 80 * 2**20, "env_vars": environment or {}, **more}


def start_process(command: list[str], kind: str, *arguments: Any, before: Callable[..., Any], **options: Any) -> Any:
    """Start a part of Ray with fewer modules: only the job server and node list of the dashboard, since its other eight
    parts take most of a head's start. Pass a raylet its agent's port, which Ray omits."""
    more = []
    if kind == "dashboard":
        more = ["--modules-to-load=JobHead,NodeHead"]
    if kind == "raylet":
        found = re.search(r"--listen-port=(\d+)", " ".join(command))
        more = [f"--dashboard_agent_listen_port={found[1]}"] if found else []
    return before([*command, *more], kind, *arguments, **options)


def _changes() -> list[tuple[Any, str, Any]]:
    from ray._private import node, services

    slow = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() / TIMES})
    starts = functools.partial(start_process, before=services.start_ray_process)
    no_client_server = (node.Node, "start_ray_client_server", lambda _self: None)
    return [(node, "time", slow), (services, "start_ray_process", starts), no_client_server]


def patient(here: pytest.MonkeyPatch) -> None:
    """For clusters that this process starts, without a dashboard."""
    for name, value in PATIENCE.items():
        here.setenv(name, value)
    from ray._private import node

    for change in (*_changes(), (node.Node, "start_api_server", lambda *_, **__: None)):
        here.setattr(*change)


def ray_command() -> None:
    """The `ray` command with this patience."""
    from ray.scripts.scripts import main

    for change in _changes():
        setattr(*change)
    main()


def two_nodes(*environments: dict[str, str]) -> Any:
    """A cluster of two nodes with a core each, after `patient`; what their environments have more than this process."""
    from ray.cluster_utils import Cluster

    first, second = environments or ({}, {})

    def start() -> Any:
        made = Cluster(initialize_head=True, head_node_args={**small_node(first), "include_dashboard": False})
        made.add_node(**small_node(second))
        made.wait_for_nodes(timeout=300)
        return made

    return started(start)


def started(start: Callable[[], T]) -> T:
    """Return the result of a start, tried up to `TRIES` times."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Exception):
            return start()
    return start()
