"""LSH, verification and clustering from signatures: documents per minute, peak memory by size, with peers.

Signatures of 14 bands of 8 rows are made up: three in ten documents are in clusters of four, scattered over the
corpus, whose pairs have similarities of 0.96, 0.90 or 0.85; the rest have nothing in common. Each size is built
by one process and measured in another. Verification is by signature, for there is no text.

    python tests/benchmarks/bench_dedup.py [--sizes 1000000 3000000] [--workers 2] [--peers 100000]
    python tests/benchmarks/bench_dedup.py --sizes 10000000      # 5 GB of signatures, 13 GB of disk in all

Peers read the same signatures: datatrove's steps 2 and 3 (buckets, clusters; they verify nothing) and
datasketch's MinHashLSH (insert and query), each in one process, like ours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cpu import of_process

from plinth.compute.context import Context, manifest
from plinth.compute.engine import InlineEngine, LocalEngine
from plinth.corpus.dedup import exact
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.records import Manifest, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace

PARAMS = Dedup(minhash=MinHash(verify="signature"), keep="smallest_id")
PART_ROWS = 100_000
CLUSTERED, MEMBERS = 0.3, 4
#: Similarity of a member with the base of its cluster; of two members, its square.
KEPT = (0.98, 0.95, 0.92)
BUCKET = "bench"
RESULTS = Path(__file__).parent / "results" / "dedup.json"


def synthetic(first: int, count: int, clusters: int, stride: int, total: int, permutations: int) -> Any:
    """Signatures [count, permutations] of documents first, first + 1, …"""
    number = np.arange(first, first + count, dtype=np.uint64)[:, None]
    cluster = number * np.uint64(stride) % np.uint64(total) // np.uint64(MEMBERS)
    column = np.arange(1, permutations + 1, dtype=np.uint64)
    own = _mixed(number * np.uint64(0x9E3779B97F4A7C15) + column)
    shared = _mixed((cluster + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93) ^ column)
    kept = (_mixed(own) >> np.uint64(11)) * 2.0**-53 < np.array(KEPT)[cluster % np.uint64(3)]
    return (np.where(kept & (cluster < clusters), shared, own) >> np.uint64(32)).astype(np.uint32)


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The 64-bit finalizer of MurmurHash3."""
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


def _stride(total: int) -> int:
    stride = int(total * 0.6180339887) | 1
    while np.gcd(stride, total) != 1:
        stride += 2
    return stride


def parts(total: int) -> Iterator[tuple[int, npt.NDArray[np.uint32]]]:
    """Number of the first document, and signatures, of every part."""
    width = PARAMS.minhash.bands * PARAMS.minhash.rows
    for first in range(0, total, PART_ROWS):
        count = min(PART_ROWS, total - first)
        yield first, synthetic(first, count, int(total * CLUSTERED) // MEMBERS, _stride(total), total, width)


def build(workspace: Path, total: int) -> None:
    """Documents without words, a policy that keeps them, signatures and the exact stage."""
    ctx = Context(Workspace(workspace).ensure())
    made: dict[str, list[Any]] = {"documents": [], "policy": [], "minhash": []}
    for first, signed in parts(total):
        count, name = len(signed), f"part-{first // PART_ROWS:05d}.parquet"
        ids = np.random.default_rng(first).integers(0, 2**63, (count, 2), dtype=np.int64).tobytes()
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(ids)])
        fixed = {"uri": "", "captured_at": None, "snapshot": "", "licence": "MIT", "mime": "", "extra": "{}"}
        columns = {
            key: pa.repeat(pa.scalar(value, DOCUMENT_SCHEMA.field(key).type), count) for key, value in fixed.items()
        }
        columns |= {"id": column, "text": pa.array([f"{first + i}" for i in range(count)], pa.large_string())}
        columns["source_bytes"] = pa.repeat(pa.scalar(0, pa.int64()), count)
        made["documents"].append(write_table(ctx.store, name, pa.table(columns).select(DOCUMENT_SCHEMA.names)))
        made["policy"].append(write_table(ctx.store, name, pa.table({"keep": pa.repeat(True, count)})))
        raw = pa.py_buffer(signed.astype("<u4").tobytes())
        schema = minhash.signature_schema(PARAMS.minhash)
        signatures = pa.FixedSizeBinaryArray.from_buffers(schema.field(0).type, count, [None, raw])
        made["minhash"].append(write_table(ctx.store, name, pa.table([signatures], schema=schema)))
    for kind, found in made.items():
        ctx.refs.publish(manifest(f"{BUCKET}/{kind}", Step(name="bench", version="1"), {}, found), "bench")
    documents, policies = ({BUCKET: ctx.refs.current(f"{BUCKET}/{kind}")} for kind in ("documents", "policy"))
    ctx.refs.publish(exact.run(ctx, PARAMS, documents, policies), "bench")


def run(ctx: Context) -> Manifest:
    """The stage that is measured."""
    documents, signed = ({BUCKET: ctx.refs.current(f"{BUCKET}/{kind}")} for kind in ("documents", "minhash"))
    return minhash.run(ctx, PARAMS, documents, signed, ctx.refs.current(exact.ASSET))


def measure(workspace: Path, workers: int) -> dict[str, Any]:
    """Seconds and peak resident memory of the stage from nothing but signatures and exact duplicates."""
    engine = LocalEngine(workers) if workers else InlineEngine()
    started = time.perf_counter()
    ctx = Context(Workspace(workspace), engine=engine)
    found = run(ctx)
    seconds = time.perf_counter() - started
    processes = [os.getpid(), *(worker.pid for worker in getattr(engine, "_pool", []))]
    own, *workers_peak = (_peak_mb(pid) for pid in processes)
    cpu = sum(of_process(pid) for pid in processes)
    engine.close()
    total = int(found.stats["documents"])  # type: ignore[call-overload]
    return {
        "documents": total,
        "workers": workers,
        "seconds": seconds,
        "documents_per_minute": 60 * total / seconds,
        "cpu_seconds": cpu,
        "documents_per_core_minute": 60 * total / cpu,
        "read_bytes_per_document": sum(cost.read_bytes for cost in ctx.costs.values()) / total,
        "written_bytes_per_document": sum(cost.written_bytes for cost in ctx.costs.values()) / total,
        "driver_peak_mb": own,
        "worker_peak_mb": max(workers_peak, default=0.0),
        "clusters": found.stats["clusters"],
        "expected_clusters": int(total * CLUSTERED) // MEMBERS,
        "removed": total - int(found.stats["survivors"]),  # type: ignore[call-overload]
    }


def _peak_mb(pid: int) -> float:
    """Largest resident memory that a process ever had, pages of mapped files included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def datatrove(total: int) -> dict[str, Any]:
    """Steps 2 and 3 over files in its own format; writing and sorting those is not counted."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster
    from datatrove.utils.hashing import HashConfig

    bands, rows = PARAMS.minhash.bands, PARAMS.minhash.rows
    with tempfile.TemporaryDirectory() as folder:
        for first, signed in parts(total):
            for band in range(bands):
                target = Path(folder, "sigs", f"bucket_{band:03d}", f"{first // PART_ROWS:05d}.minhash.sig")
                target.parent.mkdir(parents=True, exist_ok=True)
                records = np.zeros(len(signed), dtype=[*((f"h{i}", "<u8") for i in range(rows)), ("doc", "<u4")])
                for i in range(rows):
                    records[f"h{i}"] = signed[:, band * rows + i]
                records["doc"] = np.arange(len(signed))
                records.sort(order=records.dtype.names)
                target.write_bytes(records.tobytes())
        config = MinhashConfig(num_buckets=bands, hashes_per_bucket=rows, hash_config=HashConfig(hash_fc="sha1"))
        started = time.process_time()
        for band in range(bands):
            MinhashDedupBuckets(f"{folder}/sigs", f"{folder}/dups", config=config).run(None, band, bands)
        MinhashDedupCluster(f"{folder}/dups", f"{folder}/remove", config=config).run(None, 0, 1)
        seconds = time.process_time() - started
        removed = sum(path.stat().st_size // 4 for path in Path(folder, "remove").glob("*.remove"))
    return {"seconds": seconds, "removed": removed}


def datasketch(total: int) -> dict[str, Any]:
    """Insert every signature into an LSH index and ask for its neighbors."""
    from datasketch import MinHashLSH
    from datasketch.lean_minhash import LeanMinHash

    rows = (row.astype(np.uint64) for _, signed in parts(total) for row in signed)
    signatures = [LeanMinHash(seed=1, hashvalues=row, scheme="legacy") for row in rows]
    started = time.process_time()
    index = MinHashLSH(
        num_perm=PARAMS.minhash.bands * PARAMS.minhash.rows, params=(PARAMS.minhash.bands, PARAMS.minhash.rows)
    )
    for number, signature in enumerate(signatures):
        index.insert(number, signature)
    found = sum(len(index.query(signature)) > 1 for signature in signatures)
    return {"seconds": time.process_time() - started, "with_neighbours": found}


def ours(total: int) -> dict[str, Any]:
    """The whole stage in one process, like the peers."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), 2 * MEMBERS)  # kernels compile outside the clock
        run(Context(Workspace(folder)))
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), total)
        started = time.process_time()
        found = run(Context(Workspace(folder)))
        seconds = time.process_time() - started
    return {"seconds": seconds, "removed": total - int(found.stats["survivors"])}  # type: ignore[call-overload]


PEERS = {"plinth": ours, "datatrove": datatrove, "datasketch": datasketch}


def apart(*arguments: str) -> dict[str, Any]:
    """One phase in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True
    )
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000_000, 3_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peers", type=int, default=100_000, help="documents for the peers; 0: none")
    parser.add_argument("--workspace", type=Path, help="a folder with room; by default a temporary one")
    parser.add_argument("--phase", choices=["build", "measure", *PEERS])
    parser.add_argument("--documents", type=int)
    options = parser.parse_args()
    if options.phase:
        print(json.dumps(_phase(options)))
        return
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"sizes": [], "peers": {}}
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.workspace) as folder:
            common = ("--workspace", folder, "--documents", str(size), "--workers", str(options.workers))
            for phase in ("build", "measure"):
                row = apart("--phase", phase, *common)
        others = [one for one in found["sizes"] if one["documents"] != size]
        found["sizes"] = sorted([*others, row], key=lambda one: one["documents"])
        print(json.dumps(row), flush=True)
    for name in PEERS if options.peers else ():
        row = apart("--phase", name, "--documents", str(options.peers))
        found["peers"][name] = row | {
            "documents": options.peers,
            "documents_per_minute": 60 * options.peers / row["seconds"],
        }
        print(name, json.dumps(found["peers"][name]), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def _phase(options: argparse.Namespace) -> dict[str, Any]:
    if options.phase in PEERS:
        return PEERS[options.phase](options.documents)
    if options.phase == "build":
        build(options.workspace, options.documents)
        return {}
    return measure(options.workspace, options.workers)


if __name__ == "__main__":
    main()
