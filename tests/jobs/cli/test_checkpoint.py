"""`plinth run checkpoint`: what is committed is listed with its layout; a changed byte is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth_jobs.cli.steps import in_words

Plinth = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> configuration.RunConfig:
    """Two committed checkpoints, of two layouts."""
    Workspace(tmp_path / "workspace").ensure()
    config = configuration.RunConfig(
        run_id="demo-0123456789ab",
        key="0" * 64,
        recipe="demo",
        workspace=str(tmp_path / "workspace"),
        model=Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64),
        vocab_size=64,
        end_of_text=0,
        optimizer=Optimizer(),
        precision="fp32",
        parallel=Parallel(),
        seed=1,
        launch=Launch(ranks=1),
        sequence_tokens=32,
        micro_batch_sequences=2,
        global_batch_sequences=8,
        total_steps=12,
        mixture="m" * 64,
        shards={"web": "s" * 64},
        tokenizer="t" * 64,
        checkpoints=Checkpoints(),
        supervision=Supervision(),
    )
    configuration.write(config)
    for step, ranks, pipeline in ((3, 4, 2), (6, 1, 1)):
        folder = checkpoint.stage(config.directory, step)
        layout = {"ranks": ranks, "zero_stage": 1, "tensor": 1, "pipeline": pipeline, "sequence": 1}
        state = {"step": step, "tokens": step * 256, "layout": layout, "precision": "fp32", "parameters_sha256": "ab"}
        (folder / "state.json").write_text(json.dumps(state))
        (folder / "engine").mkdir()
        (folder / "engine" / "rank-00000.safetensors").write_bytes(bytes(100))
        checkpoint.commit(config.directory, step)
    return config


def test_list_tells_steps_and_layouts(plinth: Plinth, run: configuration.RunConfig) -> None:
    shown = plinth("run", "checkpoint", "list", "latest", "-w", run.workspace)
    assert shown.code == 0
    assert "4 ranks, ZeRO 1, pipeline 2" in shown.out
    assert "1 rank, ZeRO 1" in shown.out
    rows = json.loads(plinth("run", "checkpoint", "list", "demo", "-w", run.workspace, "--json").out)
    assert [(row["step"], row["tokens"], row["layout"]["ranks"], row["uploaded"]) for row in rows] == [
        (3, 768, 4, False),
        (6, 1536, 1, False),
    ]
    assert all(row["bytes"] > 100 for row in rows)


def test_verify_names_the_changed_file(plinth: Plinth, run: configuration.RunConfig) -> None:
    assert plinth("run", "checkpoint", "verify", "latest", "-w", run.workspace).code == 0
    (checkpoint.path(run.directory, 3) / "engine" / "rank-00000.safetensors").write_bytes(bytes(99) + b"x")
    told = plinth("run", "checkpoint", "verify", "latest", "-w", run.workspace)
    assert told.code == 1
    assert "step 3: corrupt" in told.out
    assert "engine/rank-00000.safetensors has changed" in told.out
    assert "step 6: intact" in told.out
    one = plinth("run", "checkpoint", "verify", "latest", "6", "-w", run.workspace, "--json")
    assert (one.code, json.loads(one.out)) == (0, [{"step": 6, "intact": True, "reason": ""}])
    missing = plinth("run", "checkpoint", "verify", "latest", "5", "-w", run.workspace)
    assert missing.code == 1
    assert "step 5: corrupt" in missing.out


def test_layout_in_words() -> None:
    layout = {"ranks": 8, "zero_stage": 0, "tensor": 2, "pipeline": 1, "sequence": 4}
    assert in_words(layout) == "8 ranks, ZeRO 0, tensor 2, sequence 4"
