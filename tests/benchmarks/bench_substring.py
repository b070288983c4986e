"""Repeated lines, repeated passages and look-alikes: MB of text per CPU second, and peak memory at 1x and 4x.

From Parquet to Parquet, in one process, over Python sources and text files of this machine, in which every
tenth document quotes 60 to 200 words of three others. Reads, shuffles, verification and writes are inside the clock.
The suffix-array tool of Lee et al. publishes about 0.1 MB/s per core for the same passages, with the whole corpus
and its suffixes in memory; it is not a Python package, so its published figure is used.

    python tests/benchmarks/bench_substring.py [--megabytes 40] [--times 4]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench_minhash import real_documents

from plinth.compute.context import Context, manifest
from plinth.corpus.dedup import lines, semantic, substring
from plinth.corpus.dedup.parameters import LineParameters, Semantic, Substring
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace

BUCKET = "bench"
PART_MEGABYTES = 8.0
#: Reduce ranges small enough that a corpus of a few parts already fills one.
RANGE_ROWS = 500_000
PUBLISHED_MB_S = 0.1
RESULTS = Path(__file__).parent / "results" / "substring.json"


def quoting(texts: list[str]) -> list[str]:
    """Every tenth text with passages of three others put between its own lines."""
    rng = random.Random(1)
    found = list(texts)
    for index in range(0, len(found), 10):
        pieces = found[index].split("\n")
        for _ in range(3):
            source = rng.choice(texts).split(" ")
            at = rng.randrange(max(1, len(source)))
            pieces.insert(rng.randrange(len(pieces) + 1), " ".join(source[at : at + rng.randint(60, 200)]))
        found[index] = "\n".join(pieces)
    return found


def build(ctx: Context, megabytes: float) -> dict[str, Manifest]:
    """Write documents, and a stage before that lets all of them pass; their manifests are kept by reference."""
    texts, documents, before = quoting(real_documents(megabytes)), list[Part](), list[Part]()
    begin, size = 0, 0
    for end, text in enumerate(texts, 1):
        size += len(text)
        if size < PART_MEGABYTES * 1e6 and end < len(texts):
            continue
        mine, name = texts[begin:end], f"part-{len(documents):05d}.parquet"
        sizes = [len(one.encode()) for one in mine]
        columns = {
            "id": [hashlib.sha256(b"%d" % i).digest()[:16] for i in range(begin, end)],
            "text": mine,
            "uri": [f"file:///{i}" for i in range(begin, end)],
            "captured_at": [None] * len(mine),
            **{name: ["x"] * len(mine) for name in ("snapshot", "licence", "mime")},
            "source_bytes": sizes,
            "extra": ["{}"] * len(mine),
        }
        documents.append(write_table(ctx.store, name, pa.table(columns, schema=DOCUMENT_SCHEMA)))
        passed = pa.table({"survivor": [True] * len(mine), "text_bytes": sizes})
        before.append(write_table(ctx.store, f"{BUCKET}/{name}", passed))
        begin, size = end, 0
    step = Step(name="bench", version="1")
    return {
        "documents": manifest(f"{BUCKET}/documents", step, {}, documents),
        "before": manifest("b", step, {}, before),
    }


def warm(root: Path) -> None:
    """Compile and load every kernel, on a corpus of its own."""
    ctx = Context(Workspace(root).ensure())
    stages(ctx, build(ctx, 0.3))


def stages(ctx: Context, given: dict[str, Manifest]) -> dict[str, Any]:
    documents, before = {BUCKET: given["documents"]}, given["before"]
    found: dict[str, Any] = {}

    def clock(name: str, work: Callable[[], Manifest]) -> Manifest:
        start = time.process_time()
        made = work()
        found[name] = {"seconds": time.process_time() - start, "stats": dict(made.stats)}
        return made

    cut = clock("lines", lambda: lines.run(ctx, LineParameters(), documents, before, range_rows=RANGE_ROWS))
    clock("substring", lambda: substring.run(ctx, Substring(), documents, before, range_rows=RANGE_ROWS))
    clock("substring after lines", lambda: substring.run(ctx, Substring(), documents, cut, range_rows=RANGE_ROWS))
    chosen = Semantic(buckets=(BUCKET,))
    clock("semantic", lambda: semantic.run(ctx, chosen, documents, before, range_rows=RANGE_ROWS))
    return found


def measure(root: Path) -> dict[str, Any]:
    """Measure one existing corpus in this process."""
    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder))
    ctx = Context(Workspace(root))
    given = {
        name: Manifest.model_validate_json((root / f"{name}.json").read_text()) for name in ("documents", "before")
    }
    found = stages(ctx, given)
    size = found["lines"]["stats"]["considered_bytes"] / 1e6
    rows = {}
    for name, one in found.items():
        stats = one["stats"]
        rows[name] = {"mb_per_s": size / one["seconds"], "removed_share": stats["removed_bytes"] / 1e6 / size}
        rows[name] |= {
            key: stats[key] for key in ("edited", "edits", "dropped", "differing", "removed") if key in stats
        }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"megabytes": size, "documents": found["lines"]["stats"]["documents"], "peak_mb": peak, "stages": rows}


def separate(phase: str, root: Path, megabytes: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--phase", phase, "--workspace", str(root), "--megabytes", str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--phase", choices=("build", "measure"))
    parser.add_argument("--workspace", type=Path)
    args = parser.parse_args()
    if args.phase == "build":
        made = build(Context(Workspace(args.workspace).ensure()), args.megabytes)
        for name, one in made.items():
            (args.workspace / f"{name}.json").write_text(one.model_dump_json())
        print(json.dumps({"parts": len(made["documents"].parts)}))
    elif args.phase == "measure":
        print(json.dumps(measure(args.workspace)))
    else:
        compare(args.megabytes, args.times)


def compare(megabytes: float, times: int) -> None:
    results = []
    for size in (megabytes, megabytes * times):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "workspace"
            separate("build", root, size)
            results.append(separate("measure", root, size))
    for found in results:
        print(f"\n{found['megabytes']:.0f} MB, {found['documents']} documents, peak {found['peak_mb']:.0f} MB")
        for name, row in found["stages"].items():
            ratio = f", {row['mb_per_s'] / PUBLISHED_MB_S:.0f}x the published suffix array" if "sub" in name else ""
            print(f"  {name:22} {row['mb_per_s']:7.1f} MB/s, {100 * row['removed_share']:.1f}% removed{ratio}")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
