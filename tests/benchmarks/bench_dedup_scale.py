"""Near duplicates among a hundred million documents: cost per document and peak memory by number of documents.

Signatures are made up by `bench_dedup.synthetic` where they are read: 4 bands of 4 rows, because 45 GB of the default
signatures are more than one disk of a desk has to spare. Everything after them is real: the index of band keys and its
tree, masks, ranks, groups, components, verification, clusters and sidecars. Tables that no later step reads are deleted
along the way, so a hundred million documents need about 20 GB. Each size is measured in a process of its own.

    python tests/benchmarks/bench_dedup_scale.py [--sizes 1000000 12500000 25000000 50000000 100000000] [--workers 2]
    python tests/benchmarks/bench_dedup_scale.py --connected --sizes 1000000 2000000 4000000 8000000

With `--connected`, all documents share one band key, and a tenth of them are near duplicates of each other: one
component with a crowd of all documents and a cluster of a tenth of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bench_dedup
import numpy as np
import pyarrow as pa

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.compute.engine import LocalEngine
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, exact, run_tree, sorted_runs
from plinth.corpus.dedup.near import candidates, components, crowds, index, large, linking, minhash, payloads
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth_text.similarity import band_keys

PARAMS = Dedup(minhash=MinHash(bands=4, rows=4, verify="signature"), keep="smallest_id")
WIDTH = PARAMS.minhash.bands * PARAMS.minhash.rows
PART_ROWS, BUCKET = 500_000, bench_dedup.BUCKET
RESULTS = Path(__file__).parent / "results" / "dedup_scale.json"
CONNECTED = RESULTS.with_name("dedup_connected.json")
#: Steps whose tables are deleted when a later step begins, unless that step reads them.
OBSOLETE = {
    "dedup/minhash/groups": ("bench/bands", "dedup/mask", "dedup/rank"),
    "dedup/minhash/components": ("bench/bands", "dedup/merge", "dedup/minhash/groups"),
    "dedup/minhash/partitions": ("dedup/minhash/groups", "dedup/minhash/components/answer"),
    "dedup/minhash/link": ("dedup/minhash/signature", "dedup/minhash/components"),
    "dedup/gather": ("dedup/minhash/sets", "dedup/minhash/signature", "dedup/minhash/route", "dedup/narrow routed"),
}


@dataclass(frozen=True)
class Made:
    """Documents first, first + 1, … of `total`."""

    first: int
    count: int
    total: int
    connected: bool = False

    def signatures(self) -> Any:
        stride = bench_dedup._stride(self.total)
        grouped = int(self.total * bench_dedup.CLUSTERED) // bench_dedup.MEMBERS
        made = bench_dedup.synthetic(self.first, self.count, grouped, stride, self.total, WIDTH)
        if self.connected:
            made[:, : PARAMS.minhash.rows] = 1
            made[-self.first % 10 :: 10, : WIDTH - 1] = 1
        return made


def write_documents(store: Store, task: Made) -> tuple[Part, ...]:
    """A part of documents without words, and a part of the exact stage, in which all of them survive."""
    count = task.count
    ids = np.random.default_rng(task.first).integers(0, 2**63, (count, 2), dtype=np.int64).tobytes()
    fixed = {"uri": "", "captured_at": None, "snapshot": "", "licence": "MIT", "mime": "", "extra": "{}", "text": ""}
    columns: dict[str, Any] = {
        key: pa.repeat(pa.scalar(value, DOCUMENT_SCHEMA.field(key).type), count) for key, value in fixed.items()
    }
    columns["id"] = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(ids)])
    columns["source_bytes"] = pa.repeat(pa.scalar(0, pa.int64()), count)
    name = f"part-{task.first // PART_ROWS:05d}.parquet"
    documents = write_table(store, name, pa.table(columns).select(DOCUMENT_SCHEMA.names))
    documents = documents.model_copy(update={"stats": vars(task)})
    kept = pa.table({"survivor": pa.repeat(True, count), "text_bytes": pa.repeat(pa.scalar(0, pa.int64()), count)})
    return documents, write_table(store, name, kept)


def write_bands(store: Store, task: Made) -> tuple[Part, ...]:
    """A leaf of the index, as `index._bands` writes it."""
    key = band_keys(task.signatures(), PARAMS.minhash.bands, PARAMS.minhash.rows).reshape(-1)
    row = np.repeat(np.arange(task.count, dtype=np.uint64), PARAMS.minhash.bands)
    order = sorted_runs.in_order(key, row)
    identity = index.identity(PARAMS.minhash)
    return (sorted_runs.write(store, "leaf.run", index.BANDS, [(key[order], row[order])], 2, identity),)


def values(store: Store, part: Part, rows: Any) -> Iterator[Any]:
    """Signatures of some rows of a part of documents, as `payloads.values_of` reads them."""
    made = Made(**part.stats)
    yield np.ascontiguousarray(made.signatures()[rows]).view(np.uint64)


def bands(ctx: Context, params: MinHash, places: Sequence[sidecars.Slot]) -> list[run_tree.Branch]:
    """The index of all documents, in place of `index.bands`."""
    made = [Made(**slot.documents.stats) for slot in places]
    items = [Item((str(one),), one, one.count) for one in made]
    leaves = [parts[0] for parts in run_items(ctx, Step(name="bench/bands", version="1"), write_bands, items, label="")]
    return run_tree.tree(ctx, index.BANDS, 2, leaves)


@dataclass(frozen=True)
class Watched:
    """Task function that notes the most anonymous and mapped memory of its task, in a file in `folder`."""

    fn: Any
    name: str
    folder: Path

    def __call__(self, store: Store, task: Any) -> tuple[Part, ...]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        made: tuple[Part, ...] = self.fn(store, task)
        with (self.folder / f"{os.getpid()}.peaks").open("a") as file:
            file.write(f"{bench_dedup._peak_mb(os.getpid()):.0f} {self.name}\n")
        return made


class Frugal:
    """`run_items` that deletes tables which no later step reads, and keeps the size of what is left."""

    def __init__(self, folder: Path) -> None:
        self.parts: dict[str, list[Part]] = defaultdict(list)
        self.peak_bytes, self.folder = 0, folder

    def peaks(self) -> dict[str, int]:
        """The largest task's megabytes, by step."""
        lines = [line for path in self.folder.glob("*.peaks") for line in path.read_text().splitlines()]
        found: dict[str, int] = defaultdict(int)
        for peak, name in (line.split(" ", 1) for line in lines):
            found[name] = max(found[name], int(peak))
        return dict(sorted(found.items()))

    def __call__(self, ctx: Context, step: Step, fn: Any, items: Sequence[Item], **named: Any) -> Any:
        read = repr([item.task for item in items]) if step.name in OBSOLETE else ""
        old = [part for name in OBSOLETE.get(step.name, ()) for part in self.parts.pop(name, ())]
        kept = {part.blob.sha256 for parts in self.parts.values() for part in parts}
        for part in old:
            if part.blob.sha256 in read or part.blob.sha256 in kept or part.blob.bytes < 2**20:
                self.parts["kept"].append(part)
            else:
                ctx.store.remove(part.blob)
        name = f"{step.name} {step.params['kind']}" if step.name == "dedup/narrow" else step.name
        made = run_items(ctx, step, Watched(fn, name, self.folder), items, **named)
        self.parts[name] += [part for parts in made for part in parts]
        used = sum(path.stat().st_size for path in ctx.store.files.rglob("*") if path.is_file())
        self.peak_bytes = max(self.peak_bytes, used)
        print(time.strftime("%H:%M:%S"), name, f"{used / 1e9:.1f} GB", file=sys.stderr, flush=True)
        return made


def measure(folder: Path, total: int, workers: int, connected: bool) -> dict[str, Any]:
    """CPU seconds by step and peak memory of the stage."""
    with LocalEngine(workers) as engine:
        ctx = Context(Workspace(folder).ensure(), engine=engine)
        tasks = [Made(first, min(PART_ROWS, total - first), total, connected) for first in range(0, total, PART_ROWS)]
        items = [Item((str(task),), task, task.count) for task in tasks]
        step = Step(name="bench/documents", version="1")
        made = run_items(ctx, step, write_documents, items, label="")
        documents = manifest(f"{BUCKET}/documents", step, {}, [parts[0] for parts in made])
        kept = [parts[1].model_copy(update={"name": f"{BUCKET}/{parts[1].name}"}) for parts in made]
        before = manifest(exact.ASSET, step, {}, kept, {"considered": total, "considered_bytes": total})
    ctx.costs.clear()
    frugal = Frugal(folder)
    for module in (candidates, clusters, components, crowds, large, linking, minhash, payloads, run_tree, sidecars):
        module.run_items = frugal  # type: ignore[attr-defined]
    index.bands, payloads.values_of = bands, lambda params: values  # type: ignore[assignment]
    exact.text_lengths = lambda ctx, places: [slot.documents for slot in places]  # type: ignore[assignment]
    with LocalEngine(workers) as engine:
        ctx = replace(ctx, engine=engine)
        started = time.perf_counter()
        signed = {BUCKET: documents}
        found: Manifest = minhash.run(ctx, PARAMS, {BUCKET: documents}, signed, before)
        seconds = time.perf_counter() - started
        peaks = frugal.peaks().values()
    steps = {name: cost for name, cost in sorted(ctx.costs.items()) if cost.tasks}
    own = sum(cost.cpu_s for name, cost in steps.items() if not name.startswith("bench/"))
    return {
        "documents": total,
        "cpu_us_per_document": 1e6 * own / total,
        "seconds": seconds,
        "workers": workers,
        "worker_peak_mb": max(peaks),
        "steps_peak_mb": frugal.peaks(),
        "driver_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "disk_peak_gb": frugal.peak_bytes / 1e9,
        "tasks": sum(cost.tasks for cost in steps.values()),
        "written_bytes_per_document": sum(cost.written_bytes for cost in steps.values()) / total,
        "steps_us_per_document": {name: round(1e6 * cost.cpu_s / total, 4) for name, cost in steps.items()},
        "candidates": found.stats["candidates"],
        "clusters": found.stats["clusters"],
        "removed": total - int(found.stats["survivors"]),  # type: ignore[call-overload]
        "digest": found.digest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [1_000_000, 12_500_000, 25_000_000, 50_000_000, 100_000_000]
    parser.add_argument("--sizes", type=int, nargs="*", default=sizes)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--workspace", type=Path, help="a folder with room; by default a temporary one")
    parser.add_argument("--connected", action="store_true", help="all documents in one component")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.sizes[0], options.workers, options.connected)))
        return
    results = CONNECTED if options.connected else RESULTS
    found: list[dict[str, Any]] = json.loads(results.read_text()) if results.exists() else []
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.workspace) as folder:
            command = [sys.executable, "-c", "import bench_dedup_scale; bench_dedup_scale.main()"]
            command += ["--measure", folder, "--sizes", str(size), "--workers", str(options.workers)]
            command += ["--connected"] * options.connected
            environment = {**os.environ, "PYTHONPATH": here}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        row = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(row), flush=True)
        found = sorted([row, *(one for one in found if one["documents"] != size)], key=lambda one: one["documents"])
        results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
