"""Supervisor of a node that is killed at calls of its own, for tests: `python -m struck_nodes CONFIG`, or `fork`.

The plan is that of `struck_ranks`, with the number of nodes with a seat as `nodes`. The faults of a spare have `spare`
in the place of a rank. They strike one of the spares, with all processes of its node.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import struck_ranks

from plinth.errors import PlinthError
from plinth.training.supervise import supervisor
from plinth_ops.gamedays import warm_job


def fork(place: str, log: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start the supervisor of a node in a fork of a process that has loaded torch. No process waits for a loss."""
    arguments = place, str(log), {**environment, "OMP_NUM_THREADS": "1"}
    made = warm_job._SERVER.Process(target=_supervise, args=arguments, daemon=True)
    made.start()
    return made


def _supervise(place: str, log: str, environment: dict[str, str]) -> None:
    _arm(environment)
    warm_job._supervise(place, log, environment)


def _arm(environment: Mapping[str, str]) -> None:
    """Arm the faults of a spare, and note the process group of this node for faults that kill it from outside."""
    plan, node = json.loads(environment["FAULTS"]), int(environment.get("PLINTH_NODE", "0"))
    Path(plan["marks"]).with_name(f"node-{node}").write_text(f"{os.getpid()}")
    struck_ranks.arm_all(plan, "spare" if node >= plan.get("nodes", 1) else "")


if __name__ == "__main__":
    _arm(os.environ)
    try:
        status = supervisor.main()
    except PlinthError as error:
        print(error, file=sys.stderr, flush=True)
        status = error.exit_code
    sys.exit(status)
