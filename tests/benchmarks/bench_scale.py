"""Does `plinth scale` predict a run? Two small runs give the rates, and a larger one is compared with them.

The text is real (sources and documentation of this machine), with one word in eight of every line replaced by another,
so that no stage of deduplication merges copies and each has its full work. Every stage up to curated text runs by
`plinth run`, lines, passages and look-alikes included, under the policy for code, which keeps most. CPU seconds are
those that tasks took; the wall clock of a machine with other work says nothing.

    python tests/benchmarks/bench_scale.py [--megabytes 30 75 300] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_minhash import real_documents

RESULTS = Path(__file__).parent / "results" / "scale.json"
FILE_BYTES = 8e6
RECIPE = """\
extends: base.yaml
name: scale
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
          domain: scale.example
          snapshot: 2026-46
  dedup:
    semantic: {buckets: [web]}
    lines: {}
    substring: {}
  documents: {part_bytes: 8388608}
"""


def write(folder: Path, texts: list[str], megabytes: float, seed: int) -> None:
    """So much perturbed text as files of JSON lines."""
    rng, written, number = random.Random(seed), 0, 0
    words = [word for text in texts[::5] for word in text.split() if word.isalpha()]
    folder.mkdir(parents=True)
    while written < megabytes * 1e6:
        with (folder / f"{number:04d}.jsonl").open("w", encoding="utf-8") as out:
            while out.tell() < FILE_BYTES and written < megabytes * 1e6:
                text = "\n".join(_changed(line, words, rng) for line in rng.choice(texts)[:40_000].split("\n"))
                out.write(
                    json.dumps({"text": text, "url": f"https://scale.example/{seed}/{rng.getrandbits(60)}"}) + "\n"
                )
                written += len(text.encode())
        number += 1


def _changed(line: str, words: list[str], rng: random.Random) -> str:
    pieces = line.split(" ")
    for _ in range(max(1, len(pieces) // 8) if line.strip() else 0):
        pieces[rng.randrange(len(pieces))] = rng.choice(words)
    return " ".join(pieces)


def plinth(*arguments: object) -> str:
    """What a command of `plinth` prints."""
    command = [sys.executable, "-m", "jobs.cli", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs=3, default=[30, 75, 300])
    parser.add_argument("--keep", type=Path, help="Leave the workspaces here.")
    given = parser.parse_args()
    texts = [text for text in real_documents(80) if len(text) > 800]
    with tempfile.TemporaryDirectory() as made:
        root = given.keep or Path(made)
        recipe = root / "recipe.yaml"
        root.mkdir(parents=True, exist_ok=True)
        recipe.write_text(RECIPE)
        spaces = [root / f"{megabytes:g}" for megabytes in given.megabytes]
        for seed, (space, megabytes) in enumerate(zip(spaces, given.megabytes, strict=True)):
            write(space / "input" / "corpus", texts, megabytes, seed)
            plinth("run", "-r", recipe, "-w", space, "--select", "funnel")
        check = ["scale", "--check", spaces[2], "--rates", spaces[0], "--rates", spaces[1]]
        print(plinth(*check))
        found: dict[str, Any] = json.loads(plinth(*check, "--json"))
    found["machine"] = {"cores": os.cpu_count(), "processor": platform.machine()}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
