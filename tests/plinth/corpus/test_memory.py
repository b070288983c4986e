"""Peak memory of the corpus stages, and of all annotators in one reading, does not grow with the corpus.

Documents for the annotators are all of one size: scratch memory of kernels grows with the longest document, and a
larger corpus of real ones has longer ones.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_corpus.py"


def measured(workspace: Path, option: str, megabytes: int) -> dict[str, Any]:
    for phase in ("build", "measure"):
        command = [sys.executable, str(BENCHMARK), option, "--phase", phase]
        command += ["--workspace", str(workspace), "--megabytes", str(megabytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("option", ["--synthetic", "--no-annotators"])
def test_ten_times_the_corpus_takes_no_more_memory(tmp_path: Path, option: str) -> None:
    small, large = (measured(tmp_path / str(size), option, size) for size in (8, 80))
    assert large["megabytes"] > 9.9 * small["megabytes"]
    if option == "--no-annotators":
        assert sum(large["reasons"].values()) > 9 * sum(small["reasons"].values())
    assert large["peak_mb"] < 1.15 * small["peak_mb"]
