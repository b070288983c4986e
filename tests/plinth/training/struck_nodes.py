"""Supervisor of a node that is killed at calls of its own, for tests: `python -m struck_nodes CONFIG`, or `fork`.

The plan is that of `struck_ranks`; the faults of a spare have `spare` in the place of a rank. They strike one of the
spares, with all processes of its node.
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
from plinth.training import config as configuration
from plinth.training.supervise import supervisor
from plinth_ops.gamedays import warm_job


def fork(path: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start the supervisor of a node in a fork of a process that has loaded torch. No process waits for a loss."""
    made = warm_job._SERVER.Process(target=_supervise, args=(str(path), dict(environment)), daemon=True)
    made.start()
    return made


def _supervise(path: str, environment: dict[str, str]) -> None:
    _arm(path, environment)
    warm_job._supervise(path, {**environment, "OMP_NUM_THREADS": "1"})


def _arm(path: str, environment: Mapping[str, str]) -> None:
    spare = int(environment["PLINTH_NODE"]) >= configuration.load(Path(path)).launch.nodes
    struck_ranks.arm_all(json.loads(environment["FAULTS"]), "spare" if spare else "")


if __name__ == "__main__":
    _arm(sys.argv[1], os.environ)
    try:
        status = supervisor.main()
    except PlinthError as error:
        print(error, file=sys.stderr, flush=True)
        status = error.exit_code
    sys.exit(status)
