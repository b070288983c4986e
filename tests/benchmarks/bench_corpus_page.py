"""The corpus page on made-up ledgers of 10^6 and 10^7 documents: seconds of each answer, and memory of its process.

The ledger has the columns of the packaged recipe `base` (bench_policy's made-up values), parts of as many documents as
128 MiB of web text, row groups as the pipeline writes them, and the rules that fired as the policy's own code finds
them. Files are in the page cache after the first request. Every address is asked for the first time, so that no result
comes from the page's cache; CPU seconds are the server's own and do not depend on other work of the machine.

    first      the first answer of a new process: footers of all parts are read and their digests known
    list       a list with a filter by decision, by rule, by domain or by a range
    sorted     the list sorted by a score
    what-if    a moved threshold of both buckets: every document judged again, documents that change sides listed
    peak_mb    largest resident memory of the process

    python -m tests.benchmarks.bench_corpus_page [--documents 1000000 10000000] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from plinth.compute.context import Context, manifest
from plinth.corpus.annotate.base import annotator
from plinth.corpus.policy.compiled_policy import compile_policy
from plinth.corpus.policy.parameters import Policy
from plinth.provenance.ledger_columns import schema_of
from plinth.records import Step
from plinth.storage.parts import SCORE_GROUP_ROWS, write_batches
from plinth.storage.workspace import Workspace
from tests.benchmarks.bench_policy import PART_ROWS, SIDECARS, column, default_policy
from tests.benchmarks.cpu import of_process

RESULTS = Path(__file__).parent / "results" / "corpus_page.json"
STEP = Step(name="bench", version="1")
BUCKETS = ("web", "prose")
REPEATS = 5


def build(root: Path, documents: int) -> None:
    """Publish a ledger of made-up documents, and the policy that judged them."""
    ctx, policy = Context(Workspace(root).ensure()), default_policy()
    inputs, parts = dict[str, Any](), []
    for bucket in BUCKETS:
        made = manifest(f"{bucket}/policy", STEP.model_copy(update={"params": policy.model_dump(mode="json")}), {}, [])
        ctx.refs.publish(made, key=made.digest)
        inputs[f"{bucket}/policy"] = made
        inputs |= {f"{bucket}/{name}": made.digest for name in SIDECARS}
        for number in range(documents // len(BUCKETS) // PART_ROWS):
            batch = rows(bucket, number, policy)
            name = f"{bucket}/part-{number:05d}.parquet"
            parts.append(write_batches(ctx.store, name, batch.schema, [batch], group_rows=SCORE_GROUP_ROWS))
    made = manifest("ledger", STEP, inputs, parts, {"documents": documents})
    ctx.refs.publish(made, key=made.digest)


def rows(bucket: str, number: int, policy: Policy) -> pa.RecordBatch:
    """Return the ledger rows of one part."""
    picks, size = np.random.default_rng([number, len(bucket)]), PART_ROWS
    scores = {
        f"{name}.{field.name}": column(name, field, size, picks)
        for name in SIDECARS
        for field in annotator(name).schema
    }
    compiled = compile_policy(policy, SIDECARS)
    fires = compiled.fires(scores, size)
    starts = np.concatenate([[0], np.cumsum(fires.sum(axis=0))]).astype(np.int32)
    fired = pa.ListArray.from_arrays(
        pa.array(starts), pa.array(compiled.reasons).take(pa.array(np.nonzero(fires.T)[1]))
    )
    dropped = fires.any(axis=0)
    reason = pa.array([compiled.reasons[first] for first in fires.argmax(axis=0)], mask=~dropped)
    ids = pa.array([f"{value:032x}" for value in picks.integers(0, 2**62, size)])
    sites = picks.zipf(1.4, size) % 100_000
    made: dict[str, Any] = {
        "id": ids, "cluster": ids, "fired": fired, "reason": reason, "bucket": [bucket] * size,
        "decision": np.where(dropped, "drop", "train"), "domain": [f"site{one}.example" for one in sites],
        "uri": [f"https://site{one}.example/{at}" for at, one in enumerate(sites)], "snapshot": ["2026-46"] * size,
        "licence": ["CC0-1.0"] * size, "mime": ["text/html"] * size, "source_bytes": picks.integers(1000, 90_000, size),
        "text_bytes": picks.integers(100, 50_000, size), "cluster_size": picks.integers(1, 4, size),
        "edits": [0] * size, "edited_characters": [0] * size, "tokens": picks.integers(30, 12_000, size),
    }  # fmt: skip
    schema = schema_of({name: annotator(name).schema for name in SIDECARS})
    columns = []
    for field in schema:
        sidecar, _, name = field.name.partition("__")
        value = made.get(field.name, scores.get(f"{sidecar}.{name}"))
        value = pa.nulls(size) if value is None or (isinstance(value, pa.ListArray) and name) else value
        columns.append((value if isinstance(value, pa.Array) else pa.array(value)).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cases() -> dict[str, list[str]]:
    """Addresses of each kind; each differs from all others."""
    low = [f"in.gopher_quality__word_count={500 + at}..{503 + at}" for at in range(REPEATS)]
    lists = ["decision=drop", "rule=too_few_words", "domain=site1.example", low[0], f"decision=train&{low[1]}"]
    number = [f"{50 + at}.5" for at in range(REPEATS)]
    return {
        "list": [f"/?{one}" for one in lists],
        "sorted": [f"/?sort=-language__score&{one}" for one in low],
        "what-if": [f"/whatif?policy=default&reason=too_few_words&t0={one}" for one in number],
    }


def measure(root: Path) -> dict[str, Any]:
    """Seconds and CPU seconds of the answers of a new server, the largest of each kind, and its peak memory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [
        sys.executable,
        "-m",
        "plinth_jobs.cli",
        "-w",
        str(root),
        "corpus",
        "page",
        "-r",
        "tiny",
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()

    def ask(path: str) -> tuple[float, float]:
        started, cpu = time.perf_counter(), of_process(process.pid)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=600) as answer:
            answer.read()
        return time.perf_counter() - started, of_process(process.pid) - cpu

    found: dict[str, Any] = {}
    try:
        while True:
            try:
                ask("/static/page.js")
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        found["first"] = ask("/")
        for name, paths in cases().items():
            answers = [ask(path) for path in paths]
            found[name] = tuple(max(values) for values in zip(*answers, strict=True))
        found["peak_mb"] = peak(process.pid)
    finally:
        process.terminate()
        process.wait()
    return found


def peak(pid: int) -> float:
    """Return the largest resident memory of a process in MB."""
    lines = Path(f"/proc/{psutil.Process(pid).pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--folder", type=Path, help="keep the workspaces here")
    given, result = parser.parse_args(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        for documents in given.documents:
            root = (given.folder or Path(folder)) / str(documents)
            if not (root / "refs" / "ledger.json").exists():
                build(root, documents)
            result[str(documents)] = found = measure(root)
            print(f"{documents:,} documents: peak {found.pop('peak_mb'):.0f} MB")
            for name, (wall, cpu) in found.items():
                print(f"  {name:<10}{wall:8.3f} s {cpu:8.2f} CPU s")
    RESULTS.write_text(json.dumps(result | {"load": os.getloadavg()[0]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
