"""An audit of a run that is not training now: the checkpoints between which it replays, from files only, so that the
command line can check first; then ranks are started, and end when it is done.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from plinth import processes
from plinth.errors import MissingError, TrainingError
from plinth.processes import free_port
from plinth.storage.atomic import append_to
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.stopping import last_step
from plinth.training.supervise.result import hold
from plinth.training.supervise.watch import describe_exit, watch


def span(config: RunConfig, start: int | None = None) -> tuple[int, list[int]]:
    """The newest checkpoint committed up to `start`, and the committed ones after it, in order.

    By default the one that is kept for the audit; an earlier one where a stopping rule ended the run before it.

    Raises:
        MissingError: there is none, or none after it.
    """
    start = min(config.audit_step, last_step(config) - 1) if start is None else start
    steps = checkpoint.committed(config.directory)
    before = [step for step in steps if step <= start]
    after = [step for step in steps if before and step > before[-1]]
    if not after:
        raise MissingError(
            f"run {config.run_id} has nothing to replay from step {start}",
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            expected=f"one of step {start} or earlier, and one after it",
            remedy="name an earlier step with --from, or let the run commit another checkpoint",
        )
    return before[-1], after


# An audit of a run that is not training now: ranks are started, and end when it is done.
#
# The run's lock is held meanwhile, so that no job changes the state that is compared. Torch-free; the ranks are
# processes of their own.


def audit(config: RunConfig, start: int | None = None) -> dict[str, Any]:
    """Replay from the newest committed checkpoint up to `start` and return the evidence, which is stored too.

    Raises:
        LaunchError: the run is training.
        MissingError: no two checkpoints are committed between which to replay.
        TrainingError: a rank failed.
    """
    span(config, start)
    held = hold(config.directory.lock)
    try:
        _replay(config, start, held)
    finally:
        os.close(held)
    evidence: dict[str, Any] = json.loads(config.directory.evidence.read_bytes())
    return evidence


def _replay(config: RunConfig, start: int | None, held: int) -> None:
    run, port = config.directory, free_port()
    command = processes.python("plinth.training", str(run.config), "--audit")
    command += ["--start", str(start)] if start is not None else []
    shared = {"WORLD_SIZE": config.ranks, "LOCAL_WORLD_SIZE": config.ranks, "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // config.ranks)}
    with append_to(run.log) as log:
        ranks = []
        for rank in range(config.ranks):
            place = {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
            own = {**config.launch.environment, **place, "PLINTH_SUPERVISOR": str(os.getpid())}
            ranks.append(
                processes.start(
                    command, *processes.JOB, own=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(held,)
                )
            )
        hanging = watch(ranks, run.events, config.supervision, lambda: 0, lambda: None, lambda: None)
        codes = [process.wait() for process in ranks]
    if any(codes):
        said = hanging or "; ".join(describe_exit(rank, code) for rank, code in enumerate(codes) if code)
        raise TrainingError("the audit did not end well", found=said, remedy=f"the reason is at the end of {run.log}")
