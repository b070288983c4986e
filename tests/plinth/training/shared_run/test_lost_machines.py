"""Runs of machines without a common folder that lose ranks and nodes: the others continue from copies in memory or from
the bucket, a spare takes the place of a lost node, and the end equals the undisturbed run on one disk, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints, Recovery
from plinth.training.telemetry.timeline import timeline
from tests.plinth.training.recovery.test_recovered_run import CONNECT, COPIER, ENGINE, KILL, LOOP, SAVER, same_end
from tests.plinth.training.shared_run.test_two_machines import Machine
from tests.s3_server import Bucket

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

WRITER = "plinth.training.checkpoint.writer:WriterClient."

#: Faults by instant (`struck_ranks`), and the number of spares.
INSTANTS: dict[str, tuple[int, list[list[Any]]]] = {
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
    "a node before a step": (1, [["batch", 9, 1, "node"]]),
    "a node with the gradient": (1, [[ENGINE + "_complete", 9, 1, "node"]]),
    "a node before a step is read": (1, [[LOOP + "_record", 9, 1, "node"]]),
    "a node in a copy": (1, [[COPIER + "_send", 4, 1, "node"]]),
    "a node while a save is staged": (1, [[SAVER + "_stage", 1, 1, "node"]]),
    "a node after a save is staged": (1, [[SAVER + "save!", 1, 1, "node"]]),
    "a node once its writer has the order": (1, [[WRITER + "order!", 1, 1, "node"]]),
    "a node with a rank of the other": (1, [["batch", 9, 1, "node"], ["batch", 9, 0, KILL]]),
    "the spare while it restores": (2, [["batch", 9, 1, "node"], [COPIER + "restore", 1, 1, "node"]]),
    "the copies, then a node": (1, [["batch", 9, 0, "keeper"], ["batch", 9, 1, "node"]]),
}

Play = Callable[..., list[Machine]]


@pytest.fixture
def play(
    bucket: Bucket, make: Callable[..., RunConfig], job_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> Play:
    """Run a job with faults to its end, one supervisor per machine, each with a folder and a process group of its own.
    Return the machines."""

    def played(faults: list[list[Any]], spares: int, **changes: Any) -> list[Machine]:
        marks = tmp_path / "marks"
        marks.mkdir()
        given: dict[str, Any] = {
            "launch": Launch(kind="slurm", ranks=2, nodes=2, spares=spares),
            "recovery": Recovery(copies_every=2, silent_s=900.0),
            "batches": "struck_ranks:open_batches",
            "checkpoints": Checkpoints(every_steps=6, audit_steps=3, keep_last=9),
            "supervision": Supervision(backoff_s=0.1, hang_s=1800.0, host_checks=HostChecks(enabled=False)),
        }
        fields = {**given, **changes}
        nodes = fields["launch"].machines
        machines = [Machine(tmp_path / f"{node}", bucket.uri(tmp_path.name), make, **fields) for node in range(nodes)]
        machines[0].submit()
        own = {
            **{"PLINTH_NODES": f"{nodes}", "PLINTH_ADDRESS": "127.0.0.1", "PLINTH_SILENT_S": "900"},
            **{"PLINTH_SHIP_S": "0.5", "FAULTS": json.dumps({"marks": str(marks), "faults": faults})},
        }
        jobs = [one.start(job_environment, **own, PLINTH_NODE=f"{node}") for node, one in enumerate(machines)]
        status = jobs[0].wait(timeout=1800)
        for job in jobs:
            job.wait(timeout=60)
        logs = (f"---- node {node}\n{one.run.log.read_text()[-3000:]}" for node, one in enumerate(machines))
        assert status == 0, "\n".join(logs)
        assert len(list(marks.iterdir())) == len(faults)
        return machines

    return played


@pytest.mark.parametrize("instant", INSTANTS)
def test_any_instant(play: Play, uninterrupted: RunConfig, instant: str) -> None:
    spares, faults = INSTANTS[instant]
    machines = play(faults, spares)
    leading = machines[0].config
    same_end(leading, uninterrupted)
    story = timeline(leading.directory.events)
    assert len(story.of("job_started")) == 1
    assert story.of("refused") == []
    lost = [event["lost_steps"] for event in story.of("restart")]
    assert lost
    assert max(lost) <= 4 or "copies" in instant
    assert len(story.of("node_replaced")) == sum(fault[3] == "node" for fault in faults)
    assert checkpoint.committed(leading.directory)[-2:] == [9, 12]  # a save that the loss interrupts is given up
