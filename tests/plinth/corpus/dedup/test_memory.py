"""Peak memory of the corpus stages does not grow with the corpus."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "bench_corpus.py"


def measured(workspace: Path, megabytes: int) -> dict[str, Any]:
    for phase in ("build", "measure"):
        command = [sys.executable, str(BENCHMARK), "--no-annotators", "--phase", phase]
        command += ["--workspace", str(workspace), "--megabytes", str(megabytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ten_times_the_corpus_takes_no_more_memory(tmp_path: Path) -> None:
    small, large = measured(tmp_path / "small", 8), measured(tmp_path / "large", 80)
    assert large["megabytes"] > 9.9 * small["megabytes"]
    assert sum(large["reasons"].values()) > 9 * sum(small["reasons"].values())
    assert large["peak_mb"] < 1.15 * small["peak_mb"]
