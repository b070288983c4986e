"""Rotary positions that change within a run: by step alone, so exact through a resume, and recorded in checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import changed_layout
import pytest
import torch
from pydantic import ValidationError

from plinth.launch.parameters import Launch
from plinth.model.decoder import build
from plinth.model.hugging_face import CONFIG
from plinth.recipe.recipe import _misplaced
from plinth.training.checkpoint.snapshot import _described
from plinth.training.config import RunConfig, identified, identity
from plinth.training.parameters.optimizers import RotaryChange
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Training
from plinth_jobs.recipes import load
from tests.ranks import run_ranks

LATER = (RotaryChange(from_step=3, rope_theta=500_000.0),)


def test_a_step_has_the_positions_of_the_last_change_before_it() -> None:
    training = Training.model_validate(
        {
            "changes": [
                {"from_step": 3, "sequence_tokens": 16, "rope_theta": 40_000.0},
                {"from_step": 5, "rope_scaling": {"kind": "yarn", "factor": 4.0}},
            ]
        }
    )
    assert [one.from_step for one in training.rotary_schedule] == [3, 5]
    assert [one.sequence_tokens for one in training.length_schedule] == [16]
    assert training.batch_schedule == ()
    dumped = training.model_dump(mode="json")
    assert Training.model_validate(dumped).model_dump(mode="json") == dumped
    assert "rotary_schedule" not in identified(Training())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{"from_step": 5, "rope_theta": 2e4}, {"from_step": 5, "rope_theta": 3e4}], "found step 5 after step 5"),
        ([{"from_step": 5, "rope_theta": 2e4, "reason": "late"}], "cannot be amended"),
        ([{"from_step": 5}], "rope_theta"),
    ],
)
def test_what_has_no_order_or_is_an_afterthought_is_refused(changes: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training.model_validate({"changes": changes})


def test_a_change_after_the_last_step_is_named() -> None:
    recipe = load(Path(__file__).parents[4] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml")
    for step, found in ((20, 0), (21, 1)):
        changed = {"rotary_schedule": (RotaryChange(from_step=step, rope_theta=2e4),)}
        given = recipe.model_copy(update={"training": recipe.training.model_copy(update=changed)})
        assert len(list(_misplaced(given, given.required_mixture(), 160))) == found


def test_every_checkpoint_says_what_its_step_used(make: Callable[..., RunConfig]) -> None:
    plain, config = make(), make(rotary_schedule=LATER)
    assert [config.model_at(step).rope_theta for step in (0, 2, 3, 12)] == [1e4, 1e4, 5e5, 5e5]
    said = [json.loads(_described(config, "fp32", step)[f"model/{CONFIG}"])["rope_theta"] for step in (2, 3)]
    assert said == [1e4, 5e5]
    assert identity(config, 2) != identity(plain, 2)  # another run from the beginning
    assert "rotary_schedule" not in plain.model_dump(mode="json")


@pytest.mark.slow
def test_a_run_goes_on_bit_for_bit_over_the_change(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Left before the change and taken up, it is the run that was never left; before it, it is the run without one."""
    fields = {"launch": Launch(ranks=1), "parallel": Parallel(), "batches": "changed_layout:open_batches"}
    plain, changed = make(**fields), make(rotary_schedule=LATER, **fields)
    legs: list[Any] = [(plain, None, 1, 4, tmp_path / "plain"), (changed, None, 1, 4, tmp_path / "whole")]
    legs += [(changed, None, 1, 2, tmp_path / "left"), (changed, tmp_path / "left", 3, 4, tmp_path / "resumed")]
    (found,) = run_ranks(1, changed_layout.journey, legs, timeout_s=300)
    without, whole, _, resumed = found
    assert resumed["loss"] == whole["loss"][2:]
    assert resumed["after"] == whole["after"]
    assert whole["loss"][:2] == without["loss"][:2]
    assert whole["loss"][2] != without["loss"][2]
    model = build(changed.model_at(3), changed.vocab_size, 1)
    state = changed_layout.whole_state(tmp_path / "left")
    model.load_state_dict({name: state[name, "master"] for name, _ in model.named_parameters()}, strict=False)
    batch = changed_layout.batch_at(changed, 3, 0).expanded()
    tokens, segments = (torch.from_numpy(one.reshape(-1, one.shape[-1])) for one in (batch.tokens, batch.segments))
    with torch.no_grad():
        loss = model(tokens[:, :-1].long(), segments[:, :-1], tokens[:, 1:].long())
    assert float(loss) == pytest.approx(whole["loss"][2], abs=2e-6)
