"""A tiny run, and ways to train it: ranks alone, a supervisor, a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.model.parameters import Model
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from tests.shared import once

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # rank processes and tests import `synthetic` by name

TINY = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64)


def tiny(workspace: Path, **changes: Any) -> RunConfig:
    """A run of 12 steps that commits every 3 and at step 8 for the audit."""
    fields: dict[str, Any] = {
        "run_id": "tiny-000000000000",
        "key": "0" * 64,
        "recipe": "tiny",
        "workspace": str(workspace),
        "model": TINY,
        "vocab_size": 64,
        "end_of_text": 0,
        "optimizer": Optimizer(warmup_fraction=0.2),
        "precision": "fp32",
        "parallel": Parallel(zero_stage=1),
        "seed": 1,
        "launch": Launch(ranks=2),
        "sequence_tokens": 32,
        "micro_batch_sequences": 2,
        "global_batch_sequences": 8,
        "total_steps": 12,
        "mixture": "m" * 64,
        "shards": {"web": "s" * 64},
        "tokenizer": "t" * 64,
        "checkpoints": Checkpoints(every_steps=3, audit_steps=4),
        "supervision": Supervision(backoff_s=0.1, hang_s=1800.0, host_checks=HostChecks(disk_bytes=4096)),
        "batches": "synthetic:open_batches",
    }
    return RunConfig(**{**fields, **changes})


def environment(**extra: str) -> dict[str, str]:
    """The environment of a job in tests: the library and this folder are importable."""
    root = Path(configuration.__file__).parents[2]
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{HERE}", **extra}


def run_job(config: RunConfig, **extra: str) -> int:
    """Supervise the run to its end in another process; returns the supervisor's exit status."""
    command = [sys.executable, "-m", "plinth.training.supervise.supervisor", str(configuration.write(config))]
    return subprocess.run(command, env=environment(**extra), timeout=1800, check=False).returncode


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run that nothing disturbed, with its evidence; only to be read, or copied."""

    def run(workspace: Path) -> None:
        assert run_job(tiny(workspace)) == 0

    return tiny(once(tmp_path_factory, "uninterrupted", run))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., RunConfig]:
    """Configurations of a tiny run in this test's own workspace."""

    def configured(**changes: Any) -> RunConfig:
        return tiny(Path(changes.pop("workspace", tmp_path)), **changes)

    return configured


@pytest.fixture
def job() -> Callable[..., int]:
    return run_job


@pytest.fixture
def job_environment() -> Callable[..., dict[str, str]]:
    return environment
