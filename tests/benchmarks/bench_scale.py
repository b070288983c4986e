"""Does `plinth corpus scale` predict a run? Two small runs give the rates, and a larger one is compared with them.

The text is that of `perturbed_corpus`. Every stage up to curated text runs by `plinth run`, lines, passages and
look-alikes included. CPU seconds are those of tasks; wall-clock time means nothing on a machine with other work.

    python tests/benchmarks/bench_scale.py [--megabytes 30 75 300] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import perturbed_corpus

RESULTS = Path(__file__).parent / "results" / "scale.json"
FILE_BYTES, PART_BYTES = 8e6, 8 * 2**20
#: Stages of deduplication, in addition to those of every recipe.
DEDUP: dict[str, Any] = {"semantic": {"buckets": ["web"]}, "lines": {}, "substring": {}}


def plinth(*arguments: object) -> str:
    """Run a command of `plinth` and return its output."""
    command = [sys.executable, "-m", "plinth_jobs.cli", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs=3, default=[30, 75, 300])
    parser.add_argument("--keep", type=Path, help="Leave the workspaces here.")
    given = parser.parse_args()
    texts = perturbed_corpus.texts()
    with tempfile.TemporaryDirectory() as made:
        root = given.keep or Path(made)
        recipe = root / "recipe.yaml"
        perturbed_corpus.recipe(recipe, "scale", PART_BYTES, dedup=DEDUP)
        spaces = [root / f"{megabytes:g}" for megabytes in given.megabytes]
        for seed, (space, megabytes) in enumerate(zip(spaces, given.megabytes, strict=True)):
            perturbed_corpus.write(space / "input" / "corpus", texts, megabytes, seed, FILE_BYTES)
            plinth("run", "-r", recipe, "-w", space, "--select", "funnel")
        check = ["corpus", "scale", "--check", spaces[2], "--rates", spaces[0], "--rates", spaces[1]]
        print(plinth(*check))
        found: dict[str, Any] = json.loads(plinth(*check, "--json"))
    found["machine"] = {"cores": os.cpu_count(), "processor": platform.machine()}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
