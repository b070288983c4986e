"""Verbatim tracing at 10^7 tokens: bytes of the index, time to build it, time of a query; compared with infini-gram.

    python tests/benchmarks/bench_trace.py [--tokens 10000000] [--peer-python PYTHON]

Token ids follow Zipf's law in documents of some 600, of which one in ten begins with the same 300 tokens and one in
ten quotes another. Queries have 1,000 tokens: new text with quotations of 40 to 200 tokens, the text that a tenth of
all documents begin with, and text that is nowhere. Ours answers with spans, counts and documents; the peer by its own
`attribute`, the search of OLMoTrace. Files that a query opens are counted at 1, 2, 4 and 8 parts.
PYTHON has infini-gram 2.6. Writes tests/benchmarks/results/trace.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.tokens.shards.index import write_index
from plinth_audit.trace import trace_index
from plinth_audit.trace.matches import VerbatimIndex, spans
from plinth_audit.trace.tracer import holders

RESULTS = Path(__file__).parent / "results" / "trace.json"
VOCABULARY = 50_000
END = 0
SHARD_TOKENS = 2**22
ROUNDS = 15


def stream(tokens: int, seed: int = 0) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.uint16]]:
    """Tokens of documents closed by end-of-text, the documents' lengths, and what a tenth of them begin with."""
    random = np.random.default_rng(seed)
    header = _zipf(random, 300)
    made: list[NDArray[np.uint16]] = []
    held = 0
    while held < tokens:
        text = _zipf(random, int(random.integers(200, 1000)))
        kind = random.integers(0, 10)
        if kind == 0:
            text = np.concatenate([header, text])
        elif kind == 1 and made:
            text = np.concatenate([text, made[random.integers(0, len(made))][:-1]])
        made.append(np.append(text, np.uint16(END)))
        held += len(made[-1])
    return np.concatenate(made), np.array([len(own) for own in made]), header


def _zipf(random: np.random.Generator, count: int) -> NDArray[np.uint16]:
    return (1 + np.exp(random.random(count) * np.log(VOCABULARY - 1))).astype(np.uint16)


def publish(ctx: Context, tokens: NDArray[np.uint16], lengths: NDArray[np.int64], parts: int) -> list[Manifest]:
    """Publish shards of these documents from `parts` curated parts, and the matching curated text."""
    made = [
        Part(
            name=f"shard-{at // SHARD_TOKENS:05d}.bin",
            blob=ctx.store.put_bytes(tokens[at : at + SHARD_TOKENS].tobytes()),
            stats={"start": at, "tokens": len(tokens[at : at + SHARD_TOKENS])},
        )
        for at in range(0, len(tokens), SHARD_TOKENS)
    ]
    count = len(lengths)
    columns = [
        pa.array([n.to_bytes(16, "big") for n in range(count)], pa.binary(16)),
        pa.array(np.cumsum(lengths) - lengths, pa.int64()),
        pa.array(lengths, pa.int64()),
        pa.array((np.arange(count) * parts // count).astype(np.int32)),
        pa.array(np.arange(count, dtype=np.int32)),
    ]
    stats = {"start": 0, "tokens": len(tokens), "parts": [0, parts - 1]}
    made.append(write_index(ctx.store, "index-00000.arrow", columns, stats))
    stats = {"tokens": len(tokens), "documents": count, "end_of_text": END, "dtype": "<u2", "tokenizer": "bench"}
    base: dict[str, Any] = {"step": "bench", "version": "1", "params": {}, "inputs": {}}
    texts = tuple(Part(name=f"part-{i:05d}.parquet", blob=ctx.store.put_bytes(b"%d" % i)) for i in range(parts))
    return [
        Manifest(asset="bench/shards", parts=tuple(made), stats=stats, **base),
        Manifest(asset="bench/curated", parts=texts, **base),
    ]


def queries(tokens: NDArray[np.uint16], header: NDArray[np.uint16]) -> dict[str, NDArray[np.int64]]:
    """1,000 tokens each."""
    random = np.random.default_rng(9)
    quoting = list[NDArray[np.uint16]]()
    while sum(map(len, quoting)) < 1000:
        at = int(random.integers(0, len(tokens) - 300))
        quoting += [_zipf(random, 50), tokens[at : at + int(random.integers(40, 200))]]
    frequent = np.concatenate([header, _zipf(random, 700)])
    chosen = {"quotations": np.concatenate(quoting)[:1000], "frequent": frequent, "new": _zipf(random, 1000)}
    return {name: own.astype(np.int64) for name, own in chosen.items()}


def ours(ctx: Context, made: list[Manifest], asked: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    """Bytes and seconds of the index, and milliseconds of every query."""
    shards, curated = made
    begin = time.process_time()
    index = trace_index.run(ctx, "bench", shards, curated)
    seconds = time.process_time() - begin
    found: dict[str, Any] = {
        "bytes_per_token": index.bytes / shards.stats["tokens"],
        "seconds": seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "queries": {},
    }
    for name, query in asked.items():

        def answer(query: NDArray[np.int64] = query) -> list[tuple[int, int, int]]:
            opened = VerbatimIndex(ctx.store, index, shards)
            spanned = spans(opened.find(query), len(query))
            reader = opened.readers["bench"]
            return [(s.tokens, s.occurrences, holders(reader.index, s.places["bench"], 10)[0]) for s in spanned]

        times, said = timed(answer)
        found["queries"][name] = {**times, "spans": len(said), "occurrences": sum(count for _, count, _ in said)}
    return found


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Milliseconds of a call: the first, the median and the slowest of the later ones."""
    times, said = [], None
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        said = work()
        times.append(1000 * (time.perf_counter() - begin))
    return {"first_ms": times[0], "median_ms": float(np.median(times[1:])), "slowest_ms": max(times[1:])}, said


def slope(tokens: int) -> list[dict[str, int]]:
    """Files opened by a query and by the index at 1, 2, 4 and 8 curated parts of the same size."""
    rows = []
    for parts in (1, 2, 4, 8):
        with tempfile.TemporaryDirectory() as folder:
            ctx = Context(Workspace(Path(folder) / "w").ensure())
            made = stream(parts * tokens // 8, seed=parts)
            given = publish(ctx, *made[:2], parts)
            index = trace_index.run(ctx, "bench", *given)
            cost = ctx.costs["tokens.trace_index.anchors"]
            ctx.store.opened = 0
            VerbatimIndex(ctx.store, index, given[0]).find(queries(made[0], made[2])["frequent"])
            rows.append({"parts": parts, "tasks": cost.tasks, "opened": cost.opened, "query_opened": ctx.store.opened})
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=10_000_000)
    options.add_argument("--peer-python")
    given = options.parse_args()
    tokens, lengths, header = stream(given.tokens)
    asked = queries(tokens, header)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        warm = Context(Workspace(home / "warm").ensure())
        ours(warm, publish(warm, *stream(50_000)[:2], 1), asked)  # compiles the kernels
        ctx = Context(Workspace(home / "w").ensure())
        result: dict[str, Any] = {"tokens": len(tokens), "documents": len(lengths)}
        result["plinth"] = ours(ctx, publish(ctx, tokens, lengths, 2), asked)
        result["slope"] = slope(given.tokens // 4)
        if given.peer_python:
            tokens.tofile(home / "tokens")
            np.savez(home / "given.npz", lengths=lengths, **asked)
            command = [given.peer_python, str(Path(__file__).parent / "trace_peer.py"), str(home)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=True)
            result["infini-gram"] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
