"""Settings of a Ray cluster on a busy machine, for tests: its parts wait for each other for minutes."""

from __future__ import annotations

import contextlib
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
}


#: How much longer than the 30 s that Ray allows it a node may take to start.
TIMES = 4

#: How often a cluster is started: a raylet gives up on an agent of its own that needs half a minute to start.
TRIES = 3

MB = 2**20
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * MB}
T = TypeVar("T")


def patient(here: pytest.MonkeyPatch) -> None:
    """For clusters that this process starts."""
    from ray._private import node

    for name, value in PATIENCE.items():
        here.setenv(name, value)
    slow = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() / TIMES})
    here.setattr(node, "time", slow)


def two_nodes(*environments: dict[str, str]) -> Any:
    """A cluster of two nodes with a core each, after `patient`; what their environments have more than this process."""
    from ray.cluster_utils import Cluster

    first, second = environments or ({}, {})

    def start() -> Any:
        made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "env_vars": first})
        made.add_node(**NODE, env_vars=second)
        made.wait_for_nodes(timeout=300)
        return made

    return started(start)


def started(start: Callable[[], T]) -> T:
    """What a start gives, tried `TRIES` times."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Exception):
            return start()
    return start()


#: The `ray` command with this patience, for `python -c`.
RAY = f"""
import time
from types import SimpleNamespace
from ray._private import node
from ray.scripts.scripts import main
node.time = SimpleNamespace(**{{**vars(time), "monotonic": lambda: time.monotonic() / {TIMES}}})
main()
"""
