"""The tiny run on a GPU: compared with the CPU, without a wait, compiled once, proved exact, rolled back, and killed.

    pytest -m gpu tests/plinth/training/test_on_device.py

The ranks of the reference see no GPU. Communication between GPUs cannot be tested on one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.model.parameters import Model
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import BatchScreening, GuardParameters, LossSpike
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline
from tests.plinth.training.conftest import tiny
from tests.plinth.training.forensics.test_audit import NOISE, train_then_audit
from tests.plinth.training.test_resume import same_end
from tests.ranks import run_ranks

pytestmark = pytest.mark.gpu

#: Sixteen layers: more than a compiler keeps variants of one function.
DEEP = Model(layers=16, dim=128, heads=4, kv_heads=2, ffn_dim=256)

STEPS = 12


def configured(root: Path, **changes: Any) -> RunConfig:
    fields = {"launch": Launch(ranks=1), "model": DEEP, "sequence_tokens": 256, "total_steps": STEPS}
    return tiny(root, **{**fields, **changes})


def losses(config: RunConfig, device: str, strict_from: int) -> tuple[list[float], int]:
    """Losses of every step, and how often the compiler ran after the third; from a step on, a wait is an error."""
    import os

    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    from torch._dynamo.utils import counters

    from plinth.training.engine import engine
    from plinth.training.trainer import Trainer

    rank = engine.join(config)
    trainer = Trainer(config, rank)
    trainer.begin()
    stream, found, warm = trainer.batches(1), [], 0
    for step in range(1, config.total_steps + 1):
        if strict_from <= step:
            torch.cuda.set_sync_debug_mode("error")
        launched = trainer.launch(stream, step)
        if strict_from <= step:
            torch.cuda.set_sync_debug_mode("default")
        measured = launched.read()
        trainer.record(measured)
        found.append(measured.loss)
        if step == 3:
            warm = counters["stats"]["unique_graphs"]
    compiled = counters["stats"]["unique_graphs"] - warm
    engine.leave()
    return found, compiled


@pytest.mark.parametrize(("precision", "close"), [("fp32", 1e-4), ("bf16", 3e-2)])
def test_losses_are_those_of_the_cpu(precision: str, close: float, tmp_path: Path) -> None:
    """With documents, so through FlexAttention's block masks on the device and a dense mask on the CPU."""
    [(there, _)] = run_ranks(1, losses, configured(tmp_path / "gpu", precision=precision), "cuda", STEPS + 1)
    [(here, _)] = run_ranks(1, losses, configured(tmp_path / "cpu", precision="fp32"), "cpu", STEPS + 1)
    assert there == pytest.approx(here, rel=close)


@pytest.mark.parametrize("path", ["flex", "sdpa"])
def test_paths_of_attention_agree_in_losses_and_so_in_gradients(path: Any, tmp_path: Path) -> None:
    chosen = configured(tmp_path / path, precision="fp32", parallel=Parallel(zero_stage=1, attention=path))
    [(found, _)] = run_ranks(1, losses, chosen, "cuda", STEPS + 1)
    [(auto, _)] = run_ranks(1, losses, configured(tmp_path / "auto", precision="fp32"), "cuda", STEPS + 1)
    assert found == pytest.approx(auto, rel=1e-4)


@pytest.mark.parametrize("kind", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_fp8_products_learn_what_bf16_does_without_a_wait(kind: Any, tmp_path: Path) -> None:
    block = Parallel(zero_stage=1, compile=True)
    eighths = configured(tmp_path / kind, precision="bf16", parallel=block, float8=kind)
    [(found, again)] = run_ranks(1, losses, eighths, "cuda", 6)
    [(plain, _)] = run_ranks(1, losses, configured(tmp_path / "bf16", precision="bf16", parallel=block), "cuda", 6)
    assert found != plain
    assert found == pytest.approx(plain, rel=3e-2)
    assert again == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_no_step_waits_and_nothing_is_compiled_again(compiled: bool, tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        precision="bf16",
        parallel=Parallel(zero_stage=1, compile=compiled),
        guard=GuardParameters(screening=BatchScreening(entropy=0.5)),  # judged on the device
    )
    [(found, again)] = run_ranks(1, losses, config, "cuda", 6)
    assert len(found) == STEPS
    assert again == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replay_across_a_rollback_is_bit_exact(
    precision: str, make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Strict determinism, documents, the guard's rollback: the run of the audit's own test, on one device."""
    config = make(
        workspace=tmp_path,
        total_steps=20,
        precision=precision,
        launch=Launch(ranks=1),
        sequences=8 * 20,
        checkpoints=Checkpoints(every_steps=4, keep_last=5, audit_steps=4),
        optimizer=Optimizer(lr=1e-2),
        guard=GuardParameters(min_steps=6, window_steps=12, loss_spike=LossSpike(sigmas=1.0, min_rise=0.05)),
    )
    run_ranks(1, train_then_audit, config, 8)
    assert set(NOISE) & set(timeline(config.directory.events).skipped)
    assert json.loads(config.directory.evidence.read_bytes())["bit_exact"] is True


def test_a_rank_killed_on_the_device_ends_as_if_it_had_not_been(
    make: Callable[..., RunConfig], job: Callable[..., int], tmp_path: Path
) -> None:
    """Saves go through page-locked memory during training; the job restarts from the last and proves its resume."""
    fields: dict[str, Any] = {"launch": Launch(ranks=1), "precision": "bf16"}
    undisturbed = make(workspace=tmp_path / "undisturbed", **fields)
    assert job(undisturbed) == 0
    struck = make(workspace=tmp_path / "struck", batches="faulty_ranks:open_batches", **fields)
    (tmp_path / "marks").mkdir()
    assert job(struck, FAULTS=json.dumps({"marks": str(tmp_path / "marks"), "faults": [["kill", 5, 0]]})) == 0
    story = same_end(struck, undisturbed)
    assert [event["step"] for event in story.of("resumed")] == [3]
    assert json.loads(struck.directory.evidence.read_bytes())["bit_exact"] is True
