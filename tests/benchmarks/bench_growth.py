"""The same text, ten times as much: memory, CPU time per GB and operations of the store per part.

The text is that of `perturbed_corpus`. Every stage of the base recipe up to the ledger runs by `plinth run` with two
workers. CPU time is taken as it grows: what the two runs differ by, divided by the text that they differ by, beside the
smaller run's own without its start.

    python tests/benchmarks/bench_growth.py [--megabytes 100 400 4000]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import perturbed_corpus
from process_tree import timed

RESULTS = Path(__file__).parent / "results" / "growth.json"
FILE_BYTES, PART_BYTES = 32e6, 32 * 2**20


def operations(workspace: Path) -> dict[str, float]:
    """Files of the store that the tasks of a run opened and wrote."""
    counts = {"opened": 0.0, "written": 0.0}
    for path in (workspace / "costs").rglob("*.json"):
        for step in json.loads(path.read_text())["steps"].values():
            for name in counts:
                counts[name] += step[name]
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[100, 400, 4000])
    given = parser.parse_args()
    texts = perturbed_corpus.texts()
    rows: list[dict[str, Any]] = []
    for seed, megabytes in enumerate(given.megabytes):
        with tempfile.TemporaryDirectory() as made:
            space, recipe = Path(made) / "workspace", Path(made) / "recipe.yaml"
            perturbed_corpus.recipe(recipe, "growth", PART_BYTES)
            size = perturbed_corpus.write(space / "input" / "corpus", texts, megabytes, seed, FILE_BYTES)
            command = [
                sys.executable,
                "-m",
                "plinth_jobs.cli",
                "run",
                "-w",
                str(space),
                "-r",
                str(recipe),
                "--workers",
                "2",
            ]
            row: dict[str, Any] = {"text_mb": size / 1e6, **timed(command, Path(made) / "log"), **operations(space)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    for small, large in pairwise(rows):
        more = (large["cpu_s"] - small["cpu_s"]) / (large["text_mb"] - small["text_mb"]) * 1000
        print(
            f"{small['text_mb']:.0f} -> {large['text_mb']:.0f} MB: memory {large['peak_mb'] / small['peak_mb']:.2f}, "
            f"{more:.1f} CPU seconds per GB more, opens per MB "
            f"{large['opened'] / large['text_mb'] / (small['opened'] / small['text_mb']):.2f}"
        )
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
