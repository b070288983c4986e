"""`transformers.Trainer` as released trains a run: its steps, checkpoints and resume are those of the recipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import RecipeError, TrainingError
from plinth.model.folder import load_model
from plinth.sdk import Run
from plinth.tokens.order.steps import BatchChange
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.forensics.order_proof import order_proof
from plinth.training.telemetry.timeline import timeline
from tests.peers import Peer

hugging_face = Peer("plinth.sdk.callbacks.hugging_face")  # imports transformers
COMMAND = (sys.executable, str(Path(__file__).with_name("transformers_trainer.py")))
STEPS = 12
#: Steps that are taken again after a kill; `renamed` is between the files of a commit and its record.
INSTANTS = {"step": 2, "save": 4, "renamed": 4, "recorded": 0}

Prepared = Callable[..., RunConfig]


@pytest.mark.exhaustive
@pytest.mark.parametrize("at", INSTANTS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_trainer_repeats_its_steps_exactly(
    prepared: Prepared, submitted: Callable[..., Any], at: str, ranks: int
) -> None:
    config = prepared(COMMAND, ranks=ranks)
    result = submitted(config, at=at, step=7 if at == "step" else 8)
    assert (result.status, result.restarts) == ("finished", 1)
    story = timeline(config.directory.events)
    assert (story.redone, story.diverged) == (INSTANTS[at], [])
    assert list(story.steps) == list(range(1, STEPS + 1))
    assert story.steps[STEPS]["loss"] < story.steps[1]["loss"]
    assert all(event["grad_norm"] > 0 and event["lr"] >= 0 for event in story.steps.values())
    folder = checkpoint.verify(config.directory, STEPS)
    load_model(folder / "model")
    assert json.loads((folder / "trainer" / "trainer_state.json").read_text())["global_step"] == STEPS
    state = checkpoint.read_state(config.directory, STEPS)
    assert state["trainer"]["packages"].keys() == {"torch", "plinth", "transformers", "accelerate"}
    assert state["monitor"]["loss_ema"] == story.steps[STEPS]["loss_ema"]
    proved = order_proof(json.loads(config.directory.evidence.read_bytes()), state["parameters_sha256"])
    assert proved.holds(), proved.in_words


def test_a_batch_that_changes_is_refused(prepared: Prepared) -> None:
    config = prepared(COMMAND, batch_schedule=(BatchChange(from_step=5, global_batch_sequences=8),))
    run = Run(configuration.write(config), {})
    with pytest.raises(RecipeError, match="same number of micro batches"):
        hugging_face.arguments(run)


@pytest.mark.parametrize(
    "other",
    [
        {"train_sampling_strategy": "random"},
        {"ignore_data_skip": True},
        {"accelerator_config": {"split_batches": True}},
    ],
    ids=lambda one: next(iter(one)),
)
def test_settings_that_change_the_order_are_refused(prepared: Prepared, other: dict[str, Any]) -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    run = Run(configuration.write(prepared(COMMAND)), {})
    callback = hugging_face.TransformersCallback(run)

    def begin(**more: Any) -> None:
        args = TrainingArguments(**{**hugging_face.arguments(run), **more}, use_cpu=True)
        callback.on_train_begin(args, TrainerState(), TrainerControl())

    begin()
    with pytest.raises(TrainingError, match="in the run's order"):
        begin(**other)
