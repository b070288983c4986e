"""Causes that were really planted, in ranks that really train, are named first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planted_causes
import pytest

from plinth.launch.parameters import Launch
from plinth.storage.workspace import Workspace
from plinth.training.parameters.run import Checkpoints, Telemetry
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import MachineSpeed
from plinth_extras.roofline import bottleneck
from tests.plinth.training.conftest import tiny
from tests.ranks import run_ranks

TRIALS, STEPS = 20, 14

#: Steps and cause of the quick test, which leaves the other causes to the exhaustive one.
FEW, QUICK = 7, "small matrices"

Verdict = tuple[str, tuple[int, str] | None]

#: Cause that is planted -> the verdict, and the slow rank with the part that makes it slow.
PLANTED: dict[str, Verdict] = {
    "reader": ("input", None),
    "all-reduce": ("communication", None),
    "small matrices": ("memory", None),
    "disk": ("checkpoint", None),
    "reader of rank 1": ("slow rank", (1, "input")),
    "computation of rank 1": ("slow rank", (1, "compute")),
    "reader of rank 0": ("input", (0, "input")),
}


@pytest.fixture(scope="module")
def speed(tmp_path_factory: pytest.TempPathFactory) -> MachineSpeed:
    return machine_speed.measure(Workspace(tmp_path_factory.mktemp("machine")).ensure())


def verdict(root: Path, planted: str, speed: MachineSpeed, trial: int, steps: int = STEPS) -> Verdict:
    """Train a run with one planted cause; return the verdict of its roofline."""
    changes: dict[str, Any] = {"checkpoints": Checkpoints(every_steps=100, audit_steps=1, mode="sync")}
    if planted == "disk":
        changes["checkpoints"] = Checkpoints(every_steps=3, audit_steps=1, mode="sync")
    if planted == "small matrices":
        changes["global_batch_sequences"] = 64  # many micro batches for each reduction
    config = tiny(
        root, run_id=f"trial-{trial}", seed=trial, launch=Launch(ranks=2), total_steps=steps,
        batches="planted_causes:open_batches", telemetry=Telemetry(stragglers_every=5 if steps == STEPS else 2),
        **changes,
    )  # fmt: skip
    run_ranks(2, planted_causes.train, config, planted)
    found = bottleneck.of_run(config, speed)
    slow = found.step.slow_ranks
    named = (slow[0].rank, str(slow[0].part)) if slow and planted in planted_causes.ONE_RANK else None
    return found.causes[0].cause, named


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_planted_cause_is_named_first(tmp_path: Path, speed: MachineSpeed) -> None:
    assert verdict(tmp_path, QUICK, speed, 1, FEW) == PLANTED[QUICK]


@pytest.mark.exhaustive
@pytest.mark.parametrize("planted", PLANTED)
def test_planted_causes_are_named_first_in_every_trial(tmp_path: Path, planted: str, speed: MachineSpeed) -> None:
    found = [verdict(tmp_path, planted, speed, trial) for trial in range(TRIALS)]
    assert found == [PLANTED[planted]] * TRIALS
