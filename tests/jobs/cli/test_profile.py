"""`plinth run profile` asks a run for a trace of steps to come, and refuses steps that are taken or are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.model.parameters import Model
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.run import Checkpoints, Training
from plinth.training.telemetry.timeline import Timeline


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    """A run of 12 steps on two ranks, of which 3 steps are taken."""
    Workspace(tmp_path / "workspace").ensure()
    own = Training(model=Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16))
    made = RunConfig(
        run_id="small-0", key="0" * 64, recipe="small", workspace=str(tmp_path / "workspace"), model=own.model,
        vocab_size=64, end_of_text=0, optimizer=Optimizer(), precision="fp32", parallel=own.parallel, seed=1,
        launch=own.launch, sequence_tokens=32, micro_batch_sequences=2, global_batch_sequences=8, total_steps=12,
        mixture="m" * 64, shards={}, tokenizer="t" * 64, checkpoints=Checkpoints(), supervision=own.supervision,
    )  # fmt: skip
    configuration.write(made)
    for step in (1, 2, 3):
        Timeline(made.directory.events).append("step", step=step)
    return made


def test_the_request_lies_where_the_ranks_look(plinth: Callable[..., Any], run: RunConfig) -> None:
    told = json.loads(plinth("run", "profile", "latest", "--steps", "5-7", "--ranks", "1,0", "--json").out)
    names = [f"0001-steps-5-7-rank-000{rank}.json.gz" for rank in (0, 1)]
    assert told == {
        "run": "small-0",
        "request": 1,
        "steps": [5, 7],
        "files": [str(run.directory.profiles / name) for name in names],
    }
    asked = json.loads((run.directory.profiles / "0001.json").read_bytes())
    assert asked == {"number": 1, "first": 5, "last": 7, "ranks": [0, 1]}
    assert "will trace steps 9 to 9" in plinth("run", "profile", "small", "--steps", "9").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "3-5"), "steps from 4 on"),
        (("--steps", "9-13"), "steps from 1 to 12"),
        (("--steps", "7-6"), "has no steps 7 to 6"),
        (("--steps", "soon"), "for example 100 or 100-103"),
        (("--steps", "4", "--ranks", "2"), "has no rank 2"),
        (("--steps", "4", "--ranks", "all"), "for example 0,8"),
        ((), "--steps"),
    ],
)
def test_what_cannot_be_traced_is_refused_by_name(
    plinth: Callable[..., Any], run: RunConfig, arguments: tuple[str, ...], message: str
) -> None:
    outcome = plinth("run", "profile", "latest", *arguments)
    assert outcome.code in (2, 3)
    assert message in outcome.err
    assert not run.directory.profiles.exists()
