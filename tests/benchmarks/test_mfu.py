"""The path of the utilization benchmark, at a tiny size on the CPU: its arithmetic, and that it records nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive

HERE = Path(__file__).parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "bench_mfu.py"), *words]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=hidden, capture_output=True, text=True, timeout=300, check=False)


def recorded() -> Any:
    path = HERE / "results" / "mfu.json"
    return path.read_bytes() if path.exists() else None


def test_a_tiny_run_goes_through_trainer_and_is_recorded_nowhere() -> None:
    before = recorded()
    done = run("--tiny", "--steps", "4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mfu"] == pytest.approx(found["tokens_per_s"] * found["flops_per_token"] / found["peak_flops"])
    assert 0 < found["mfu_causal"] < found["mfu"]
    assert (found["steps"], found["guard"], found["document_mask"]) == (4, True, True)
    assert found["steps_without_a_wait"] == 0  # a CPU has nothing to wait for
    assert found["versions"]["torch"]
    assert recorded() == before


def test_without_a_gpu_there_is_nothing_to_measure() -> None:
    done = run()
    assert done.returncode != 0
    assert "no GPU here" in done.stderr
