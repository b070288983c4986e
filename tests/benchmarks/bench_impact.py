"""Search for everything that was derived from a manifest, in workspaces of synthetic manifests of growing size.

    python tests/benchmarks/bench_impact.py [--counts 10000 20000 40000 100000]

CPU seconds: the first index, a search from the middle and from the first manifest, and 100 manifests more.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.provenance import lineage
from plinth.provenance.impact import downstream
from plinth.storage.workspace import TRUST_VARIABLE, Workspace

STAGES = (
    "documents", "language", "quality", "policy", "verdicts", "curated", "shards", "mixture", "run", "checkpoint"
)  # fmt: skip
PARTS, INPUTS, REACH, BUCKETS = 8, 5, 200, 200


def save(folder: Path, count: int, made: list[str]) -> None:
    """Further manifests: every tenth reads a source, the others up to five of the last 200."""
    draw = random.Random(len(made))
    blob = {"md5": "0" * 32, "sha256": "0" * 64, "bytes": 1}
    parts = [{"name": f"part-{n}.parquet", "blob": blob, "rows": 1, "stats": {}} for n in range(PARTS)]
    for number in range(len(made), len(made) + count):
        stage, bucket = STAGES[number % len(STAGES)], f"b{number // len(STAGES) % BUCKETS}"
        near = min(len(made), REACH)
        inputs = {f"x{n}": made[-draw.randint(1, near)] for n in range(min(near, INPUTS))}
        if stage == STAGES[0]:
            inputs = {f"{bucket}/sources": hashlib.sha256(str(number).encode()).hexdigest()}
        facts = {"asset": f"{bucket}/{stage}", "step": stage, "version": "1", "params": {"n": number}}
        data = fingerprint.canonical({**facts, "inputs": inputs, "parts": parts, "stats": {}})
        made.append(hashlib.sha256(data).hexdigest())
        (folder / f"{made[-1]}.json").write_bytes(data)


def timed(work: Callable[[], Any], times: int = 1) -> tuple[float, Any]:
    """The least CPU time of some calls, and what the last one returned."""
    least, got = float("inf"), None
    for _ in range(times):
        start = time.process_time()
        got = work()
        least = min(least, time.process_time() - start)
    return least, got


def measure(count: int, place: str) -> str:
    """The line of one workspace."""
    os.environ[TRUST_VARIABLE] = f"{place}/trust"
    workspace = Workspace(Path(place) / "workspace").ensure()
    made: list[str] = []
    save(workspace.manifests, count, made)
    first, _ = timed(lambda: lineage.current(Context(workspace)))
    middle, found = timed(lambda: downstream(Context(workspace), [made[-count // 20 - 9]]), times=3)
    whole, every = timed(lambda: downstream(Context(workspace), [made[0]]), times=3)
    save(workspace.manifests, 100, made)
    more, _ = timed(lambda: lineage.current(Context(workspace)))
    searches = f"search {middle:.3f} s ({len(found):,} found), from the first {whole:.3f} s ({len(every):,} found)"
    return f"{count:>7,} manifests: first index {first:.2f} s, {searches}, 100 more {more:.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 20_000, 40_000, 100_000])
    for count in parser.parse_args().counts:
        with tempfile.TemporaryDirectory() as place:
            print(measure(count, place), flush=True)


if __name__ == "__main__":
    main()
