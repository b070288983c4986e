"""What the tasks of a stage cost: CPU time, operations of the store, bytes. Recorded beside the results for `plinth
corpus scale`, and part of no identity.

CPU time is that of the worker and of the processes it started. Bytes read are those that the worker asked the system
for; what it maps into memory is not among them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class StepCost(Frozen):
    """Tasks of a step, and items that a record spared."""

    tasks: int = 0
    spared: int = 0
    cpu_s: float = 0.0
    opened: int = 0
    written: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def __add__(self, other: StepCost) -> StepCost:
        return StepCost(**{name: value + getattr(other, name) for name, value in self})

    @property
    def operations(self) -> int:
        """Files of the store opened and written."""
        return self.opened + self.written


class AssetCost(Frozen):
    """One making of an asset: its tasks by step, and the driver's own CPU time beside the wall clock."""

    asset: str
    steps: dict[str, StepCost]
    driver_cpu_s: float
    wall_s: float
    input_bytes: int = 0  # of the parts that it was made from; 0: not recorded
    run: str = ""  # the orchestrator's run that made it; empty: not recorded

    @property
    def tasks(self) -> StepCost:
        """All its tasks."""
        return sum(self.steps.values(), StepCost())


def measured(fn: Callable[[Store, Any], Any], store: Store, task: Any) -> tuple[Any, StepCost]:
    """What a task returns, and what it cost."""
    cpu_s, read_bytes = _cpu_s(), _read_bytes()
    found = fn(store, task)
    return found, StepCost(
        tasks=1,
        cpu_s=_cpu_s() - cpu_s,
        opened=store.opened,
        written=store.written,
        read_bytes=_read_bytes() - read_bytes,
        written_bytes=store.written_bytes,
    )


def save(workspace: Workspace, cost: AssetCost) -> None:
    """Keep the cost of an asset's last making."""
    write_bytes(_path(workspace, cost.asset), cost.model_dump_json().encode())


def load(workspace: Workspace, asset: str) -> AssetCost | None:
    """The cost of an asset's last making, or None where none was recorded."""
    path = _path(workspace, asset)
    return AssetCost.model_validate_json(path.read_bytes()) if path.exists() else None


def _path(workspace: Workspace, asset: str) -> Path:
    return workspace.costs / f"{asset}.json"


def _cpu_s() -> float:
    """CPU time of this process, of the children that it waited for and of those that live."""
    spent = sum(os.times()[:4])
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # none: nothing to search in /proc, which costs more than a small task
        return spent
    return spent + sum(map(_of_child, _children(os.getpid())))


def _children(pid: int) -> list[int]:
    found = list[int]()
    with suppress(OSError):  # it has ended, or the system has no such list
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _of_child(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) * _TICK_S + sum(map(_of_child, _children(pid)))
    return 0.0


def _read_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/io").read_text().split()[1])
    return 0
