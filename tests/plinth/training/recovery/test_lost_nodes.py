"""Whole runs on two nodes with spares that lose ranks and nodes at any instant, with a common folder or with a bucket.
A spare takes the place of a lost node, the ranks of the others continue, and the end is that of an undisturbed run on
one disk, to the bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import struck_nodes

from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.storage.workspace import CACHE_VARIABLE
from plinth.training import attempts
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Recovery
from plinth.training.shared_run import shipping
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED
from plinth.training.telemetry.timeline import timeline
from tests.plinth.training.recovery.test_recovered_run import CONNECT, COPIER, ENGINE, KILL, LOOP, SAVER, same_end
from tests.plinth.training.shared_run.test_two_machines import Machine
from tests.s3_server import Bucket, serving

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

WRITER = "plinth.training.checkpoint.writer:WriterClient."

#: Losses of nodes by instant (`struck_ranks`), and the number of spares.
NODES: dict[str, tuple[int, list[list[Any]]]] = {
    "before a step": (1, [["batch", 9, 1, "node"]]),
    "with the gradient": (1, [[ENGINE + "_complete", 9, 1, "node"]]),
    "after the update": (1, [[ENGINE + "gradient_norm", 9, 1, "node"]]),
    "before a step is read": (1, [[LOOP + "_record", 9, 1, "node"]]),
    "in a copy": (1, [[COPIER + "_send", 4, 1, "node"]]),
    "while a save is staged": (1, [[SAVER + "_stage", 1, 1, "node"]]),
    "after a save is staged": (1, [[SAVER + "save!", 1, 1, "node"]]),
    "once its writer has the order": (1, [[WRITER + "order!", 1, 1, "node"]]),
    "with a rank of the other node": (1, [["batch", 9, 1, "node"], ["batch", 9, 0, KILL]]),
    "while the other joins": (1, [["batch", 9, 0, KILL], [CONNECT, 1, 1, "node"]]),
    "the spare after it has joined": (2, [["batch", 9, 1, "node"], ["batch", 10, 1, "node"]]),
    "the spare while it restores": (2, [["batch", 9, 1, "node"], [COPIER + "restore", 1, 1, "node"]]),
    "a spare that waits": (2, [["batch", 8, 0, "spare"], ["batch", 9, 1, "node"]]),
    "the neighbor's copies": (1, [["batch", 9, 0, "keeper"], ["batch", 9, 1, "node"]]),
    # node 0, whose ranks are the first ones
    "node 0 before a step": (1, [["batch", 9, 0, "node"]]),
    "node 0 with the gradient": (1, [[ENGINE + "_complete", 9, 0, "node"]]),
    "node 0 before a step is read": (1, [[LOOP + "_record", 9, 0, "node"]]),
    "node 0 in a copy": (1, [[COPIER + "_send", 4, 0, "node"]]),
    "node 0 while a save is staged": (1, [[SAVER + "_stage", 1, 0, "node"]]),
    "node 0 after a save is staged": (1, [[SAVER + "save!", 1, 0, "node"]]),
    "node 0 while another node's ranks are replaced": (2, [["batch", 9, 1, "node"], [CONNECT, 1, 0, "node"]]),
    "node 0 in the audit": (1, [["plinth.training.trainer:Trainer.load", 1, 0, "node"]]),
    "node 0, then the spare that leads": (2, [["batch", 9, 0, "node"], ["batch", 10, 0, "node"]]),
    "node 0 and its neighbor's copies": (1, [["batch", 8, 1, "keeper"], ["batch", 9, 0, "node"]]),
}

#: Losses of ranks, whose nodes stay. With a common folder they are those of `test_recovered_run`.
RANKS: dict[str, tuple[int, list[list[Any]]]] = {
    "a rank before a step": (0, [["batch", 9, 1, KILL]]),
    "a rank before the first copy": (0, [["batch", 2, 1, KILL]]),
    "a rank with the gradient": (0, [[ENGINE + "_complete", 9, 1, KILL]]),
    "a rank in a copy": (0, [[COPIER + "_send", 4, 1, KILL]]),
    "a rank while a save is staged": (0, [[SAVER + "_stage", 1, 1, KILL]]),
    "a rank after a save is staged": (0, [[SAVER + "save!", 1, 1, KILL]]),
    "a rank once its writer has the order": (0, [[WRITER + "order!", 1, 1, KILL]]),
    "a rank before the last commit": (0, [[SAVER + "drain", 1, 1, KILL]]),
    "the leading rank": (0, [["batch", 9, 0, KILL]]),
    "the leading rank while a save is staged": (0, [[SAVER + "_stage", 1, 0, KILL]]),
    "the leading rank once its writer has the order": (0, [[WRITER + "order!", 1, 0, KILL]]),
    "both ranks": (0, [["batch", 9, 0, KILL], ["batch", 9, 1, KILL]]),
    "the other rank in the rebuild": (0, [["batch", 9, 1, KILL], [CONNECT, 1, 0, KILL]]),
}

INSTANTS = [("disk", instant) for instant in NODES] + [("bucket", instant) for instant in (*RANKS, *NODES)]

#: Losses of a spare that takes the lead, by the function before or after which its supervisor is killed.
SUCCESSIONS = {
    "before it has the lock": "plinth.training.supervise.follower:acquire",
    "with the lock": "plinth.training.supervise.follower:acquire!",
    "before its address is known": "plinth.training.supervise.supervisor:Leader",
    "when its address is known": "plinth.training.supervise.supervisor:Leader!",
    "before the copies are known": "plinth.training.recovery.coordinator:RecoveryCoordinator.newest",
    "when the loss is logged": "plinth.training.supervise.takeover:begin!",
    "before the attempt is signed": "plinth.training.attempts:state",
    "when the attempt is signed": "plinth.training.attempts:state!",
    "before the other nodes start": "plinth.training.supervise.leader:Leader.start",
    "when the other nodes start": "plinth.training.supervise.leader:Leader.start!",
    "before the state is signed": "plinth.training.recovery.coordinator:RecoveryCoordinator._attest",
    "when the state is signed": "plinth.training.recovery.coordinator:RecoveryCoordinator._attest!",
}

Play = Callable[..., RunConfig]


def start(place: str, log: Path, environment: Mapping[str, str], cold: bool) -> Callable[[], int | None]:
    """Start a node's supervisor, and return a function that waits for its exit status. Unless it is cold, it is a fork
    of a process that has loaded torch."""
    if not cold:
        process = struck_nodes.fork(place, log, environment)
        return lambda: process.join() or process.exitcode
    command = [sys.executable, "-m", "struck_nodes", place]
    with log.open("ab") as stream:
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=stream, start_new_session=True).wait


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with serving() as found:
        yield found


@pytest.fixture
def play(
    make: Callable[..., RunConfig],
    job_environment: Callable[..., dict[str, str]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Play:
    """Run jobs with faults until the run has finished, one supervisor per node, each in a process group of its own.
    Return the configuration of a node that is alive at the end."""

    def nodes(place: str, fields: dict[str, Any]) -> list[tuple[str, RunConfig, dict[str, str]]]:
        """Return the command's argument, the configuration and the own environment of each node."""
        numbers = range(fields["launch"].machines)
        if place == "disk":
            return [(str(configuration.write(config := make(**fields))), config, {}) for _ in numbers]
        uri = request.getfixturevalue("bucket").uri(tmp_path.name)
        machines = [Machine(tmp_path / f"{node}", uri, make, **fields) for node in numbers]
        machines[0].submit()
        return [(one.place, one.config, {CACHE_VARIABLE: str(one.cache)}) for one in machines]

    def played(
        faults: list[list[Any]],
        spares: int,
        jobs: int = 1,
        *,
        place: str = "disk",
        cold: bool = False,
        silent_s: float = 900.0,
        **changes: Any,
    ) -> RunConfig:
        marks = tmp_path / "marks"
        marks.mkdir()
        given: dict[str, Any] = {
            "launch": Launch(kind="slurm", ranks=2, nodes=2, spares=spares),
            "recovery": Recovery(copies_every=2, silent_s=900.0),
            "batches": "struck_ranks:open_batches",
            "checkpoints": Checkpoints(every_steps=6, audit_steps=3, keep_last=9),
            "supervision": Supervision(backoff_s=0.1, hang_s=1800.0, host_checks=HostChecks(enabled=False)),
        }
        members = nodes(place, {**given, **changes})
        common = job_environment(
            FAULTS=json.dumps({"marks": str(marks), "faults": faults, "nodes": 2}),
            PLINTH_NODES=f"{len(members)}",
            PLINTH_ADDRESS="127.0.0.1",
            PLINTH_SILENT_S=f"{silent_s}",
            PLINTH_SHIP_S="0.5",
        )
        logs = [config.directory.log for _, config, _ in members]
        for expected in [EXIT_PREEMPTED] * (jobs - 1) + [0]:
            waits = [
                start(argument, log, {**common, **own, "PLINTH_NODE": f"{node}"}, cold)
                for node, ((argument, _, own), log) in enumerate(zip(members, logs, strict=True))
            ]
            statuses = [wait() for wait in waits]
            said = "\n".join(f"---- {log}\n{log.read_text()[-2000:]}" for log in dict.fromkeys(logs))
            assert set(statuses) - {-signal.SIGKILL} == {expected}, said
        assert len(list(marks.iterdir())) == len(faults)
        config = members[statuses.index(0)][1]
        if place == "bucket":
            shipping.refresh(config.directory)
        return config

    return played


def test_a_spare_takes_the_place_of_a_lost_node_and_the_other_ranks_stay(play: Play, uninterrupted: RunConfig) -> None:
    config = play([[ENGINE + "_complete", 9, 1, "node"]], 1, cold=True)
    same_end(config, uninterrupted)
    story = timeline(config.directory.events)
    (moved,), (restart,), (resumed,) = story.of("node_replaced"), story.of("restart"), story.of("resumed")
    assert (moved["node"], moved["by"], moved["ranks"], moved["host"]) == (1, 2, "1", attempts.this_host().host)
    assert restart["reason"] == "the node of rank 1 sends no heartbeat"
    assert (resumed["source"], resumed["step"]) == ("memory", restart["from_step"])
    assert resumed["step"] in (6, 8)
    assert len(story.of("job_started")) == 1
    assert story.of("run_started")[-1]["attempt"] == 2


@pytest.mark.parametrize(("place", "instant"), INSTANTS)
def test_any_instant(play: Play, uninterrupted: RunConfig, place: str, instant: str) -> None:
    spares, faults = {**NODES, **RANKS}[instant]
    config = play(faults, spares, place=place)
    same_end(config, uninterrupted)
    story = timeline(config.directory.events)
    restarts = story.of("restart")
    assert len(story.of("job_started")) == 1 + sum(fault[2:] == [0, "node"] for fault in faults)
    assert story.of("refused") == []
    assert all(event["backoff_s"] == 0 for event in restarts) or instant == "both ranks"  # not all ranks restarted
    unshipped = 4 if place == "bucket" and "node 0" in instant else 0  # copies of steps that node 0 had not shipped
    assert all(event["lost_steps"] <= 4 + unshipped for event in restarts) or "copies" in instant
    assert story.redone <= 4 * len(faults) + unshipped or "copies" in instant
    nodes = sum(fault[3] == "node" for fault in faults)
    assert nodes - bool(unshipped and nodes > 1) <= len(story.of("node_replaced")) <= nodes
    assert checkpoint.committed(config.directory)[-2:] == [9, 12]  # a save that the loss interrupts is given up


@pytest.mark.parametrize("boundary", SUCCESSIONS)
def test_another_spare_leads_if_the_first_one_is_lost(play: Play, uninterrupted: RunConfig, boundary: str) -> None:
    config = play([["batch", 9, 0, "node"], [SUCCESSIONS[boundary], 1, "spare", "node"]], 2)
    same_end(config, uninterrupted)
    story = timeline(config.directory.events)
    assert {event["node"] for event in story.of("node_replaced")} <= {0, 2, 3}
    assert {event["by"] for event in story.of("node_replaced")} <= {2, 3}
    assert story.redone <= 4


@pytest.mark.parametrize("spares", [1, 2])
def test_node_0_and_another_node_at_once(play: Play, uninterrupted: RunConfig, spares: int) -> None:
    """No copies are left. The spare that leads waits `silent_s` for the other lost node; without another spare it then
    ends the job, and names the node."""
    faults = [["batch", 9, 0, "node"], ["batch", 9, 1, "node"]]
    config = play(faults, spares, jobs=3 - spares, silent_s=30.0)
    same_end(config, uninterrupted)
    story = timeline(config.directory.events)
    assert [event["node"] for event in story.of("node_replaced")] == [0, 1][:spares]
    assert [event["reason"] for event in story.of("lost")] == ["the node of rank 1 sends no heartbeat"][spares - 1 :]
    assert len(story.of("job_started")) == 2 + (spares == 1)


def test_without_a_spare_the_job_ends_for_another_one(play: Play, uninterrupted: RunConfig) -> None:
    config = play([["batch", 8, 0, "spare"], ["batch", 9, 1, "node"]], 1, jobs=2)
    same_end(config, uninterrupted)
    story = timeline(config.directory.events)
    assert len(story.of("node_replaced")) <= 1  # by the spare, if its loss is not known yet
    assert [event["reason"] for event in story.of("lost")] == ["the node of rank 1 sends no heartbeat"]


@pytest.mark.parametrize("recovery", [Recovery(copies_every=2), Recovery()])
def test_ranks_that_cannot_stay_restart(play: Play, job: Any, tmp_path: Path, recovery: Recovery) -> None:
    """A run without copies in memory. With ZeRO-3 the other ranks stay."""
    parallel = Parallel(zero_stage=3 if recovery.enabled else 1)
    config = play([["batch", 9, 1, "node"]], 1, parallel=parallel, recovery=recovery)
    same = {"launch": Launch(ranks=2), "recovery": Recovery(), "batches": "synthetic:open_batches"}
    reference = config.model_copy(update={**same, "workspace": str(tmp_path / "reference")})
    assert job(reference) == 0
    same_end(config, reference)
    story = timeline(config.directory.events)
    assert len(story.of("job_started")) == len(story.of("node_replaced")) == 1
    if recovery.enabled:  # else the save of step 6 may not have been committed before the loss
        assert story.of("resumed")[0]["source"] == "memory"
