"""Game day of the orchestrator: Dagster is killed; the job continues, and a new Dagster process finds it.

`python -m plinth_ops.gamedays.orchestrator_day CONFIG` is the Dagster process that is killed. It materializes an asset
that submits or finds a job and follows the job to its end, with the same functions as the asset `run` of a pipeline.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import dagster as dg

from plinth import processes
from plinth.compute.context import Context
from plinth.errors import TrainingError
from plinth.launch.base import HANDLE
from plinth.operation import admission, spending
from plinth.operation.spending_ledger import Ledger
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training import job
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of
from plinth.training.telemetry.timeline import timeline
from plinth_ops.gamedays import faults, gameday, rehearsal
from plinth_ops.gamedays.faults import ORCHESTRATOR, FaultPlan, RehearsalFault
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal

#: Arguments of the interpreter that runs Dagster, before the configuration of the run.
ORCHESTRATED = ("-P", "-m", "plinth_ops.gamedays.orchestrator_day")


@dataclass(frozen=True)
class Submitted:
    """Undisturbed run, and the number of file system changes that Dagster makes while it submits the run's job."""

    whole: Rehearsal
    boundaries: int


@dataclass(frozen=True)
class _Death:
    """Time at which Dagster is killed, and the steps before which its job waits.

    If neither `boundary` nor `name` is set, Dagster dies before step `step`.

    Args:
        boundary: write boundary of the submission at which Dagster dies; 0 if it dies at another time.
        name: Dagster dies before this file is created; empty if it dies at another time.
        step: step before which the job waits, so that Dagster dies while the job runs.
        until: step before which the job waits for the next Dagster process; 0 if the job ends without one.
    """

    boundary: int
    name: str
    step: int
    until: int

    @classmethod
    def drawn(cls, chooser: Random, boundaries: int, steps: int) -> _Death:
        """Draw the time at which Dagster is killed: during the submission, before the handle file is written, or later.

        The three cases are equally likely. In a third of all draws, the job ends before Dagster is restarted.
        """
        where = chooser.choice(["submission", "handle", "later"])
        step = chooser.randint(2, steps - 2)
        until = chooser.choice([0, *[chooser.randint(step + 1, steps - 1)] * 2])
        boundary = chooser.randint(1, boundaries) if where == "submission" else 0
        return cls(boundary, HANDLE if where == "handle" else "", step, until)

    def faults(self) -> tuple[RehearsalFault, ...]:
        """Return the faults to inject into Dagster and its job."""
        kill = RehearsalFault(kind="kill at write", step=0, rank=ORCHESTRATOR, value=self.boundary, place=self.name)
        waits = [RehearsalFault(kind="wait", step=step) for step in (self.step, self.until) if step]
        return tuple([kill, *waits] if self.boundary or self.name else waits)

    def words(self, boundaries: int) -> str:
        """Describe when Dagster is killed and when it is restarted."""
        back = f"restarted before step {self.until}" if self.until else "restarted after the end of the job"
        if self.boundary:
            return f"SIGKILL to Dagster at boundary {self.boundary} of {boundaries} of its submission, {back}"
        if self.name:
            return f"SIGKILL to Dagster once its job runs, before its {self.name} is written, {back}"
        return f"SIGKILL to Dagster before step {self.step}, {back}"


def submitted(folder: Path) -> Submitted:
    """Prepare an undisturbed run, and count the file system changes of its submission by Dagster."""
    whole = rehearsal.rehearse(folder / "whole")
    count = RehearsalFault(kind="count writes", step=0, rank=ORCHESTRATOR)
    plan, environment = faults.plan(folder / "plan", count)
    status = _dagster(_written(whole, folder), folder, "counted", environment).wait()
    if status:
        log = _log(folder, "counted").read_text(errors="replace")[-2000:]
        raise TrainingError(f"the undisturbed Dagster ended with status {status}", found=log)
    return Submitted(whole, int(plan.mark(count).read_text()))


def orchestrator_death(made: Submitted, folder: Path, chooser: Random) -> Struck:
    """Kill Dagster while it submits or follows a job, and restart it while the job trains or after its end."""
    config = _written(made.whole, folder)
    death = _Death.drawn(chooser, made.boundaries, config.total_steps)
    plan, environment = faults.plan(folder / "plan", *death.faults())
    try:
        found, after = _killed(made.whole, config, folder, plan, environment)
    finally:
        with suppress(Exception):  # a job that outlives its game day would keep the scratch folder in use
            job.cancel(_context(config), config)
    return Struck(death.words(made.boundaries), tuple(found), after)


def _killed(
    whole: Rehearsal, config: RunConfig, folder: Path, plan: FaultPlan, environment: dict[str, str]
) -> gameday.Alerted:
    waits = [fault for fault in plan.faults if fault.kind == "wait"]
    first = _dagster(config, folder, "first", environment)
    _until(lambda: plan.struck(waits[0]) or first.poll() is not None)
    with suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    died, killed, begun = first.wait(), time.time(), _alive(config)
    found = [finding("Dagster is killed", died, -signal.SIGKILL)]
    if begun:
        found.append(_goes_on(config, plan, waits))
    second = _dagster(config, folder, "second", environment)
    _until(lambda: FOLLOWING in _log(folder, "second").read_text() or second.poll() is not None)
    while second.poll() is None:
        _let_go(plan, waits)
        time.sleep(0.1)
    found.append(finding("a new Dagster follows the job to its end", second.wait(), 0))
    found += [*_one_execution(config, folder, begun), *whole.end_state(config)]
    beat: gameday.Sample = ("plinth_orchestrator_timestamp_seconds", {}, killed)
    alert, after = gameday.fires(DEATH.alerts, killed, [beat])
    return [*found, *alert], after


def _goes_on(config: RunConfig, plan: FaultPlan, waits: list[RehearsalFault]) -> Outcome:
    """Let the job train without Dagster until it waits for the restart or ends; check that it continues."""
    _until(lambda: plan.struck(waits[0]) or not _alive(config))
    _let_go(plan, waits[:1])
    _until(lambda: any(plan.struck(wait) for wait in waits[1:]) or not _alive(config))
    reached = max(timeline(config.directory.events).steps, default=0)
    expected = waits[1].step - 1 if waits[1:] else config.total_steps
    return Outcome(what="the job continues without Dagster", passed=reached >= expected, seen=f"to step {reached}")


def _let_go(plan: FaultPlan, waits: list[RehearsalFault]) -> None:
    """End the job's waits in `waits`, so that the job continues."""
    for wait in waits:
        plan.mark(wait).unlink(missing_ok=True)


def _one_execution(config: RunConfig, folder: Path, begun: bool) -> list[Outcome]:
    """Check that the run has exactly one job, one materialization and one cost reservation.

    If no job ran when Dagster died, the submission and the reservation are not checked.
    """
    story, ctx = timeline(config.directory.events), _context(config)
    with dg.DagsterInstance.from_config(str(_home(folder))) as instance:
        materialised = instance.fetch_materializations(dg.AssetKey(ASSET), limit=9).records
    found = [
        finding("one job was started", len(story.of("job_started")), 1),
        finding("no step is trained twice", story.redone, 0),
        finding("Dagster has one materialization", len(materialised), 1),
        finding("no job is left", _alive(config), False),
    ]
    if begun:
        place = spending.ledger_place(ctx.workspace, spending.load(ctx.workspace))
        reserved = Ledger(place).find(spending.workspace_name(ctx.workspace))
        found.append(finding("the job was submitted once", len(story.of("submitted")), 1))
        found.append(finding("the cost was reserved once", len(reserved), 1))
    return found


def _written(whole: Rehearsal, folder: Path) -> RunConfig:
    """Write the configuration of a new run in the workspace of this fault injection."""
    config = whole.copy(folder / "workspace", batches=faults.SOURCE)
    configuration.write(config)
    return config


def _context(config: RunConfig) -> Context:
    return Context(Workspace(config.workspace))


def _log(folder: Path, which: str) -> Path:
    return folder / f"dagster-{which}.log"


def _home(folder: Path) -> Path:
    return folder / "dagster"


def _dagster(config: RunConfig, folder: Path, which: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start Dagster in a separate process group, with the game day's Dagster instance."""
    home = _home(folder)
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    own = {**environment, "DAGSTER_HOME": str(home), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *ORCHESTRATED, str(config.directory.config)]
    with _log(folder, which).open("ab") as log:
        process: subprocess.Popen[bytes] = processes.start(
            command, *processes.JOB, own=own, stdout=log, stderr=log, start_new_session=True
        )
    return process


def _alive(config: RunConfig) -> bool:
    """Return True if the run has a live job, with or without a handle."""
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    return handle is not None and launcher.poll(handle).alive


def _until(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.1)


DEATH: Final = GameDay(
    name="orchestrator-death",
    hypothesis="A job survives the death of the Dagster that submitted it. A new Dagster finds the job, follows it to "
    "its end and starts no second one. If Dagster dies during the submission, there is at most one job.",
    fault="SIGKILL to Dagster at a write boundary of a submission, after the job started but before its handle is "
    "written, or while Dagster follows the job.",
    blast_radius=f"{OWN} It also starts a separate Dagster instance.",
    protection="jobs are detached, and found again by the handle in the run's folder or by their environment",
    prepare=submitted,
    play=orchestrator_death,
    alerts=("OrchestratorSilent",),
)

ASSET: Final = "run"

#: Line printed once the job is submitted or found.
FOLLOWING: Final = "following job"


def asset(path: Path) -> dg.AssetsDefinition:
    """Return the Dagster asset that submits and follows the job of the run with this configuration."""

    @dg.asset(name=ASSET)
    def followed() -> Any:
        config = configuration.load(path)
        ctx = Context(Workspace(config.workspace))
        with faults.submission():
            handle = admission.submit(ctx, config)
        print(f"{FOLLOWING} {handle.id}", flush=True)
        ended = job.follow(ctx, config)
        return dg.MaterializeResult(metadata={"job": handle.id, "status": ended.status, "step": ended.step})

    return followed


def main() -> int:
    """Materialize the asset of the run; return 0 if the run finished, otherwise 1."""
    return 0 if dg.materialize([asset(Path(sys.argv[1]))], instance=dg.DagsterInstance.get()).success else 1


if __name__ == "__main__":
    sys.exit(main())
