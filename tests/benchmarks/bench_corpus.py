"""Whole documents to verdicts: MB of text per second of one core by stage, and peak memory at 1x and 10x.

Parquet to Parquet: language, heuristics, PII and license in one reading, policy (the base recipe's for code, which
keeps most of these documents), exact and near deduplication, verdicts; holdout, contamination and curation are
measured separately. One process over parts of real documents. Each corpus is written by one process and measured
in another, so that the memory of the measured process is used by the stages alone.

    python tests/benchmarks/bench_corpus.py [--megabytes 8] [--times 10] [--part-megabytes 4] [--no-annotators]

Parts are small, so that memory shows; the speed is that of parts of the recipe's default size, in the last row.
`--no-annotators` measures from the policy on, over synthetic documents; the memory tests use `--phase`.
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from plinth.compute.context import Context, manifest
from plinth.corpus import curate, verdicts
from plinth.corpus.dedup import exact
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.protected import contamination, holdout
from plinth.corpus.protected.parameters import Contamination, Holdout
from plinth.corpus.sources.parameters import Documents
from plinth.records import Manifest, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, EDIT_TYPE, write_table
from plinth.storage.workspace import Workspace
from tests.rights import MIT

BUCKET = "bench"
PART_MEGABYTES = 4.0
RECIPE_PART_MEGABYTES = Documents().part_bytes / 1e6
#: Reduce ranges small enough that a corpus of a few parts already fills one.
RANGE_ROWS = 50_000
ANNOTATORS = ("language", "gopher_quality", "gopher_repetition", "c4", "fineweb", "licence", "pii")
BASE = Path(__file__).parents[2] / "jobs" / "plinth_jobs" / "recipes" / "base.yaml"
#: Stages that the figure of documents to verdicts covers.
TO_VERDICTS = ("annotators", "policy", "dedup/exact", "minhash", "dedup/minhash", "verdicts")
REQUIRED_MB_PER_S = 20
RESULTS = Path(__file__).parent / "results" / "corpus.json"


def real_texts(megabytes: float) -> list[str]:
    from bench_minhash import real_documents

    return real_documents(megabytes)


def synthetic_texts(megabytes: float) -> Iterator[str]:
    """Documents of 2 KB of words; one in ten is an earlier one again, one in ten an earlier one but for its end."""
    picks, made, recent = random.Random(1), 0.0, [["seed"]]
    while made < megabytes * 1e6:
        kind = picks.randrange(10)
        words = [f"{picks.randrange(50_000):x}" for _ in range(400)] if kind > 1 else list(picks.choice(recent))
        if kind == 1:
            words[-3:] = [f"{picks.randrange(50_000):x}" for _ in range(3)]
        recent = [*recent[-50:], words]
        yield " ".join(words)
        made += 5 * len(words)


def build(workspace: Path, texts: Iterable[str], part_megabytes: float = PART_MEGABYTES) -> None:
    """Write documents as parts, and a policy that keeps everything."""
    ctx = Context(Workspace(workspace).ensure())
    parts, policies, waiting, size = [], [], [], 0.0

    def flush() -> None:
        name = f"part-{len(parts):05d}.parquet"
        parts.append(write_table(ctx.store, name, _documents(waiting, len(parts))))
        policies.append(write_table(ctx.store, name, _keep_all(len(waiting))))
        waiting.clear()

    total = 0
    for text in texts:
        waiting.append(text)
        length = len(text.encode())
        size, total = size + length, total + length
        if size >= part_megabytes * 1e6:
            flush()
            size = 0.0
    if waiting:
        flush()
    step = Step(name="bench", version="1")
    stats = {"text_bytes": total, "documents": sum(part.rows for part in parts), "rejects": {}}
    for asset, made in ((f"{BUCKET}/documents", parts), (f"{BUCKET}/policy", policies)):
        ctx.refs.publish(manifest(asset, step, {}, made, stats), "bench")


def _documents(texts: list[str], part: int) -> pa.Table:
    count = len(texts)
    ids = [hashlib.sha256(b"%d %d" % (part, i)).digest()[:16] for i in range(count)]
    columns = {
        "id": ids,
        "text": texts,
        "uri": ["bench:"] * count,
        "captured_at": [None] * count,
        "snapshot": ["2026-46"] * count,
        "licence": ["MIT"] * count,
        "mime": ["text/plain"] * count,
        "source_bytes": [len(text) for text in texts],
        "extra": ["{}"] * count,
    }
    return pa.table(columns, schema=DOCUMENT_SCHEMA)


def _keep_all(count: int) -> pa.Table:
    schema = pa.schema(
        [("keep", pa.bool_()), ("reason", pa.string()), ("fired", pa.list_(pa.string())), ("edits", EDIT_TYPE)]
    )
    columns = {"keep": [True] * count, "reason": [None] * count, "fired": [[]] * count, "edits": [[]] * count}
    return pa.table(columns, schema=schema)


def line(ctx: Context, annotators: bool, clock: Callable[[str, Callable[[], Any]], Any]) -> dict[str, Manifest]:
    """All stages in order; `clock(name, work)` runs each."""
    documents = {BUCKET: ctx.refs.current(f"{BUCKET}/documents")}
    mine, policies = documents[BUCKET], {BUCKET: ctx.refs.current(f"{BUCKET}/policy")}
    if annotators:
        from plinth.corpus.policy import policy

        sides = clock("annotators", lambda: _annotated(ctx, mine))
        rules = Policy.model_validate(yaml.safe_load(BASE.read_text())["corpus"]["policies"]["code"])
        policies = {BUCKET: clock("policy", lambda: policy.run(ctx, BUCKET, rules, mine, sides, MIT))}
    dedup = Dedup()
    same = clock("dedup/exact", lambda: exact.run(ctx, dedup, documents, policies, range_rows=RANGE_ROWS))
    signed = {BUCKET: clock("minhash", lambda: minhash.signatures(ctx, BUCKET, dedup.minhash, mine))}
    near = clock("dedup/minhash", lambda: minhash.run(ctx, dedup, documents, signed, same, range_rows=RANGE_ROWS))
    held = clock("holdout", lambda: holdout.run(ctx, Holdout(max_documents=20), documents, near))
    leaks = clock("contamination", lambda: contamination.run(ctx, Contamination(), documents, near, held))
    judged = clock("verdicts", lambda: verdicts.run(ctx, BUCKET, mine, policies[BUCKET], same, near, held, leaks))
    curated = clock("curated", lambda: curate.run(ctx, BUCKET, mine, judged, MIT))
    return {"verdicts": judged, "curated": curated, "contamination": leaks, "near": near}


def _annotated(ctx: Context, documents: Manifest) -> dict[str, Manifest]:
    """All annotators; the first one asked for makes the sidecars of all in one reading."""
    from plinth.corpus import annotate

    given = yaml.safe_load(BASE.read_text())["corpus"]["annotate"]
    raw = {name: {"permitted": ["MIT"]} if name == "licence" else given[name] for name in ANNOTATORS}
    made: dict[str, Manifest] = {}
    for name in ANNOTATORS:
        made[name] = annotate.run(ctx, BUCKET, name, raw[name], documents, beside=raw, sidecars=made)
    return made


def measure(workspace: Path, annotators: bool) -> dict[str, Any]:
    """CPU seconds and MB/s by stage, and the peak memory of this process."""
    with tempfile.TemporaryDirectory() as folder:  # imports and compiled kernels are loaded before the clock starts
        build(Path(folder), synthetic_texts(0.02))
        line(Context(Workspace(folder)), annotators, lambda name, work: work())
    ctx = Context(Workspace(workspace))
    size = ctx.refs.current(f"{BUCKET}/documents").stats["text_bytes"] / 1e6
    seconds: dict[str, float] = {}

    def clock(name: str, work: Callable[[], Any]) -> Any:
        started = time.process_time()
        made = work()
        seconds[name] = time.process_time() - started
        return made

    made = line(ctx, annotators, clock)
    through = sum(seconds[name] for name in TO_VERDICTS if name in seconds)
    return {
        "megabytes": size,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": seconds,
        "mb_per_s": size / through,
        "mb_per_s_with_the_rest": size / sum(seconds.values()),
        "decisions": made["verdicts"].stats["decisions"],
        "reasons": made["verdicts"].stats["reasons"],
    }


def apart(megabytes: float, part_megabytes: float, annotators: bool) -> dict[str, Any]:
    """Build in one process, measure in another."""
    flags = [] if annotators else ["--no-annotators"]
    with tempfile.TemporaryDirectory() as folder:
        for verb in ("build", "measure"):
            command = [sys.executable, __file__, "--phase", verb, "--workspace", folder, "--megabytes", str(megabytes)]
            command += ["--part-megabytes", str(part_megabytes)]
            done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--part-megabytes", type=float, default=PART_MEGABYTES)
    parser.add_argument("--no-annotators", action="store_true")
    parser.add_argument("--synthetic", action="store_true", help="Documents all of one size.")
    parser.add_argument("--phase", choices=("build", "measure"))
    parser.add_argument("--workspace", type=Path)
    options = parser.parse_args()
    annotators = not options.no_annotators
    if options.phase == "build":
        texts = (real_texts if annotators and not options.synthetic else synthetic_texts)(options.megabytes)
        build(options.workspace, texts, options.part_megabytes)
        return
    if options.phase == "measure":
        print(json.dumps(measure(options.workspace, annotators)))
        return
    most = options.megabytes * options.times
    sizes = ((options.megabytes, options.part_megabytes), (most, options.part_megabytes), (most, RECIPE_PART_MEGABYTES))
    rows = [apart(*size, annotators) | {"part_megabytes": size[1]} for size in sizes]
    for row in rows:
        speed = f"{row['megabytes']:8.1f} MB in parts of {row['part_megabytes']:.0f} MB"
        speed += f"  {row['mb_per_s']:6.1f} MB/s per core (required: {REQUIRED_MB_PER_S})"
        print(f"{speed}  {row['mb_per_s_with_the_rest']:.1f} with the rest  peak {row['peak_mb']:.0f} MB")
    for name, seconds in rows[-1]["seconds"].items():
        print(f"  {name:<20}{rows[-1]['megabytes'] / seconds:9.1f} MB/s{'' if name in TO_VERDICTS else '  (beside)'}")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
