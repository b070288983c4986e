"""A node is lost while a run of two nodes trains on a real Slurm cluster: it goes on by itself.

    pytest -m slow tests/plinth/launch/lost_node.py

Takes minutes, in which Slurm misses the node and KillWait passes; hence not among the tests that always run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.launch.parameters import Launch, Supervision
from plinth.launch.slurm import SlurmLauncher
from plinth.storage.workspace import Workspace
from plinth.training import job, manifests
from plinth.training.run_state import result
from plinth.training.telemetry.timeline import timeline
from tests.plinth.launch.test_slurm import wait_for
from tests.plinth.training import held_ranks
from tests.plinth.training.conftest import environment, tiny
from tests.slurm_cluster import lose_node, node, slurm_cluster


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "told"), [("n2", "lost"), ("n1", "vanished")])
def test_the_run_goes_on_from_the_last_commit(
    lost: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything on a node gets SIGKILL before step 6: no step up to 3 is repeated, and the cost is steps 4 and 5.

    Node n1 runs the batch script and the supervisor that decides; with it, no process is left to report the loss, but
    the next job does.
    """
    marks, slurm = tmp_path / "marks", tmp_path / "slurm"
    marks.mkdir()
    slurm.mkdir()
    held_ranks.hold(marks, 6)
    with slurm_cluster(slurm) as cluster:
        faults = json.dumps({"marks": str(marks), "faults": []})
        for name, value in environment(SLURM_CONF=cluster["SLURM_CONF"], FAULTS=faults).items():
            monkeypatch.setenv(name, value)
        ctx = Context(Workspace(tmp_path / "workspace").ensure())
        config = tiny(
            ctx.workspace.root,
            launch=Launch(kind="slurm", ranks=2, nodes=2),
            supervision=Supervision(backoff_s=0.1, grace_s=20.0),
            batches="faulty_ranks:open_batches",
        )
        run, launcher = config.directory, SlurmLauncher(config.launch, 20.0, every_s=0.0)
        handle = job.submit_or_find(ctx, config)
        wait_for(lambda: held_ranks.waiting(marks, 2), "step 6", run.log)
        wait_for(lambda: timeline(run.events).of("checkpoint"), "the commit of step 3", run.log)
        lose_node(cluster, lost)
        held_ranks.let_go(marks)
        wait_for(lambda: launcher.poll(handle).value == "pending", "Slurm requeues the job", run.log, 600.0)
        with node(cluster, lost):
            assert job.follow(ctx, config).status == "finished"
    story = timeline(run.events)
    (loss,) = story.of(told)
    assert (loss["from_step"], loss["lost_steps"]) == (3, 2)
    assert loss["lost_s"] > 0
    assert [event["step"] for event in story.of("resumed")] == [3]
    assert list(story.steps) == list(range(1, 13))
    assert story.diverged == []
    assert manifests.facts(ctx, config)["lost_steps"] == 2
    assert json.loads(run.evidence.read_bytes())["bit_exact"] is True
    ended = result(config)
    assert ended is not None
    assert ended.lost_steps == (2 if told == "vanished" else 0)  # of the last job alone
