"""Real text of this machine with one word in eight of every line replaced by another, and a recipe for it.

No stage of deduplication merges copies, so each has its full work however often a text was drawn. The policy is the
one for code, which keeps most.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from bench_minhash import real_documents

EVERY = 8
SOURCE = {
    "kind": "jsonl",
    "path": "corpus",
    "licence": "CC0-1.0",
    "terms": {"train": True, "redistribute": True, "commercial": True},
    "domain": "bench.example",
    "snapshot": "2026-46",
}


def recipe(path: Path, name: str, part_bytes: int, **corpus: Any) -> None:
    """Write a recipe over `input/corpus`; `corpus` adds to its section."""
    bucket = {"description": "Real text, words of it exchanged.", "owner": "tests@example.org", "policy": "code"}
    section = {"buckets": {"web": bucket | {"sources": [SOURCE]}}, "documents": {"part_bytes": part_bytes}, **corpus}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"extends": "base.yaml", "name": name, "corpus": section}))


def texts() -> list[str]:
    """80 MB of documents that are long enough to be kept."""
    return [text for text in real_documents(80) if len(text) > 800]


def write(folder: Path, given: Sequence[str], megabytes: float, seed: int, file_bytes: float) -> int:
    """Write `megabytes` of perturbed text as JSON lines files of at most about `file_bytes`; return its bytes."""
    rng, written, number = random.Random(seed), 0, 0
    words = [word for text in given[::5] for word in text.split() if word.isalpha()]
    folder.mkdir(parents=True)
    while written < megabytes * 1e6:
        with (folder / f"{number:04d}.jsonl").open("w", encoding="utf-8") as out:
            while out.tell() < file_bytes and written < megabytes * 1e6:
                text = "\n".join(_changed(line, words, rng) for line in rng.choice(given)[:40_000].split("\n"))
                uri = f"https://bench.example/{seed}/{rng.getrandbits(60)}"
                out.write(json.dumps({"text": text, "url": uri}, ensure_ascii=False) + "\n")
                written += len(text.encode())
        number += 1
    return written


def _changed(line: str, words: Sequence[str], rng: random.Random) -> str:
    pieces = line.split(" ")
    for _ in range(max(1, len(pieces) // EVERY) if line.strip() else 0):
        pieces[rng.randrange(len(pieces))] = rng.choice(words)
    return " ".join(pieces)
