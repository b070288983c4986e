"""Speed of the comparison with protected items: the stage as a recipe's mixture brings it, and the worst case.

    python tests/benchmarks/bench_protected.py

The stage: 40 MB of real text in parts of 4 MB against the built-in probes, with the store's operations and bytes of the
steps that grow with parts. The worst case: four items of words drawn by Zipf's law, and documents as long, a third of
each copied from an item, so that every document is a candidate for every item. MB of text per second and core.
Writes tests/benchmarks/results/protected.json.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import bench_corpus
import pyarrow as pa

from plinth.compute.context import Context
from plinth.corpus.dedup import exact
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.protected import holdout, protected, protected_index
from plinth.corpus.protected.comparison import find
from plinth.corpus.protected.parameters import Holdout, Protected
from plinth.evaluation.parameters import Probes
from plinth.evaluation.probes import probe_sets
from plinth.storage.workspace import Workspace

LENGTHS = (200, 2_000, 8_000, 32_000)
WORDS = 240_000
TARGET = Path(__file__).parent / "results" / "protected.json"


#: Steps of the stage with a task for each part.
BY_PARTS = ("protected/counted", "protected/found", "protected")


def stage(texts: Iterable[str]) -> dict[str, float]:
    """The stage over these texts, by one process."""
    with tempfile.TemporaryDirectory() as folder:
        bench_corpus.build(Path(folder), texts)
        ctx = Context(Workspace(Path(folder)))
        documents, policies = ({bench_corpus.BUCKET: ctx.refs.current(f"{bench_corpus.BUCKET}/{name}")}
                               for name in ("documents", "policy"))  # fmt: skip
        survivors = exact.run(ctx, Dedup(), documents, policies)
        held = holdout.run(ctx, Holdout(max_documents=20), documents, survivors)
        probes, made = probe_sets.run(ctx, Probes()), documents[bench_corpus.BUCKET]
        started = time.process_time()
        protected.run(ctx, Protected(), documents, survivors, held, {}, probes)
        seconds = time.process_time() - started
        costs = [ctx.costs[name] for name in BY_PARTS]
        return {
            "megabytes_per_second": round(made.stats["text_bytes"] / seconds / 1e6, 1),
            "operations_per_part": round(sum(one.opened + one.written for one in costs) / len(made.parts), 1),
            "written_per_document": round(sum(one.written_bytes for one in costs) / made.stats["documents"], 1),
        }


def speed(length: int) -> float:
    """Return MB/s for items of `length` words."""
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
    stage(bench_corpus.synthetic_texts(0.02))  # compiles
    whole = stage(bench_corpus.real_texts(40))
    print(whole)
    TARGET.write_text(json.dumps({"stage": whole, "megabytes_per_second": found}, indent=2) + "\n")
