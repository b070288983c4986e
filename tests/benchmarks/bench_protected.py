"""How fast documents are verified against protected items, by the length of the items.

    python tests/benchmarks/bench_protected.py

Four items of words drawn by Zipf's law, and documents as long, a third of each copied from an item: every document is a
candidate for every item, which is the worst case. MB of text per second of one core's work.
Writes tests/benchmarks/results/protected.json.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pyarrow as pa

from plinth.corpus.protected import protected_index
from plinth.corpus.protected.match import find
from plinth.corpus.protected.parameters import Protected

LENGTHS = (200, 2_000, 8_000, 32_000)
WORDS = 240_000
TARGET = Path(__file__).parent / "results" / "protected.json"


def speed(length: int) -> float:
    """MB/s for items of so many words."""
    picks = random.Random(length)
    names, weights = [f"w{i}" for i in range(20_000)], [1 / (i + 3) for i in range(20_000)]
    items = [picks.choices(names, weights, k=length) for _ in range(4)]
    index = protected_index.build(pa.array([" ".join(item) for item in items], pa.large_string()), Protected())
    texts = []
    for number in range(WORDS // length):
        words, at = picks.choices(names, weights, k=length), picks.randrange(length // 2)
        words[at : at + length // 3] = items[number % 4][at : at + length // 3]
        texts.append(" ".join(words))
    column, lookups = pa.array(texts, pa.large_string()), index.lookups()
    find(column.slice(0, 1), 3, index, lookups)  # compiles
    started = time.process_time()
    find(column, 3, index, lookups)
    return round(sum(map(len, texts)) / (time.process_time() - started) / 1e6, 1)


if __name__ == "__main__":
    found = {f"{length} words": speed(length) for length in LENGTHS}
    for name, value in found.items():
        print(f"{name:>14} {value:6.1f} MB/s")
    TARGET.write_text(json.dumps({"megabytes_per_second": found}, indent=2) + "\n")
