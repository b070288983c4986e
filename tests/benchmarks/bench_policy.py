"""A policy again, on stored columns: documents per second.

Sidecars of made-up numbers (as spread as real ones: the most frequent rule drops a document in ten), the rules
and the edits of the default policy in the packaged recipe `base`, parts of as many documents as 128 MiB of web text.

    rules      the rules over columns in memory: keep, reason, every rule that fired; CPU time
    verdicts   the same, with edits, statistics and the verdicts as Arrow columns; CPU time
    stage      the whole stage: columns read from Parquet, verdicts written to Parquet, hashed and recorded; CPU time
    try        `plinth corpus policy try`, every rule changed in its text: columns read, judged and compared with what
    is
               published, nothing written; no document changes sides, so that nothing is read of the published verdicts
               (a changed side costs a look at them); CPU time of one thread, and the clock with a thread on every core
    try one    the same where one rule changed and what is stored of the others counts

    python tests/benchmarks/bench_policy.py [--documents 5000000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
import yaml  # noqa: E402

from plinth.compute.context import Context, manifest  # noqa: E402
from plinth.compute.engine import InlineEngine, Threads, cores  # noqa: E402
from plinth.corpus import verdicts  # noqa: E402
from plinth.corpus.annotate.base import annotator  # noqa: E402
from plinth.corpus.dedup import exact  # noqa: E402
from plinth.corpus.policy import policy, whatif  # noqa: E402
from plinth.corpus.policy.compiled_policy import compile_policy  # noqa: E402
from plinth.corpus.policy.parameters import Policy  # noqa: E402
from plinth.records import Manifest, Part, Step  # noqa: E402
from plinth.storage.parts import (  # noqa: E402
    DOCUMENT_SCHEMA,
    EDIT_TYPE,
    SCORE_GROUP_ROWS,
    iter_batches,
    write_batches,
)
from plinth.storage.workspace import Workspace  # noqa: E402
from tests.rights import MIT  # noqa: E402

BUCKET = "bench"
PART_ROWS = 50_000
REQUIRED = 5_000_000
REPEATS = 3
BASE = Path(__file__).parents[2] / "jobs" / "plinth_jobs" / "recipes" / "base.yaml"
SIDECARS = tuple(yaml.safe_load(BASE.read_text())["corpus"]["annotate"])
RESULTS = Path(__file__).parent / "results" / "policy.json"
#: Values that the rules let pass, by column; one document in a hundred gets another value.
USUAL = {
    "word_count": 500, "mean_word_characters": 5, "letter_words": 0.95, "stop_words": 6, "sentences": 20,
    "ended_lines": 0.6, "score": 0.97,
}  # fmt: skip
UNUSUAL = 0.01


def default_policy() -> Policy:
    """The policy of the base recipe."""
    recipe = yaml.safe_load(BASE.read_text())
    return Policy.model_validate(recipe["corpus"]["policies"]["default"])


def column(sidecar: str, field: pa.Field, rows: int, picks: np.random.Generator) -> pa.Array:
    """Made-up values of a sidecar's column."""
    odd = picks.random(rows) < UNUSUAL
    if sidecar == "opt_out":
        rare = odd & (picks.random(rows) < UNUSUAL)
        return pa.array(rare) if field.type == pa.bool_() else pa.nulls(rows, field.type)
    if sidecar == "fineweb2":  # of other languages than English
        return pa.array(picks.random(rows) * 40, mask=~odd).cast(field.type, safe=False)
    if pa.types.is_boolean(field.type):
        return pa.array(~odd)
    if field.type == EDIT_TYPE:
        starts = np.concatenate([[0], np.cumsum(np.where(odd, 2, 0))]).astype(np.int32)
        order = np.arange(starts[-1], dtype=np.int32)
        text = pa.array(["<EMAIL>"] * order.size)
        made = [pa.array(order * 7), pa.array(order * 7 + 5), text, text]
        values = pa.StructArray.from_arrays(made, fields=list(field.type.value_type))
        return pa.ListArray.from_arrays(pa.array(starts), values)
    if pa.types.is_string(field.type):
        return pa.array(["en", "de"]).take(pa.array(odd.astype(np.int8)))
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        usual = USUAL.get(field.name, 0)
        spread = picks.random(rows) * (usual or 0.01)
        values = np.where(odd, picks.random(rows) * 40, usual + spread * 0.02)
        return pa.array(values.astype(field.type.to_pandas_dtype()))
    return pa.nulls(rows, field.type)


def batches(sidecar: str, schema: pa.Schema, rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    picks = np.random.default_rng(seed)
    for start in range(0, rows, SCORE_GROUP_ROWS):
        size = min(rows - start, SCORE_GROUP_ROWS)
        yield pa.record_batch([column(sidecar, field, size, picks) for field in schema], schema=schema)


def documents(rows: int) -> Iterator[pa.RecordBatch]:
    """Documents of no text: a policy reads none."""
    for start in range(0, rows, SCORE_GROUP_ROWS):
        size = min(rows - start, SCORE_GROUP_ROWS)
        made = {
            "id": pa.array([b"\0" * 16] * size, pa.binary(16)),
            "source_bytes": pa.array(np.full(size, 5000), pa.int64()),
        }
        empty = {f.name: pa.array([""] * size, f.type) for f in DOCUMENT_SCHEMA if pa.types.is_large_string(f.type)}
        empty |= {f.name: pa.array([""] * size, f.type) for f in DOCUMENT_SCHEMA if pa.types.is_string(f.type)}
        columns = made | empty | {"licence": pa.array(["MIT"] * size)}
        yield pa.record_batch(
            [columns[f.name] if f.name in columns else pa.nulls(size, f.type) for f in DOCUMENT_SCHEMA],
            schema=DOCUMENT_SCHEMA,
        )


def build(ctx: Context, rows: int) -> tuple[Manifest, dict[str, Manifest]]:
    sizes = [min(PART_ROWS, rows - start) for start in range(0, rows, PART_ROWS)]

    def made(asset: str, write: Any) -> Manifest:
        parts: list[Part] = [write(f"part-{i:05d}.parquet", size, i) for i, size in enumerate(sizes)]
        return manifest(asset, Step(name="bench", version="1"), {}, parts)

    docs = made("bench/documents", lambda name, n, i: write_batches(ctx.store, name, DOCUMENT_SCHEMA, documents(n)))
    sides = {}
    for name in SIDECARS:
        schema = annotator(name).schema
        sides[name] = made(
            f"bench/{name}",
            lambda part, n, i, schema=schema, name=name: write_batches(
                ctx.store,
                part,
                schema,
                batches(name, schema, n, i * 100 + SIDECARS.index(name)),
                group_rows=SCORE_GROUP_ROWS,
            ),
        )
    return docs, sides


def seconds(work: Any) -> tuple[float, Any]:
    started = time.process_time()
    made = work()
    return time.process_time() - started, made


def in_memory(chosen: Policy, rows: int) -> dict[str, float]:
    """CPU seconds of the rules alone, and of the verdicts, over columns that are there."""
    compiled = compile_policy(chosen, SIDECARS)
    table: dict[str, list[pa.Array]] = {}
    for name in SIDECARS:
        schema = annotator(name).schema
        for batch in batches(name, schema, rows, SIDECARS.index(name)):
            for field, values in zip(schema, batch.columns, strict=True):
                table.setdefault(f"{name}.{field.name}", []).append(values)
    chunks = [{name: values[i] for name, values in table.items()} for i in range(len(next(iter(table.values()))))]
    for chunk in chunks:
        chunk["documents.source_bytes"] = pa.array(np.full(len(chunk["pii.key"]), 5000))

    def rules() -> None:
        for chunk in chunks:
            compiled.fires(chunk, len(chunk["pii.key"]))

    def verdicts() -> None:
        stats = policy._no_counts()
        for chunk in chunks:
            policy._judged(compiled, chunk, len(chunk["pii.key"]), stats)

    return {
        "rules": min(seconds(rules)[0] for _ in range(REPEATS)),
        "verdicts": min(seconds(verdicts)[0] for _ in range(REPEATS)),
    }


def filled(schema: pa.Schema, columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    """A batch with some columns given and the others of nulls or zeros."""
    for field in schema:
        if field.name not in columns:
            zero = [b"\0" * 16] if pa.types.is_fixed_size_binary(field.type) else [0]
            columns[field.name] = (
                pa.nulls(rows, field.type) if field.nullable else pa.array(zero * rows).cast(field.type)
            )
    return pa.record_batch([columns[field.name] for field in schema], schema=schema)


def published(ctx: Context, docs: Manifest, judged: Manifest, sides: dict[str, Manifest]) -> whatif.PublishedBucket:
    """Return published stages in which all documents that the policy keeps are used for training."""
    decided, lengths = [], []
    for number, part in enumerate(judged.parts):
        kept = [batch.column("keep") for batch in iter_batches(ctx.store, part, ["keep"])]
        decisions = [{"decision": pc.if_else(keep, "train", "drop")} for keep in kept]
        sizes = [{"text_bytes": pa.array(np.full(len(keep), 5000))} for keep in kept]
        for schema, rows, parts, stem in (
            (verdicts.SCHEMA, decisions, decided, ""), (exact.SCHEMA, sizes, lengths, f"{BUCKET}/")
        ):  # fmt: skip
            made = [filled(schema, one, len(keep)) for one, keep in zip(rows, kept, strict=True)]
            parts.append(write_batches(ctx.store, f"{stem}part-{number:05d}.parquet", schema, made))
    step = Step(name="bench", version="1")
    one, all_ = (manifest(*given) for given in (
        (f"{BUCKET}/verdicts", step, {}, decided, {"policy_reasons": {}}), ("dedup/exact", step, {}, lengths)
    ))  # fmt: skip
    return whatif.PublishedBucket(docs, judged, one, all_, sides)


def reworded(chosen: Policy, reasons: set[str]) -> Policy:
    """Rules of another text that say the same."""
    rules = [
        rule.model_copy(update={"drop": f"({rule.drop})"}) if rule.reason in reasons else rule for rule in chosen.rules
    ]
    return chosen.model_copy(update={"rules": tuple(rules)})


def tried(ctx: Context, bucket: whatif.PublishedBucket, new: Policy) -> tuple[float, float]:
    """Least CPU seconds on one thread, and least seconds of the clock on all cores."""

    def ask() -> None:
        found, _ = whatif.compare(ctx, {BUCKET: bucket}, {BUCKET: new}, MIT)
        assert found["total"]["kept"] == bucket.policy.stats["kept"]

    alone = min(seconds(ask)[0] for _ in range(REPEATS))
    ctx.engine, clock = Threads(cores()), []
    for _ in range(REPEATS):
        started = time.perf_counter()
        ask()
        clock.append(time.perf_counter() - started)
    ctx.engine = InlineEngine()
    return alone, min(clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=5_000_000)
    rows = parser.parse_args().documents
    chosen = default_policy()
    found = in_memory(chosen, rows)
    with tempfile.TemporaryDirectory() as folder:
        ctx = Context(Workspace(folder).ensure())
        docs, sides = build(ctx, rows)
        policy.run(ctx, BUCKET, Policy(rules=chosen.rules[:1]), docs, sides, MIT)  # imports and caches
        found["stage"], made = seconds(lambda: policy.run(ctx, BUCKET, chosen, docs, sides, MIT))
        bucket, every = published(ctx, docs, made, sides), {rule.reason for rule in chosen.rules}
        for name, reasons in (("try", every), ("try one", {"too_few_words"})):
            found[name], found[f"{name}, {cores()} cores"] = tried(ctx, bucket, reworded(chosen, reasons))
    speeds = {name: rows / value for name, value in found.items()}
    for name, speed in speeds.items():
        print(f"{name:<18}{speed / 1e6:8.2f} M documents/s")
    stats = made.stats
    print(f"{rows} documents, {len(chosen.rules)} rules, {stats['kept']} kept, required: {REQUIRED / 1e6} M/s")
    result = {
        "documents": rows,
        "rules": len(chosen.rules),
        "kept": stats["kept"],
        "documents_per_s": speeds,
        "load": os.getloadavg()[0],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
