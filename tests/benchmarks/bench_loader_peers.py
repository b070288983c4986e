"""Compare the loader with MosaicML streaming and LitData on the same tokens: shuffled batches in memory; digests.

    python tests/benchmarks/bench_loader_peers.py [--peers FOLDER] [--tokens N] [--seconds S]

One core, page cache. Two forms, and either is compared with the same form: compact, which a trainer moves to its device
(rows as they are stored, in memory of their own, and where documents begin), and expanded on the host (int32, and the
number of each token's document). Seconds are CPU seconds, so that other load on the machine matters less. The peers
clash with the pins of the rest (older torch and boto3), so they come from a folder of their own:

    pip install --no-deps --target FOLDER mosaicml-streaming==0.13.0 litdata==0.2.76 lightning-utilities==0.15.3 \
        zstd==1.5.7.2 brotli==1.2.1 python-snappy==0.7.3 cramjam==2.14.0 tifffile==2026.3.3 obstore==0.12.1

A plain copy measures the bandwidth of the machine in the same run. Writes
tests/benchmarks/results/loader_peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cpu import best, seconds

from plinth.compute.context import Context
from plinth.records import Manifest, Part
from plinth.storage.store import require_unchanged
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order
from plinth.tokens.reading.loader import Loader
from plinth.tokens.shards.index import write_index
from plinth.tokens.shards.reader import ShardReader

RESULTS = Path(__file__).parent / "results" / "loader_peers.json"
MEAN_DOCUMENT = 1000
GLOBAL_BATCH = 256


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peers", help="folder that holds the peers")
    options.add_argument("--tokens", type=int, default=64 * 2**20)
    options.add_argument("--seconds", type=float, default=3.0)
    given = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows: list[dict[str, Any]] = [_copying()]
    with tempfile.TemporaryDirectory() as folder:
        ctx = Context(Workspace(folder).ensure())
        web = _bucket(ctx, given.tokens)
        for width in (512, 4096):
            rows += _loading(ctx, web, width, given)
        rows += _digests(ctx)
    for row in rows:
        print(f"{row['measure']:<66} {row['value']:>12,.4g} {row['unit']}")
    RESULTS.write_text(json.dumps({"load": os.getloadavg()[0], "cpus": os.cpu_count(), "rows": rows}, indent=2) + "\n")


def _copying() -> dict[str, Any]:
    source, target = np.ones(16 << 20, np.uint8), np.empty(16 << 20, np.uint8)
    best = min(seconds(lambda: np.copyto(target, source)) for _ in range(20))
    return _row("copy of 16 MiB, for comparison", len(source) / best, "bytes/s")


def _bucket(ctx: Context, tokens: int) -> Manifest:
    """One shard of random documents with its index."""
    random = np.random.default_rng(1)
    ends = _ends(random, tokens)
    values = random.integers(1, 8192, tokens, dtype=np.uint16)
    values[ends - 1] = 0
    facts = {"start": 0, "tokens": tokens}
    shard = Part(name="shard-00000.bin", blob=ctx.store.put_bytes(values.tobytes()), stats=facts)
    stats = {"documents": len(ends), "tokens": tokens, "end_of_text": 0, "dtype": "<u2"}
    return _shards((shard, _index(ctx, 0, ends, 0, random)), stats)


def _shards(parts: tuple[Part, ...], stats: dict[str, Any]) -> Manifest:
    return Manifest(asset="web/shards", step="drawn", version="1", params={}, inputs={}, parts=parts, stats=stats)


def _ends(random: np.random.Generator, tokens: int) -> np.ndarray:
    """Ends of documents with a log-normal length."""
    lengths = random.lognormal(np.log(MEAN_DOCUMENT) - 0.5, 1.0, 2 * tokens // MEAN_DOCUMENT).astype(np.int64) + 2
    ends = np.cumsum(lengths)
    return np.append(ends[ends < tokens], tokens)


def _index(ctx: Context, number: int, ends: np.ndarray, start: int, random: np.random.Generator) -> Part:
    lengths = np.diff(ends, prepend=0)
    ids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ends), [None, pa.py_buffer(random.bytes(16 * len(ends)))]
    )
    columns = [ids, pa.array(start + ends - lengths), pa.array(lengths)]
    columns += [pa.array(np.full(len(ends), number, np.int32)), pa.array(np.arange(len(ends), dtype=np.int32))]
    stats = {"start": start, "tokens": int(ends[-1]), "parts": [number, number]}
    return write_index(ctx.store, f"index-{number:05d}.arrow", columns, stats)


def _order(tokens: int, width: int) -> Manifest:
    phases = (Phase(name="main", fraction=1.0, weights={"web": 1.0}),)
    params = Mixture(sequence_tokens=width, total_tokens=tokens - 2 * width, phases=phases)
    plan = mixture.plan(params, {"web": (tokens - 1) // width})
    return Manifest(asset="mixture", step="drawn", version="1", params={}, inputs={}, parts=(), stats=plan)


def _loading(ctx: Context, web: Manifest, width: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Ours, then each peer, then ours again: the better of two, for the machine is shared."""
    reader = ShardReader(ctx.store, web)
    order = Order(_order(reader.tokens, width))
    loader = Loader(order, {"web": reader}, global_batch=GLOBAL_BATCH, micro_batch=16, prefetch=0)
    loader.batch(0).expanded()  # compiles
    ours = _rates(loader, width, given.seconds)
    found = {name: _peer(name, reader, width, given) for name in ("mosaic", "litdata")} if given.peers else {}
    again = _rates(loader, width, given.seconds)
    ours = {form: max(ours[form], again[form]) for form in ours}
    rows = [_row(f"{width}: ours, {form}", ours[form], "tokens/s") for form in ours]
    told = {
        "bare": "its data set as a bare iterator, rows untouched",
        "batches": "its own loader, batches without masks",
        "compact": "its own loader, compact",
        "expanded": "its own loader, expanded",
    }
    for name, peer in found.items():
        rows += [_row(f"{width}: {name}, {told[way]}", peer[way], "tokens/s") for way in told]
        for way in told:
            form = "expanded" if way == "expanded" else "compact"
            rows.append(_row(f"{width}: ours ({form}) over {name}, {told[way]}", ours[form] / peer[way], "times"))
    return rows


def _rates(loader: Loader, width: int, seconds: float) -> dict[str, float]:
    return {form: _rate(loader, width, seconds, form == "expanded") for form in ("compact", "expanded")}


def _rate(loader: Loader, width: int, seconds: float, expanded: bool) -> float:
    tokens, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        for share in loader.batches():
            if expanded:
                share.expanded()
            tokens += len(share) * width
            if time.process_time() - started > seconds:
                break
    return tokens / (time.process_time() - started)


def _peer(name: str, reader: ShardReader, width: int, given: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        reader.read(0, reader.tokens).tofile(path)
        script = str(Path(__file__).with_name("loader_peers.py"))
        command = [sys.executable, script, name, str(path), folder, str(width), str(given.seconds)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": given.peers}, capture_output=True, text=True, check=True
        )
    rates: dict[str, float] = json.loads(done.stdout.split("RESULT")[1])
    return rates


def _digests(ctx: Context) -> list[dict[str, Any]]:
    blob = ctx.store.put_bytes(np.random.default_rng(3).bytes(10**9))
    path = ctx.store.open_path(blob)
    return [_row("SHA-256 of a shard of 1 GB, from the page cache", best(lambda: require_unchanged(path, blob)), "s")]


def _row(measure: str, value: float, unit: str) -> dict[str, Any]:
    return {"measure": measure, "value": value, "unit": unit}


if __name__ == "__main__":
    main()
