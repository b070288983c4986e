"""The same text, ten times as much: memory, CPU time per GB and operations of the store per part.

The text is real (sources and documentation of this machine) with every seventh word replaced by another, so that no
stage of deduplication merges copies and each has its full work. Every stage of the base recipe up to the ledger runs by
`plinth run` with two workers, under the policy for code, which keeps most. CPU time is taken as it grows: what the two
runs differ by, divided by the text that they differ by, beside the smaller run's own without its start.

    python tests/benchmarks/bench_growth.py [--megabytes 100 400 4000]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench_minhash import real_documents
from process_tree import timed

RESULTS = Path(__file__).parent / "results" / "growth.json"
FILE_BYTES = 32e6
EVERY = 7
RECIPE = """\
extends: base.yaml
name: growth
corpus:
  buckets:
    web:
      description: Real text, words of it exchanged.
      owner: tests@example.org
      policy: code
      sources:
        - kind: jsonl
          path: corpus
          licence: CC0-1.0
          terms: {train: true, redistribute: true, commercial: true}
          domain: growth.example
          snapshot: 2026-46
  documents: {part_bytes: 33554432}
"""


def write(folder: Path, texts: list[str], megabytes: float, seed: int) -> int:
    """So much perturbed text as files of JSON lines; returns its bytes."""
    rng, written, number = random.Random(seed), 0, 0
    vocabulary = [word for text in texts[::5] for word in text.split() if word.isalpha()]
    folder.mkdir(parents=True)
    while written < megabytes * 1e6:
        with (folder / f"{number:04d}.jsonl").open("w", encoding="utf-8") as out:
            while out.tell() < FILE_BYTES and written < megabytes * 1e6:
                words = rng.choice(texts)[:40_000].split(" ")
                start = rng.randrange(EVERY)
                words[start::EVERY] = rng.choices(vocabulary, k=len(words[start::EVERY]))
                text = " ".join(words)
                uri = f"https://growth.example/{seed}/{rng.getrandbits(60)}"
                out.write(json.dumps({"text": text, "url": uri}, ensure_ascii=False) + "\n")
                written += len(text.encode())
        number += 1
    return written


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
    texts = [text for text in real_documents(80) if len(text) > 800]
    rows: list[dict[str, Any]] = []
    for seed, megabytes in enumerate(given.megabytes):
        with tempfile.TemporaryDirectory() as made:
            space, recipe = Path(made) / "workspace", Path(made) / "recipe.yaml"
            recipe.write_text(RECIPE)
            size = write(space / "input" / "corpus", texts, megabytes, seed)
            command = [sys.executable, "-m", "jobs.cli", "run", "-w", str(space), "-r", str(recipe), "--workers", "2"]
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
