"""A disk that fills in the middle of a checkpoint: a named failure, and the last committed one is intact."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints
from plinth.training.supervise.result import JobResult
from tests import services

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for two checkpoints and a half."""
    with services.small_disk(tmp_path / "disk", "1150k") as folder:
        yield folder


@pytest.mark.exhaustive
def test_full_disk(small_disk: Path, make: Callable[..., RunConfig], job: Callable[..., int]) -> None:
    config = make(workspace=small_disk, checkpoints=Checkpoints(every_steps=3, audit_steps=1, keep_last=9))
    assert job(config) == 7
    result = JobResult.model_validate_json(config.directory.result.read_bytes())
    assert (result.status, result.restarts, result.step) == ("failed", 0, 6)
    assert result.failure is not None
    assert result.failure.kind == "DiskFullError"
    assert checkpoint.newest_valid(config.directory) == (6, [])

    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    assert job(config) == 0
    assert json.loads(config.directory.evidence.read_bytes())["bit_exact"] is True
