"""Game day of a recovery in place: ranks, nodes, copies and spares lost at any instant of a step, a save or a rebuild.

Two nodes of one rank each train, and spares wait. Consecutive instants play the rows of `LOSSES` in order.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.storage.workspace import Workspace
from plinth.training import attempts
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Recovery
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED
from plinth.training.telemetry.timeline import NODE_SILENT, timeline
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth_ops.gamedays import faults, gameday, rehearsal
from plinth_ops.gamedays.faults import RehearsalFault
from plinth_ops.gamedays.gameday import Chooser, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal
from plinth_ops.gamedays.warm_job import WarmJob

LOOP = "plinth.training.loop:TrainingRun."
ENGINE = "plinth.training.engine.engine:TrainingEngine."
COPIER = "plinth.training.recovery.copies:Copier."
SAVER = "plinth.training.checkpoint.saving:Saver."
CONNECT = "plinth.training.engine.ranks:connect"

#: Interval of the copies, in steps.
EVERY = 1


class LossPoint(NamedTuple):
    """A loss: the rank that causes it, what is lost, the function before (or with `!`, after) whose next call it
    happens, and the number of steps by which it is later than the first loss. `early` arms the function at the start of
    the rank's process. A `spare` is lost before the step begins."""

    rank: int
    target: Literal["rank", "node", "keeper", "spare"]
    place: str = ""
    later: int = 0
    early: bool = False


#: Losses by instant, and the number of spares.
LOSSES: Final[dict[str, tuple[int, tuple[LossPoint, ...]]]] = {
    "before a step": (1, (LossPoint(1, "node"),)),
    "in the forward pass": (1, (LossPoint(1, "rank", ENGINE + "_on_device"),)),
    "after a micro batch": (1, (LossPoint(1, "node", ENGINE + "_step"),)),
    "with the gradient": (1, (LossPoint(1, "node", ENGINE + "_complete"),)),
    "after the update": (1, (LossPoint(1, "rank", ENGINE + "gradient_norm"),)),
    "before a step is read": (1, (LossPoint(1, "node", LOOP + "_record"),)),
    "after a step is read": (1, (LossPoint(1, "rank", LOOP + "_record!"),)),
    "before a copy": (1, (LossPoint(1, "node", COPIER + "copy"),)),
    "in a copy": (1, (LossPoint(1, "rank", COPIER + "_send"),)),
    "in the bytes of a copy": (1, (LossPoint(1, "node", "plinth.training.wire:send_block"),)),
    "after a copy": (1, (LossPoint(1, "node", COPIER + "_send!"),)),
    "before a save": (1, (LossPoint(1, "node", SAVER + "save"),)),
    "while a save is staged": (1, (LossPoint(1, "node", SAVER + "_stage"),)),
    "after a save is staged": (1, (LossPoint(1, "rank", SAVER + "save!"),)),
    "the leading rank": (1, (LossPoint(0, "rank"),)),
    "the leading rank in a save": (1, (LossPoint(0, "rank", SAVER + "_stage"),)),
    "a rank and a node at once": (1, (LossPoint(0, "rank"), LossPoint(1, "node"))),
    "the other in the rebuild": (1, (LossPoint(1, "node"), LossPoint(0, "rank", CONNECT, early=True))),
    "the other in the restore": (1, (LossPoint(1, "node"), LossPoint(0, "rank", COPIER + "restore", early=True))),
    "the spare in the restore": (2, (LossPoint(1, "node"), LossPoint(1, "node", COPIER + "restore", early=True))),
    "the spare one step later": (2, (LossPoint(1, "node"), LossPoint(1, "node", later=1))),
    "a spare that waits": (2, (LossPoint(0, "spare"), LossPoint(1, "node", later=1))),
    "the copies of the neighbor": (1, (LossPoint(0, "keeper"), LossPoint(1, "node", later=1))),
    "node 0 in a copy": (1, (LossPoint(0, "node", COPIER + "_send"),)),
    "node 0 in a save": (1, (LossPoint(0, "node", SAVER + "_stage"),)),
    "node 0, then the spare that leads": (2, (LossPoint(0, "node"), LossPoint(0, "node", later=1))),
    "the only spare": (1, (LossPoint(0, "spare"), LossPoint(1, "node", later=1))),
    "a node without a spare": (0, (LossPoint(1, "node"),)),
}

#: The instants at which no spare is left, so that the job ends and the scheduler starts another one.
UNRECOVERED = ("the only spare", "a node without a spare")


def lost_ranks(made: Rehearsal, folder: Path, chooser: Chooser) -> Struck:
    """Lose ranks and nodes at an instant of a job, and run jobs until the run has finished."""
    name = list(LOSSES)[(chooser.number - 1) % len(LOSSES)]
    spares, losses = LOSSES[name]
    config = made.copy(
        folder / "workspace",
        launch=Launch(kind="slurm", ranks=2, nodes=2, spares=spares),
        checkpoints=made.config.checkpoints.model_copy(update={"mode": "async"}),
        recovery=Recovery(copies_every=EVERY, silent_s=60.0),
        batches=faults.SOURCE,
        supervision=Supervision(backoff_s=0.1, hang_s=300.0, host_checks=HostChecks(enabled=False)),
    )
    step = _step(chooser)
    struck = [
        RehearsalFault(
            kind="wait" if one.target == "spare" else "kill",
            step=0 if one.early else step + one.later,
            rank=one.rank,
            place=one.place,
            target=one.target,
        )
        for one in losses
    ]
    plan, environment = faults.plan(folder / "plan", *struck)
    nodes = _nodes(config, environment)
    spare = next((fault for fault in struck if fault.kind == "wait"), None)
    watch = threading.Thread(target=_lose_spare, args=(nodes, plan, spare))
    watch.start()
    statuses = [node.wait() for node in nodes]
    watch.join()
    moved = any(one.target == "node" for one in losses)
    trace = "lost" if name in UNRECOVERED else "node_replaced" if moved else "restart"
    alert, after = gameday.fired(config, LOST_RANKS.alerts, trace)
    reasons = [event["reason"] for event in timeline(config.directory.events).of("lost")]
    left = [
        finding("node 0 exits with 75, so that the scheduler restarts it", statuses[0], EXIT_PREEMPTED),
        finding("the timeline names the lost node", reasons, [f"the node of rank 1 {NODE_SILENT}"]),
    ]
    if name in UNRECOVERED:
        statuses = [node.wait() for node in _nodes(config, {})]  # without faults: no spare is to be lost again
    found = [
        *(left if name in UNRECOVERED else _continued(config, losses)),
        finding("every loss has happened", all(plan.mark(fault).exists() for fault in struck if fault != spare), True),
        rehearsal.finished(max(status for status in statuses if status != -signal.SIGKILL)),
        *made.end_state(config),
        *alert,
    ]
    return Struck(f"{name}, at step {step}", tuple(found), after)


def _step(chooser: Random) -> int:
    """Return a step after which a copy and a checkpoint follow, and before which both exist."""
    return chooser.choice([5, 6])


def _continued(config: RunConfig, losses: tuple[LossPoint, ...]) -> list[Outcome]:
    """Check that the ranks that were not lost stayed, and that every continuation is attested."""
    story, run = timeline(config.directory.events), config.directory
    all_restarted = [event["reason"] for event in story.of("restart") if event["backoff_s"] > 0]
    jobs = 1 + sum((one.rank, one.target) == (0, "node") for one in losses)
    bound = (EVERY + 2) * len(losses) + 2 * any(one.target == "keeper" for one in losses)
    trainer = Trust.of(Workspace(config.workspace)).authority(TRAINER)
    stated = [one.continuation for one in attempts.opened(attempts.known(run), trainer, config.run_id)]
    signed = [one for one in stated if one is not None]
    last = [one.step for one in signed][-1:]  # a loss before the signature begins the recovery again
    resumed = [event["step"] for event in story.of("resumed")]
    moved = [event["node"] for event in story.of("node_replaced")]
    return [
        finding("no attempt of all ranks fails", all_restarted, []),
        finding(
            "the scheduler starts nothing; a spare leads after each loss of node 0", len(story.of("job_started")), jobs
        ),
        finding("a spare takes the place of each lost node", len(moved), sum(one.target == "node" for one in losses)),
        Outcome(what=f"at most {bound} steps are trained again", passed=story.redone <= bound, seen=f"{story.redone}"),
        finding("the step after which the ranks continued is signed", last, resumed[-1:] or [0]),
    ]


def _nodes(config: RunConfig, environment: dict[str, str]) -> list[WarmJob]:
    count = config.launch.machines
    place = {"PLINTH_NODES": f"{count}", "PLINTH_ADDRESS": "127.0.0.1", "PLINTH_SILENT_S": "60"}
    return [WarmJob(config, **environment, **place, PLINTH_NODE=f"{number}") for number in range(count)]


def _lose_spare(nodes: list[WarmJob], plan: faults.FaultPlan, fault: RehearsalFault | None) -> None:
    """Kill the node with the highest number while a rank waits for it, and let the rank go on."""
    if fault is None:
        return
    while not plan.struck(fault):
        if nodes[0].process.exitcode is not None:
            return
        threading.Event().wait(0.05)
    os.killpg(nodes[-1].pid, signal.SIGKILL)
    plan.mark(fault).unlink()


LOST_RANKS: Final = GameDay(
    name="lost-ranks",
    hypothesis="A spare or a new process takes the place of a lost node or rank, the others keep running, and the run "
    "continues from copies in memory to the end state of an undisturbed run. After the loss of node 0 a spare leads. "
    "Each continuation is signed. Without a spare the job exits so that the scheduler restarts it.",
    fault="SIGKILL to a rank, to all processes of a node, to the copies of a node or to a spare, at instants of a "
    "step, a copy, a save and a rebuild, also to two at once.",
    protection="copies of the state in the memory of two nodes, spares, and ranks that outlive lost ranks",
    prepare=lambda folder: rehearsal.rehearse(folder, launch=Launch(ranks=2)),
    play=lost_ranks,
    alerts=("NodeLost", "RunRestarted", "JobFailed"),
)
