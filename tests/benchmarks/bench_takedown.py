"""`plinth corpus takedown find` on a ledger of a million documents: time to index it, and of a look-up.

    python tests/benchmarks/bench_takedown.py [--documents 1000000]

The ledger is synthetic: 20 parts, 100,000 hosts of which one has 1,000 documents, half of the corpus under one license,
one document in ten in a cluster of two. A look-up opens the workspace, reads the index, clusters and rows. It is
compared with a DuckDB scan of the ledger's Parquet files, without normal forms and without clusters. Writes
tests/benchmarks/results/takedown.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.provenance.ledger_columns import BASE
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.storage.workspace import Workspace
from plinth_audit.takedown import index, search
from plinth_audit.takedown.exposed_runs import holdings

RESULTS = Path(__file__).parent / "results" / "takedown.json"
PARTS, HOSTS, ROUNDS = 20, 100_000, 5


def rows(first: int, count: int) -> pa.Table:
    """Rows of a ledger, by number."""
    numbers = np.arange(first, first + count)
    hosts = np.where(numbers % 1000 == 7, "large.example", [f"h{n % HOSTS}.example.org" for n in numbers])
    columns: dict[str, Any] = {
        "id": [f"{n:032x}" for n in numbers],
        "bucket": ["web"] * count,
        "domain": ["web"] * count,
        "uri": [f"https://{host}/page/{n}.html" for host, n in zip(hosts, numbers, strict=True)],
        "snapshot": ["2026-46"] * count,
        "licence": ["CC-BY-4.0" if n % 2 else "unknown" for n in numbers],
        "mime": ["text/html"] * count,
        "source_bytes": [9000] * count,
        "decision": ["train"] * count,
        "fired": [[]] * count,
        "cluster": [f"{n - n % 10 % 2:032x}" for n in numbers],
        "cluster_size": [2 if n % 10 < 2 else 1 for n in numbers],
        "edits": [0] * count,
        "edited_characters": [0] * count,
        "shard": [f"shard-{n // 50_000:05d}" for n in numbers],
        "position": (numbers % 50_000 * 700).tolist(),
        "tokens": [700] * count,
    }
    arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in BASE]
    return pa.Table.from_arrays(arrays, schema=BASE)


def build(ctx: Context, documents: int) -> Manifest:
    """The ledger, published."""
    size = documents // PARTS
    parts = tuple(write_table(ctx.store, f"web/part-{at:05d}.parquet", rows(at * size, size)) for at in range(PARTS))
    stats = {"documents": documents, "rejects": 0}
    made = Manifest(asset="ledger", step="ledger", version="1", params={}, inputs={}, parts=parts, stats=stats)
    ctx.refs.publish(made, made.digest)
    return made


def timed(root: Path, kind: Any, value: str) -> tuple[float, int]:
    """Median seconds of a look-up in a workspace opened again, and the documents found."""
    took = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        ctx = Context(Workspace(root))
        held = holdings(ctx, search.find(ctx, kind, value))
        took.append(time.perf_counter() - begun)
    return median(took), held.found.count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=1_000_000)
    documents = parser.parse_args().documents
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "workspace"
        ctx = Context(Workspace(root).ensure())
        made = build(ctx, documents)
        begun = time.perf_counter()
        ctx.refs.publish(indexed := index.run(ctx, made), indexed.digest)
        found: dict[str, Any] = {"documents": documents, "index_s": round(time.perf_counter() - begun, 2)}
        found["bytes_per_document"] = round(indexed.bytes / documents, 1)
        asked = {
            "url": "http://www.h123.example.org/page/123.html",
            "document": f"{documents // 2:032x}",
            "domain": "large.example",
            "licence": "CC-BY-4.0",
        }
        for kind, value in asked.items():
            seconds, count = timed(root, kind, value)
            found[kind] = {"seconds": round(seconds, 4), "documents": count}
        files = [str(ctx.store.open_path(part.blob)) for part in made.parts]
        begun = time.perf_counter()
        duckdb.sql(f"select * from read_parquet({files}) where uri like '%large.example/%'").fetchall()
        found["duckdb_scan_s"] = round(time.perf_counter() - begun, 3)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
