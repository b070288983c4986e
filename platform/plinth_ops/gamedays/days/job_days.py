"""Game days of jobs: a preemption, a node that is lost, and a clock that jumps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from plinth.launch.parameters import Launch, Supervision
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.rank_failure import NODE_SILENT
from plinth.training.supervise.watch import EXIT_PREEMPTED
from plinth.training.telemetry.goodput.account import account
from plinth.training.telemetry.timeline import read_events, timeline
from plinth_ops.gamedays import alerting, faults, rehearsal, warm_job
from plinth_ops.gamedays.faults import RehearsalFault
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal
from plinth_ops.gamedays.warm_job import WarmJob

#: Seconds without a heartbeat after which the rehearsal's nodes are lost.
LEASE_S = 8.0

#: Jumps of the clock in seconds; the last one outlives the root of trust, which is valid for a year.
JUMPS_S = (-86_400.0, -3_600.0, -30.0, 30.0, 3_600.0, 86_400.0, 400 * 86_400.0)
EXPIRES_S = 365 * 86_400.0


def preemption(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """SIGTERM within a step, as a scheduler sends it; then the next job."""
    config = made.copy(folder / "workspace", batches=faults.SOURCE)
    step = chooser.randint(1, config.total_steps - 2)
    stop = RehearsalFault(kind="stop", step=step)
    plan, environment = faults.plan(folder / "plan", stop)
    left = warm_job.run(config, **environment)
    took, at = time.time() - plan.mark(stop).stat().st_mtime, checkpoint.newest_valid(config.directory)
    quiet = alerting.no_page(config)
    stopped = [event["step"] for event in timeline(config.directory.events).of("signal")]
    status = warm_job.run(config)
    story = timeline(config.directory.events)
    found = [
        finding("the job leaves with 75, for another start", left, EXIT_PREEMPTED),
        finding("the step in which it stopped is committed", at, (stopped[-1] if stopped else None, [])),
        Outcome(what="it leaves within its grace", passed=took < config.supervision.grace_s, seen=f"{took:.1f} s"),
        finding("no step is trained twice", story.redone, 0),
        rehearsal.finished(status),
        *made.end_state(config),
        *quiet,
    ]
    return Struck(f"SIGTERM within step {step}", tuple(found))


# A lost node


def two_nodes(folder: Path) -> Rehearsal:
    """An undisturbed run of two ranks on one machine, which is what two nodes must equal."""
    return rehearsal.rehearse(folder, launch=Launch(ranks=2))


def lost_node(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """Kill everything of node 1 before a step; then both nodes again, as a scheduler gives them."""
    supervision = Supervision(backoff_s=0.1, hang_s=300.0)
    launch = Launch(kind="slurm", ranks=2, nodes=2)
    config = made.copy(folder / "workspace", launch=launch, batches=faults.SOURCE, supervision=supervision)
    step = chooser.randint(2, config.total_steps - 1)
    held = RehearsalFault(kind="wait", step=step, rank=1)
    plan, environment = faults.plan(folder / "plan", held)
    nodes = [_node(config, number, environment) for number in range(2)]
    _until(lambda: plan.struck(held) or nodes[0].process.exitcode is not None)
    os.killpg(nodes[1].pid, signal.SIGKILL)
    first = nodes[0].wait()
    nodes[1].wait()
    alert, after = alerting.fired(config, LOST_NODE.alerts, "lost")
    reasons = [event["reason"] for event in timeline(config.directory.events).of("lost")]
    again = [_node(config, number, environment) for number in range(2)]
    statuses = [node.wait() for node in again]
    story = timeline(config.directory.events)
    silent = [reason for reason in reasons if NODE_SILENT in reason]
    found = [
        finding("node 0 leaves with 75, for another node", first, EXIT_PREEMPTED),
        Outcome(what="the timeline names the silent node", passed=len(silent) == 1, seen=f"{reasons}"),
        finding("with two nodes again the run reaches its last step", statuses, [0, 0]),
        finding("at most an interval is redone", story.redone <= 3, True),
        *made.end_state(config),
        *alert,
    ]
    return Struck(f"SIGKILL to all of node 1 before step {step}", tuple(found), after)


def _node(config: RunConfig, number: int, environment: dict[str, str]) -> WarmJob:
    place = {"PLINTH_NODE": f"{number}", "PLINTH_NODES": "2", "PLINTH_ADDRESS": "127.0.0.1"}
    return WarmJob(config, **environment, **place, PLINTH_LEASE_S=f"{LEASE_S}")


def _until(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.05)


# A clock that jumps


@dataclass(frozen=True)
class _Jump:
    step: int
    by_s: float

    @property
    def words(self) -> str:
        return f"the clock jumps by {self.by_s:+,.0f} s before step {self.step}"


def clock_jump(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """The clock of supervisor and rank jumps before a step; where the root has expired by it, it is put right after."""
    config = made.copy(folder / "workspace", batches=faults.SOURCE)
    jump = _Jump(chooser.randint(1, config.total_steps - 1), chooser.choice(JUMPS_S))
    _, environment = faults.plan(folder / "plan", RehearsalFault(kind="jump", step=jump.step, value=jump.by_s))
    begun = time.time()
    status, found, after = warm_job.run(config, **environment), list[Outcome](), None
    if jump.by_s > alerting.AHEAD_S:  # a clock that is behind looks like a run that was silent, and nothing is lost
        alert, after = alerting.fires(CLOCK_JUMP.alerts, begun, alerting.samples(config))
        found += alert
    if jump.by_s > EXPIRES_S:
        log = config.directory.log.read_text(errors="replace")
        refused = status == 7 and "has expired" in log
        seen = f"status {status}, the root {'is' if 'has expired' in log else 'is not'} named"
        found.append(Outcome(what="nothing is signed under an expired root", passed=refused, seen=seen))
        before = [known for known in checkpoint.committed(config.directory) if known >= jump.step]
        found.append(finding("no checkpoint is committed after the jump", before, []))
        status = warm_job.run(config)  # the clock is right again
    found += [rehearsal.finished(status), *_ledger(config), *made.end_state(config)]
    return Struck(jump.words, tuple(found), after)


def _ledger(config: RunConfig) -> list[Outcome]:
    """Whether every rank-second has a cause although the clock went back or forth, and events are in their order."""
    events = list(read_events(config.directory.events))
    attempts = account(events, config.ranks).attempts
    gaps = [sum(one.rank_us.values()) - round(one.ranks * (one.end - one.begin) * 1e6) for one in attempts]
    least = min((us for one in attempts for us in one.rank_us.values()), default=0)
    numbers = [event["seq"] for event in events]
    return [
        Outcome(what="causes add up to all rank-seconds", passed=all(abs(gap) <= 2 for gap in gaps), seen=f"{gaps} µs"),
        Outcome(what="no cause has negative time", passed=least >= 0, seen=f"least {least} µs"),
        finding("events keep their order", numbers, sorted(set(numbers))),
    ]


PREEMPTION: Final = GameDay(
    name="preemption",
    hypothesis="A job that is told to leave commits the step in which it is and leaves with 75 within its grace; the "
    "next one goes on from there and trains no step twice.",
    fault="SIGTERM to the supervisor within a step.",
    blast_radius=OWN,
    protection="signals are taken at the end of a step, whose state is committed before the ranks leave",
    abort_s=900.0,
    prepare=rehearsal.rehearse,
    play=preemption,
)

LOST_NODE: Final = GameDay(
    name="lost-node",
    hypothesis="A node that is gone is noticed by its silence, the job leaves for the scheduler to start it again, and "
    "the run ends as on nodes that stayed.",
    fault="SIGKILL to the supervisor and all ranks of one of two nodes.",
    blast_radius=OWN,
    protection="heartbeats with a lease; a lost node ends the attempt but not the run",
    abort_s=900.0,
    prepare=two_nodes,
    play=lost_node,
    alerts=("JobFailed",),
)

CLOCK_JUMP: Final = GameDay(
    name="clock-jump",
    hypothesis="A clock that is set back or forward changes no weight and no order; the ledger still adds up; under a "
    "root that has expired by it nothing is signed.",
    fault="The wall clock of supervisor and ranks jumps back or forward: seconds, hours, days, past the root's expiry.",
    blast_radius=f"{OWN} The machine's clock is not touched: the processes of the job read another.",
    protection="order by number, waits by the monotonic clock, an account whose clock never goes back, expiry",
    abort_s=900.0,
    prepare=rehearsal.rehearse,
    play=clock_jump,
    alerts=("ClockAhead",),
)
