"""Whole jobs with replays of sampled steps: flipped bits, lost ranks, and the audit at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import HostChecks, Supervision
from plinth.training.checkpoint import checkpoint, snapshot
from plinth.training.config import RunConfig
from plinth.training.corruption.sampling import ReplayRecord
from plinth.training.parameters.run import Checkpoints, Recovery, ReplayChecks
from plinth.training.telemetry.timeline import timeline

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow]

CHECKS = "plinth.training.corruption.replays:StepReplayer."


Play = Callable[..., RunConfig]


@pytest.fixture
def play(make: Callable[..., RunConfig], job: Callable[..., int], tmp_path: Path) -> Play:
    """Run a job with replays and these faults to its end, and return its configuration."""

    def played(faults: dict[str, Any], **fields: Any) -> RunConfig:
        (tmp_path / "marks").mkdir()
        config = make(replay_checks=ReplayChecks(share=0.5), **fields)
        assert job(config, FAULTS=json.dumps({"marks": str(tmp_path / "marks"), **faults})) == 0
        return config

    return played


@pytest.mark.parametrize("recovery", [Recovery(), Recovery(copies_every=2)])
def test_a_job_undoes_a_flip_and_its_audit_is_bit_exact(
    recovery: Recovery, play: Play, uninterrupted: RunConfig
) -> None:
    config = play({"flips": [[7, 1], [12, 0]]}, recovery=recovery, batches="flipped_bits:open_batches")
    require_same(config, uninterrupted, mismatches=2)


@pytest.mark.parametrize(
    ("place", "call"),
    [(CHECKS + "begin", 2), (CHECKS + "_repeat", 2), (CHECKS + "_batch!", 2), (CHECKS + "check!", 2)],
)
def test_a_rank_is_lost_at_any_instant_of_a_replay(
    place: str, call: int, play: Play, tmp_path: Path, uninterrupted: RunConfig
) -> None:
    config = play(
        {"faults": [[place, call, 1, "SIGKILL"]]},
        recovery=Recovery(copies_every=2, silent_s=900.0),
        batches="struck_ranks:open_batches",
        checkpoints=Checkpoints(every_steps=6, audit_steps=3, keep_last=9),
        supervision=Supervision(backoff_s=0.1, hang_s=1800.0, host_checks=HostChecks(enabled=False)),
    )
    assert len(list((tmp_path / "marks").iterdir())) == 1
    require_same(config, uninterrupted, mismatches=0)


def require_same(config: RunConfig, reference: RunConfig, mismatches: int) -> None:
    """The end is that of an undisturbed run, and every sampled step was replayed."""
    states = [checkpoint.read_state(one.directory, 12) for one in (config, reference)]
    assert len({json.dumps([state[name] for name in snapshot.DIGESTS]) for state in states}) == 1
    record = ReplayRecord.of(states[0]["monitor"])
    assert record == ReplayRecord(steps=12, samples=4, mismatches=mismatches, last=12, other_hosts=False)
    story = timeline(config.directory.events)
    assert [event["bit_exact"] for event in story.of("audited")] == [True]
    assert story.diverged == []
