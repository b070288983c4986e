"""Faults at any call inside the ranks of a run, for tests: `struck_ranks:open_batches` reads the plan from FAULTS.

FAULTS is a JSON object {"marks": folder, "faults": [[place, call, rank, signal], …]}. Each fault strikes once, ever:
the rank sends itself the signal before its call number `call` of the function `module:name`, counted from 1 in each
process. `place` may end in `!`: the fault strikes after the call. The place `batch` counts steps. The signal `keeper`
kills the process that stores this node's copies instead, `node` kills all processes of this node, `spare` those of the
node with the highest number (`struck_nodes`), and `hold` delays the call until the rank is killed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import synthetic

from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch


def open_batches(config: RunConfig, rank: int) -> Batches:
    plan = json.loads(os.environ["FAULTS"])
    marks = Path(plan["marks"])
    own = arm_all(plan, rank)

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            for number, place, call, _, name in own:
                if (place, call) == ("batch", step):
                    _strike(marks / f"struck-{number}", name)
            yield synthetic.batch_at(config, step, rank)

    return stream


def arm_all(plan: dict[str, Any], who: int | str) -> list[tuple[Any, ...]]:
    """Arm the functions of this process's faults, and return these faults with their numbers."""
    own = [(number, *fault) for number, fault in enumerate(plan["faults"]) if fault[2] == who]
    for number, place, call, _, name in own:
        mark = Path(plan["marks"]) / f"struck-{number}"
        if place != "batch":
            _arm(place, call, functools.partial(_strike, mark, name))
    return own


def _arm(place: str, call: int, strike: Callable[[], None]) -> None:
    module, _, path = place.rstrip("!").partition(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    whole, after, calls = getattr(owner, name), place.endswith("!"), 0

    @functools.wraps(whole)
    def struck(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls == call
        if mine and not after:
            strike()
        result = whole(*args, **kwargs)
        if mine and after:
            strike()
        return result

    setattr(owner, name, struck)


def _strike(mark: Path, name: str) -> None:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    if name == "hold":
        time.sleep(3600)
    if name == "keeper":
        for process in psutil.Process(os.getppid()).children():
            if "plinth.training.recovery.keeper" in process.cmdline():
                process.kill()
        return
    if name == "node":
        os.killpg(0, signal.SIGKILL)
    if name == "spare":
        nodes = {int(one.name[5:]): int(one.read_text()) for one in mark.parent.parent.glob("node-*")}
        os.killpg(nodes[max(nodes)], signal.SIGKILL)
        return
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(0.01)  # the signal arrives
