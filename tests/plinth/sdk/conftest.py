"""A prepared run of 12 steps whose recipe names a team's own trainer, and ways to run its job."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.training import job, preparation
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints, Training
from plinth.training.parameters.trainer import ExternalTrainer

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
sys.path.insert(0, str(HERE.parent / "training"))

from tiny_mixture import made_mixture  # noqa: E402

PLAIN = (sys.executable, str(HERE / "plain_trainer.py"))
STEPS = 12

Data = tuple[Manifest, dict[str, Manifest], Manifest]


def training(command: tuple[str, ...] = PLAIN, ranks: int = 1, **more: Any) -> Training:
    fields: dict[str, Any] = {
        "model": Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=48),
        "micro_batch_sequences": 2,
        "global_batch_sequences": 4,
        "checkpoints": Checkpoints(every_steps=4),
        "supervision": Supervision(
            backoff_s=0.1, grace_s=300.0, hang_s=1800.0, host_checks=HostChecks(disk_bytes=4096)
        ),
        "launch": Launch(ranks=ranks),
        "trainer": ExternalTrainer(command=command),
    }
    return Training(**{**fields, **more})


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def data(ctx: Context) -> Data:
    return made_mixture(ctx, STEPS)


@pytest.fixture
def prepared(ctx: Context, data: Data) -> Callable[..., RunConfig]:
    """Configurations of the run; the arguments are those of `training`."""
    return lambda *given, **more: preparation.prepare(ctx, "team", training(*given, **more), *data)


@pytest.fixture
def submitted(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Submit a run and follow its job to the end, with planned faults."""

    def follow(config: RunConfig, **fault: Any) -> Any:
        known = (str(ROOT / "platform"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys(known)))
        monkeypatch.setenv("FAULTS", json.dumps([fault] if fault else []))
        job.submit_or_find(ctx, config)
        try:
            return job.follow(ctx, config)
        finally:
            job.cancel(ctx, config)

    return follow
