"""infini-gram on the tokens of `bench_trace.py`: index by its own tool, spans by its own `attribute`.

    PYTHON tests/benchmarks/trace_peer.py FOLDER      # FOLDER/tokens and FOLDER/given.npz; PYTHON has infini-gram 2.6
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROUNDS = 15


def write(home: Path, target: Path) -> np.lib.npyio.NpzFile:
    """The files that its tokenizing step would leave: documents behind a separator, and where each begins."""
    given = np.load(home / "given.npz")
    tokens = np.fromfile(home / "tokens", np.uint16)
    ends = np.cumsum(given["lengths"])
    starts = ends - given["lengths"]
    with (target / "tokenized.0").open("wb") as out:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            out.write(b"\xff\xff" + tokens[start : end - 1].tobytes())
    (2 * starts).astype(np.uint64).tofile(target / "offset.0")
    return given


def main(home: Path) -> None:
    from infini_gram import indexing
    from infini_gram.engine import InfiniGramEngine

    target = home / "infini-gram"
    target.mkdir()
    given = write(home, target)
    before, begin = os.times(), time.perf_counter()
    folder = os.getcwd()
    indexing.build_sa(
        SimpleNamespace(save_dir=str(target), temp_dir=str(target), worker_id=0, shards=1, workers=1, cpus=1, mem=4,
                        token_width=2)
    )  # fmt: skip
    os.chdir(folder)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    wall = time.perf_counter() - begin
    tokens = int(given["lengths"].sum())
    size = sum(path.stat().st_size for path in target.glob("*.0"))
    found: dict[str, Any] = {
        "bytes_per_token": size / tokens,
        "beside_the_shards": ((target / "table.0").stat().st_size + (target / "offset.0").stat().st_size) / tokens,
        "seconds": cpu,
        "wall_seconds": wall,
        "queries": {},
    }
    engine = InfiniGramEngine(str(target), eos_token_id=0, vocab_size=65535, version=4, token_dtype="u16")
    for name in ("quotations", "frequent", "new"):
        query = given[name].tolist()
        for kind, most in (("", 10**9), (" at most 10 occurrences, its default", 10)):
            times = []
            for _ in range(ROUNDS + 1):
                begin = time.perf_counter()
                said = engine.attribute(query, delim_ids=[], min_len=32, max_cnt=most, enforce_bow=False)
                times.append(1000 * (time.perf_counter() - begin))
            spans = said["spans"]
            found["queries"][name + kind] = {
                "first_ms": times[0],
                "median_ms": float(np.median(times[1:])),
                "slowest_ms": max(times[1:]),
                "spans": len(spans),
                "occurrences": sum(span["count"] for span in spans),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
