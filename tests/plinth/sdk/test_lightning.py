"""Lightning's trainer as released trains a run, if it is installed: `pip install lightning`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from plinth.model.folder import load_model
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.forensics.order_proof import order_proof
from plinth.training.telemetry.timeline import timeline

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed"),
]

COMMAND = (sys.executable, str(Path(__file__).with_name("lightning_trainer.py")))
STEPS = 12


@pytest.mark.parametrize(("at", "redone"), [("step", 2), ("save", 4), ("renamed", 4)])
def test_a_killed_trainer_repeats_its_steps_exactly(
    prepared: Callable[..., RunConfig], submitted: Callable[..., Any], at: str, redone: int
) -> None:
    config = prepared(COMMAND)
    result = submitted(config, at=at, step=7 if at == "step" else 8)
    assert (result.status, result.restarts) == ("finished", 1)
    story = timeline(config.directory.events)
    assert (story.redone, story.diverged) == (redone, [])
    assert list(story.steps) == list(range(1, STEPS + 1))
    assert story.steps[STEPS]["loss"] < story.steps[1]["loss"]
    load_model(checkpoint.verify(config.directory, STEPS) / "model")
    proved = order_proof(json.loads(config.directory.evidence.read_bytes()))
    assert proved.holds(), proved.in_words
