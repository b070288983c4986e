"""OLMo-core's trainer as released trains a run, if it is installed: `pip install ai2-olmo-core`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from plinth.model.folder import load_model
from plinth.model.parameters import Model
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.forensics.order_proof import order_proof
from plinth.training.telemetry.timeline import timeline

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(find_spec("olmo_core") is None, reason="ai2-olmo-core is not installed"),
]

COMMAND = (sys.executable, str(Path(__file__).with_name("olmo_core_trainer.py")))
STEPS = 12
#: Steps that are taken again after a kill; `renamed` is between the files of a commit and its record.
INSTANTS = {"step": 2, "save": 4, "renamed": 4}
#: OLMo-core has no attention within documents on a CPU.
OLMO2 = Model(
    architecture="olmo2", layers=1, dim=32, heads=2, kv_heads=2, ffn_dim=48, qk_norm=True, tied_embeddings=False,
    document_mask=False,
)  # fmt: skip


@pytest.mark.parametrize("at", INSTANTS)
def test_a_killed_trainer_repeats_its_steps_exactly(
    prepared: Callable[..., RunConfig], submitted: Callable[..., Any], at: str
) -> None:
    config = prepared(COMMAND, model=OLMO2)
    result = submitted(config, at=at, step=7 if at == "step" else 8)
    assert (result.status, result.restarts) == ("finished", 1)
    story = timeline(config.directory.events)
    assert (story.redone, story.diverged) == (INSTANTS[at], [])
    assert list(story.steps) == list(range(1, STEPS + 1))
    assert story.steps[STEPS]["loss"] < story.steps[1]["loss"]
    folder = checkpoint.verify(config.directory, STEPS)
    load_model(folder / "model")
    proved = order_proof(json.loads(config.directory.evidence.read_bytes()))
    assert proved.holds(), proved.in_words
    assert (folder / "trainer" / "model_and_optim" / ".metadata").exists()  # torch's distributed checkpoint
    assert checkpoint.read_state(config.directory, STEPS)["trainer"]["packages"]["ai2-olmo-core"]


def test_documents_are_given_as_lengths() -> None:
    from plinth.sdk.callbacks.olmo_core import document_lengths

    made = document_lengths(torch.tensor([[0, 1, 2, 0], [0, 1, 0, 0]]))
    assert made["doc_lens"].tolist() == [[3, 1, 0], [2, 1, 1]]
    assert made["max_doc_lens"] == [3, 2]
