"""Tokenize and shard a corpus on one core, compared with the bare library and datatrove's tokenizer stage.

    python tests/benchmarks/bench_tokenize.py [--megabytes 200] [--vocabulary 16384] [--rounds 3]

The documents are source and text files of this machine. Each round runs all three, so that they meet the same
machine; the best of the rounds counts. Seconds are of CPU time, of all processes. Bare is `encode_batch` of the
tokenizers library over every eighth text: it reads and writes nothing. Ours and datatrove's read files and write shards
with an index; process start-up is counted. Writes tests/benchmarks/results/tokenize.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench_minhash import megabytes, real_documents
from cpu import with_children

from plinth.compute.context import Context, manifest
from plinth.compute.engine import LocalEngine
from plinth.records import Manifest, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import encode, tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters

RESULTS = Path(__file__).parent / "results" / "tokenize.json"
CORES = 1
#: Parts of about the size that a recipe makes.
PARTS = 2
REQUIRED_MB_PER_S, REQUIRED_OF_DATATROVE = 50.0, 12.0


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=float, default=200)
    options.add_argument("--vocabulary", type=int, default=16384)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    texts = real_documents(given.megabytes)
    size = megabytes(texts)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ctx = Context(Workspace(home / "workspace").ensure())
        curated = _curated(ctx, texts)
        params = TokenizerParameters(vocab_size=given.vocabulary, sample_bytes=8 * 2**20)
        trained = tokenizer.run(ctx, params, {"bench": curated})
        (home / "tokenizer.json").write_text(tokenizer.load(ctx.store, trained).to_str())
        _write_jsonl(home / "documents", texts)
        for number in range(given.rounds):
            for name, run in _contestants(home, ctx, trained, curated, texts[::8], number).items():
                done = megabytes(texts[::8]) if name == "bare" else size
                speed = done / with_children(run)
                best[name] = max(best.get(name, 0.0), speed)
                print(f"round {number}: {name:<10} {speed:8.2f} MB/s", flush=True)
    _report(best, size, len(texts), given.vocabulary)


def _contestants(
    home: Path, ctx: Context, trained: Manifest, curated: Manifest, texts: Sequence[str], number: int
) -> dict[str, Callable[[], Any]]:
    bare = tokenizer.load(ctx.store, trained)
    fresh = Context(Workspace(home / f"ours-{number}").ensure())  # nothing of an earlier round is found again
    for part in (*trained.parts, *curated.parts):
        fresh.store.put_file(_copy(ctx.store.open_path(part.blob), home / "copy"))

    def ours() -> None:
        with LocalEngine(CORES) as engine:
            shards.run(Context(fresh.workspace, engine), "bench", Shards(tokens_per_shard=2**22), trained, curated)

    def library() -> None:
        with encode.parallel(True):
            for first in range(0, len(texts), 1000):
                bare.encode_batch(texts[first : first + 1000], add_special_tokens=False)

    def datatrove() -> None:
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.tokens import DocumentTokenizer

        out = home / f"datatrove-{number}"
        stage = DocumentTokenizer(
            str(out / "tokens"),
            str(home / "tokenizer.json"),
            eos_token="<|endoftext|>",
            shuffle_documents=False,
            local_working_dir=str(out / "work"),
        )
        reader = JsonlReader(str(home / "documents"), doc_progress=False)
        LocalPipelineExecutor([reader, stage], tasks=PARTS, workers=CORES, logging_dir=str(out / "log")).run()

    return {"plinth": ours, "bare": library, "datatrove": datatrove}


def _copy(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes())
    return target


def _curated(ctx: Context, texts: Sequence[str]) -> Manifest:
    parts = []
    for number in range(PARTS):
        rows = [
            {"id": index.to_bytes(16, "big"), "text": text, "uri": f"file:{index}", "captured_at": None}
            | {"snapshot": "s", "licence": "MIT", "mime": "text/plain", "source_bytes": len(text), "extra": "{}"}
            for index, text in enumerate(texts)
            if index % PARTS == number
        ]
        parts.append(
            write_table(ctx.store, f"part-{number:05d}.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
        )
    return manifest("bench/curated", Step(name="bench", version="1"), {}, parts, {})


def _write_jsonl(folder: Path, texts: Sequence[str]) -> None:
    folder.mkdir()
    for number in range(PARTS):
        lines = (json.dumps({"text": text, "id": str(i)}) for i, text in enumerate(texts) if i % PARTS == number)
        (folder / f"{number:05d}.jsonl").write_text("\n".join(lines) + "\n")


def _report(best: dict[str, float], size: float, documents: int, vocabulary: int) -> None:
    of_bare, of_datatrove = best["plinth"] / best["bare"], best["plinth"] / best["datatrove"]
    result = {
        "megabytes": round(size, 1),
        "documents": documents,
        "vocabulary": vocabulary,
        "cores": CORES,
        "mb_per_s": {name: round(speed, 2) for name, speed in best.items()},
        "of_bare": round(of_bare, 3),
        "of_datatrove": round(of_datatrove, 2),
        "load_average": round(os.getloadavg()[0], 1),
        "versions": {name: importlib.metadata.version(name) for name in ("tokenizers", "gigatoken", "datatrove")},
        "command": "python tests/benchmarks/bench_tokenize.py",
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(f"MB/s:                 {best['plinth']:.1f} (at least {REQUIRED_MB_PER_S} asked)")
    print(f"of bare encode_batch: {of_bare:.2f}")
    print(f"of datatrove:         {of_datatrove:.2f} (at least {REQUIRED_OF_DATATROVE} asked)")


if __name__ == "__main__":
    main()
