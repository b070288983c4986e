"""Tokens per second of the loader on one core, from the page cache, with document masks; and listing a step.

    python tests/benchmarks/bench_loader.py [--tokens N] [--sequence S]

The corpus is drawn at random (its content does not matter to a loader): two buckets of documents with a
log-normal length, 1,000 tokens in the mean. Both packings; what padding and cuts they leave; how fast best-fit
packs. Writes tests/benchmarks/results/loader.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens import packing as packing_index
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.batch import documents_of_step, steps_of_document
from plinth.tokens.order.order import Order
from plinth.tokens.packing import pack
from plinth.tokens.packing_layout import open_layouts
from plinth.tokens.reading.loader import Loader
from plinth.tokens.shards.reader import ShardReader
from plinth_lab.qualification.trials import drawn_bucket

RESULTS = Path(__file__).parent / "results" / "loader.json"
REPEATS = 5


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokens", type=int, default=256 * 2**20, help="tokens of each bucket")
    options.add_argument("--sequence", type=int, default=4096)
    options.add_argument("--seconds", type=float, default=2.0, help="of one pass, at most")
    given = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        ctx = Context(Workspace(folder).ensure())
        shards = {name: drawn_bucket(ctx, name, given.tokens, seed) for seed, name in enumerate(("code", "web"))}
        rows = []
        for packing in ("concatenate", "best-fit"):
            for width in sorted({512, given.sequence}):
                rows += _packing(ctx, shards, width, packing)
                rows.append(_loading(ctx, shards, width, given, packing))
            rows += _listing(ctx, shards, given.sequence, packing)
    for row in rows:
        print(f"{row['measure']:<62} {row['value']:>14,.4g} {row['unit']}")
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


def _mix(ctx: Context, shards: dict[str, Manifest], width: int, packing: str) -> Manifest:
    phases = (Phase(name="main", fraction=1.0, weights={"web": 0.7, "code": 0.3}),)
    total = sum(manifest.stats["tokens"] for manifest in shards.values())
    params = Mixture(sequence_tokens=width, total_tokens=total, phases=phases, packing=packing)
    packed = {name: packing_index.run(ctx, name, params.sequence_tokens, made) for name, made in shards.items()}
    for index in packed.values():
        ctx.refs.save(index)
    return mixture.run(ctx, params, shards, packed if packing == "best-fit" else None)


def _packing(ctx: Context, shards: dict[str, Manifest], width: int, packing: str) -> list[dict[str, Any]]:
    """Measure the padding of a packing and the time of best-fit (the second call: the first one compiles)."""
    made = _mix(ctx, shards, width, packing).stats["packing"]
    name = f"{packing}, sequences of {width}"
    shown = {"padding": "padding_share", "masked": "masked_share", "documents cut": "split_document_share"}
    rows = [{"measure": f"{name}: {label}", "value": 100 * made[key], "unit": "%"} for label, key in shown.items()]
    if packing == "concatenate":
        return rows
    lengths = np.concatenate([tokens for _, tokens in ShardReader(ctx.store, shards["web"]).index_batches()])
    starts = np.cumsum(lengths) - lengths
    pack(starts, lengths, width)
    started = time.perf_counter()
    pack(starts, lengths, width)
    rate = len(lengths) / (time.perf_counter() - started)
    return [*rows, {"measure": f"{name}: packing", "value": rate, "unit": "documents/s"}]


def _loading(
    ctx: Context, shards: dict[str, Manifest], width: int, given: argparse.Namespace, packing: str
) -> dict[str, Any]:
    mix = _mix(ctx, shards, width, packing)
    readers = {name: ShardReader(ctx.store, manifest) for name, manifest in shards.items()}
    layouts = open_layouts(ctx.store, ctx.refs.load, mix, {name: reader.tokens for name, reader in readers.items()})
    loader = Loader(Order(mix), readers, layouts, global_batch=64, micro_batch=16, prefetch=0)
    for reader in readers.values():  # bring the files into the page cache
        for start in range(0, reader.tokens - 2**20, 2**20):
            int(reader.read(start, 2**20).sum())
    loader.batch(0)  # compiles
    best = 0.0
    for _ in range(REPEATS):  # a whole pass each, so that no cache holds the rows; seconds that the core worked
        tokens, started = 0, time.process_time()
        for share in loader.batches():
            tokens += len(share) * width
            if time.process_time() - started > given.seconds:
                break
        best = max(best, tokens / (time.process_time() - started))
    return {"measure": f"{packing}, sequences of {width}: loader, one core", "value": best, "unit": "tokens/s"}


def _listing(ctx: Context, shards: dict[str, Manifest], width: int, packing: str) -> list[dict[str, Any]]:
    mix = _mix(ctx, shards, width, packing)
    order = Order(mix)
    index = ShardReader(ctx.store, shards["web"]).index
    (span,) = index.within(np.array([10**6]), np.array([10**6 + 1]))[1].records()
    last = order.steps(64).total - 1
    return [
        _timed(
            f"{packing}: open the order and list a step of 64 sequences",
            lambda: order.refs(order.step_window(last, 64)),
        ),
        _timed(
            f"{packing}: documents of a step of 64 sequences", lambda: documents_of_step(ctx, mix, shards, last, 64)
        ),
        _timed(
            f"{packing}: steps of a document",
            lambda: steps_of_document(ctx, mix, shards, "web", span.id, 64, part=span.part),
        ),
    ]


def _timed(measure: str, call: Callable[[], object]) -> dict[str, Any]:
    started = time.perf_counter()
    call()
    return {"measure": measure, "value": time.perf_counter() - started, "unit": "s"}


if __name__ == "__main__":
    main()
