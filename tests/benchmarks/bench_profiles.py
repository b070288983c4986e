"""Profiles per core: every annotator that a profile rests on, and the profile with its rules, on real documents.

One thread, batches as the stage hands them out. MB are of UTF-8 text, seconds are of CPU time, the best of several.

    python tests/benchmarks/bench_profiles.py [--megabytes 20]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")

import pyarrow as pa  # noqa: E402
from bench_minhash import megabytes, real_documents  # noqa: E402

from plinth.corpus.annotate.registry import annotator  # noqa: E402
from plinth.corpus.annotate.stage import BATCH_ROWS  # noqa: E402
from plinth.corpus.policy.profiles.registry import PROFILES  # noqa: E402

REQUIRED = 60
REPEATS = 5
RESULTS = Path(__file__).parent / "results" / "profiles.json"


def best(work: Callable[[], Any]) -> float:
    """CPU seconds of the fastest of several runs."""
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0)
    options = parser.parse_args()
    texts = [text for text in real_documents(options.megabytes) if text.strip()]
    size = megabytes(texts)
    batches = pa.table({"text": pa.array(texts, pa.large_string())}).to_batches(max_chunksize=BATCH_ROWS)
    print(f"{len(texts)} documents, {size:.1f} MB")
    seconds: dict[str, float] = {}
    for profile in PROFILES.values():
        for needed, params in profile.annotators.items():
            key = f"{needed} {json.dumps(dict(params))}"
            if key not in seconds:
                chosen, given = annotator(needed), annotator(needed).params(**params)
                chosen.annotate(batches[0].slice(0, 2), given)  # compiles
                seconds[key] = best(lambda chosen=chosen, given=given: [chosen.annotate(b, given) for b in batches])
                print(f"{key:<90}{size / seconds[key]:10.1f} MB/s")
    speeds = {}
    for profile in PROFILES.values():
        total = sum(seconds[f"{needed} {json.dumps(dict(params))}"] for needed, params in profile.annotators.items())
        speeds[profile.name] = size / total
        print(f"{profile.name:<40}{speeds[profile.name]:10.1f} MB/s")
    print(f"required of every new annotator: {REQUIRED} MB/s")
    annotators = {key: size / value for key, value in seconds.items()}
    result = {"documents": len(texts), "megabytes": size, "annotators": annotators, "profiles": speeds}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
