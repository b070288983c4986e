"""Whole jobs with a mixture of experts: killed, resumed and audited like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.model.folder import load_model
from plinth.model.parameters import Model
from plinth.model.sparsity import Experts
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from tests.plinth.training.test_resume import same_end

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

EXPERTS = Experts(count=4, active=2, ffn_dim=16, shared=1, score="sigmoid", balancing="loss_free", bias_rate=0.01)
MODEL = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64, experts=EXPERTS)


@pytest.mark.parametrize("expert", [1, 2])
def test_killed_and_resumed_bit_for_bit(
    make: Callable[..., RunConfig], job: Callable[..., int], tmp_path: Path, expert: int
) -> None:
    parallel = Parallel(zero_stage=1, expert=expert)
    changes = {"model": MODEL, "parallel": parallel, "checkpoints": Checkpoints(every_steps=3, audit_steps=4)}
    reference = make(workspace=tmp_path / "reference", **changes)
    assert job(reference) == 0
    config = make(
        workspace=tmp_path / "killed",
        batches="faulty_ranks:open_batches",
        supervision={"max_restarts": 2, "backoff_s": 0.1, "hang_s": 1800.0},
        **changes,
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    assert job(config, FAULTS=json.dumps({"marks": str(marks), "faults": [["kill", 5, 1]]})) == 0
    story = same_end(config, reference)
    assert [event["step"] for event in story.of("resumed")] == [3]
    assert story.steps[10]["experts"]["by_layer"]["layers"] == [0, 1]
    assert "experts" not in story.steps[11]
    evidence = json.loads(config.directory.evidence.read_bytes())
    assert evidence["bit_exact"] is True
    model = load_model(checkpoint.path(config.directory, config.total_steps) / "model")
    biases = [block.mlp.gate.e_score_correction_bias for block in model.blocks]
    assert all(bias.any() for bias in biases)
    assert all(bias.abs().max() <= 0.01 * config.total_steps + 1e-6 for bias in biases)
