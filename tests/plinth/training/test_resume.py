"""Whatever is killed, whenever: the run ends with the parameters of an uninterrupted one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from plinth.operation import settlement
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import History, timeline
from tests.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

Make = Callable[..., RunConfig]
Job = Callable[..., int]


def same_end(config: RunConfig, reference: RunConfig) -> History:
    """Assert that two runs agree bit for bit in every step and in the final state; returns the first's story."""
    story, expected = timeline(config.directory.events), timeline(reference.directory.events)
    for name in ("loss", "grad_norm", "lr", "loss_ema", "batch", "tokens"):
        assert [e[name] for e in story.steps.values()] == [e[name] for e in expected.steps.values()], name
    assert list(story.steps) == list(range(1, config.total_steps + 1))
    checkpoint.verify(config.directory, config.total_steps)
    final, wanted = (checkpoint.read_state(c.directory, c.total_steps) for c in (config, reference))
    assert final == wanted
    weights = [
        (checkpoint.path(c.directory, c.total_steps) / "model/model.safetensors").read_bytes()
        for c in (config, reference)
    ]
    assert weights[0] == weights[1]
    return story


def test_evidence_of_resume(uninterrupted: RunConfig) -> None:
    evidence = json.loads(uninterrupted.directory.evidence.read_bytes())
    assert evidence["bit_exact"] is True
    assert (evidence["from_step"], evidence["to_step"], evidence["compared_steps"]) == (8, 12, 4)
    assert evidence["max_abs_difference"] == {"loss": 0.0, "grad_norm": 0.0, "parameters": 0.0}
    assert all(row["equal"] for row in evidence["digests"].values())
    assert len(evidence["digests"]["optimizer_sha256"]["original"]) == 2


def test_kept_checkpoints(uninterrupted: RunConfig) -> None:
    """The two newest, and the one the audit needs."""
    assert checkpoint.committed(uninterrupted.directory) == [8, 9, 12]
    assert not uninterrupted.directory.staging.exists() or not any(uninterrupted.directory.staging.iterdir())


def test_killed_in_training_and_in_a_commit(uninterrupted: RunConfig, make: Make, job: Job, tmp_path: Path) -> None:
    """Every phase of a commit is struck in test_crash_matrix, without whole jobs."""
    saves = Checkpoints(every_steps=3, audit_steps=4, mode="sync")
    config = make(
        batches="faulty_ranks:open_batches",
        supervision={"max_restarts": 2, "backoff_s": 0.1, "hang_s": 1800.0},
        checkpoints=saves,
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    faults = [["kill", 5, 1], ["record", 9, 0]]
    assert job(config, FAULTS=json.dumps({"marks": str(marks), "faults": faults})) == 0
    assert sorted(mark.name for mark in marks.iterdir()) == ["kill-5", "record-9"]
    story = same_end(config, uninterrupted)
    restarts = story.of("restart")
    assert [(event["from_step"], event["lost_steps"]) for event in restarts] == [(3, 1), (8, 1)]
    assert all("SIGKILL" in event["reason"] for event in restarts)
    assert [event["step"] for event in story.of("resumed")] == [3, 8]
    assert story.redone == 2
    assert story.diverged == []
    result = json.loads(config.directory.result.read_bytes())
    assert (result["status"], result["restarts"], result["lost_steps"]) == ("finished", 2, 2)
    assert config.directory.evidence.read_bytes() == uninterrupted.directory.evidence.read_bytes()
    assert left_in_shared_memory() == []
    ledger = settlement.run_goodput(config)
    spent, shares = ledger.rank_s, ledger.percentages()
    assert (ledger.lost_steps, len(ledger.attempts)) == (2, 3)
    assert spent["idle"] == pytest.approx(config.ranks * (0.1 + 0.2))
    assert min(spent[cause] for cause in ("goodput", "start", "restore", "redone work", "audit")) > 0
    assert shares.get("other", 0.0) <= 1.0
    assert sum(round(10 * share) for share in shares.values()) == 1000


def trained(config: RunConfig) -> None:
    from plinth.training import loop
    from plinth.training.engine import engine

    assert loop.train(config, engine.join(config), 0)
    engine.leave()


def test_flipped_byte_in_the_newest_checkpoint(uninterrupted: RunConfig, make: Make) -> None:
    config = make()
    shutil.copytree(uninterrupted.directory.root, config.directory.root)
    for left in (
        config.directory.evidence,
        config.directory.result,
        config.directory.checkpoints / "step-00000012.json",
    ):
        left.unlink()
    weights = checkpoint.path(config.directory, 9) / "engine/rank-00001.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    run_ranks(2, trained, config)
    story = same_end(config, uninterrupted)
    (refused,) = story.of("refused")
    assert refused["step"] == 9
    assert "step-00000009: engine/rank-00001.safetensors has changed" in refused["reason"]
    assert [event["step"] for event in story.of("resumed")] == [8]
    assert [event["step"] for event in story.of("checkpoint")][-2:] == [9, 12]


def left_in_shared_memory() -> list[str]:
    """Return files that DeepSpeed's operators, or PyTorch of an ended process, have left in shared memory."""
    folder, owned = Path("/dev/shm"), re.compile(r"torch_(\d+)_")
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    owners = {name: owned.match(name) for name in names if name.startswith(("deepspeed", "torch_"))}
    return [name for name, owner in owners.items() if owner is None or not psutil.pid_exists(int(owner[1]))]
