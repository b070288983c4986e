"""Classifiers per core: training and inference on real documents, compared with fastText's predict on the same text.

Programs of this machine against its texts (documentation, read-me files, licenses): AUC, calibration error and MB/s
of the first stage, of both stages, of the tagger and of the lexicon. The peer is fastText's own C++ predict (the
`fasttext` bindings) on a supervised model of the same shape: word bigrams hashed into the same number of rows, two
labels, rows of 16 (and 100, fastText's default) random numbers; its speed does not depend on their values. It is given
each text on one line, as it needs, outside the clock. MB are of UTF-8 text, seconds are of CPU time, best of several
runs.

    python tests/benchmarks/bench_classifier.py [--megabytes 20] [--peer-megabytes 4]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from cpu import best  # noqa: E402

from plinth.compute.context import Context, manifest  # noqa: E402
from plinth.corpus import models  # noqa: E402
from plinth.corpus.annotate import learned  # noqa: E402
from plinth.corpus.annotate.external import BATCH_ROWS  # noqa: E402
from plinth.corpus.slices import generate  # noqa: E402
from plinth.records import Manifest, Step  # noqa: E402
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table  # noqa: E402
from plinth.storage.workspace import Workspace  # noqa: E402
from plinth_text.terms import TermTable  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "classifier.json"
BITS = 20
REQUIRED = 40.0
KINDS = {"code": ("*.py",), "texts": ("*.txt", "*.md", "*.rst")}


def documents(kind: str, megabytes: float) -> list[str]:
    """Files of this machine, in an order that their contents give, without copies."""
    roots = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")), Path("/usr/share/doc")]
    found: dict[bytes, str] = {}
    paths = sorted({path for root in roots for suffix in KINDS[kind] for path in root.rglob(suffix)})
    for path in paths:
        if path.is_file() and 500 <= path.stat().st_size <= 100_000:
            data = path.read_bytes()
            found[hashlib.md5(data).digest()] = data.decode("utf-8", "replace")
    texts, total = [], 0
    for key in sorted(found):
        texts.append(found[key])
        total += len(found[key].encode())
        if total > megabytes * 1e6:
            break
    return texts


def bucket(ctx: Context, name: str, texts: Sequence[str]) -> Manifest:
    size = len(texts)
    columns = {
        "id": [hashlib.sha256(text.encode()).digest()[:16] for text in texts],
        "text": texts,
        "uri": [f"{name}/{at}" for at in range(size)],
        "captured_at": [None] * size,
        "snapshot": [""] * size,
        "licence": ["MIT"] * size,
        "mime": ["text/plain"] * size,
        "source_bytes": [0] * size,
        "extra": ["{}"] * size,
    }
    part = write_table(ctx.store, "part-00000.parquet", pa.table(columns, schema=DOCUMENT_SCHEMA))
    return manifest(f"{name}/documents", Step(name="bench", version="1"), {}, [part])


def fasttext_model(path: Path, dim: int, words: Sequence[str], rows: int) -> Path:
    """A supervised model in fastText's format (version 12): bigrams, two labels, softmax, random numbers."""
    rng = np.random.default_rng(0)
    args = struct.pack("<12id", dim, 5, 5, 1, 5, 2, 3, 3, rows, 0, 0, 100, 1e-4)
    entries = b"".join(word.encode() + b"\0" + struct.pack("<qb", 1, 0) for word in ("</s>", *words))
    entries += b"".join(f"__label__{label}".encode() + b"\0" + struct.pack("<qb", 1, 1) for label in ("a", "b"))
    count = len(words) + 1
    with path.open("wb") as out:
        out.write(struct.pack("<ii", 793712314, 12) + args)
        out.write(struct.pack("<iiiqq", count + 2, count, 2, 10**6, -1) + entries)
        for height in (count + rows, 2):
            out.write(struct.pack("<?qq", False, height, dim))
            out.write(rng.normal(size=(height, dim)).astype("<f4").tobytes())
    return path


def peer(texts: Sequence[str], dim: int) -> float:
    """Seconds of fastText's predict on single lines."""
    import fasttext

    lines = [" ".join(text.split()) for text in texts]
    common: dict[str, int] = {}
    for line in lines:
        for word in line.split(" "):
            if word:
                common[word] = common.get(word, 0) + 1
    words = sorted(common, key=lambda word: (-common[word], word))[:50_000]
    with tempfile.TemporaryDirectory() as folder:
        model = fasttext.load_model(str(fasttext_model(Path(folder) / "model.bin", dim, words, 1 << BITS)))
        return best(lambda: [model.predict(line) for line in lines])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    ctx = Context(Workspace(tempfile.mkdtemp()).ensure())
    texts = {kind: documents(kind, options.megabytes / 2) for kind in KINDS}
    made = {kind: bucket(ctx, kind, some) for kind, some in texts.items()}
    result: dict[str, Any] = {"documents": {kind: len(some) for kind, some in texts.items()}}
    raws = {
        "quality": {"kind": "classifier", "reference": ["texts"], "random": ["code"]},
        "domain": {"kind": "tagger", "labels": {"code": ["code"], "texts": ["texts"]}},
    }
    trained = {}
    for model_name, raw in raws.items():
        started = time.process_time()
        trained[model_name] = models.train(ctx, model_name, raw, made, {})
        seconds = time.process_time() - started
        stats = trained[model_name].stats
        keep = ("auc", "average_precision", "brier", "ece", "final_auc", "final_ece", "border_share", "second_stage",
                "accuracy", "worst_auc")  # fmt: skip
        result[model_name] = {key: stats[key] for key in keep if key in stats} | {"train_cpu_s": seconds}
        print(model_name, json.dumps(result[model_name]))
    every = texts["code"] + texts["texts"]
    size = sum(len(text.encode()) for text in every) / 1e6
    batches = pa.table({"text": pa.array(every, pa.large_string())}).to_batches(max_chunksize=BATCH_ROWS)
    files = {f"models/{key}": {p.name: ctx.store.open_path(p.blob) for p in one.parts} for key, one in trained.items()}
    quality = learned.prepare_quality_classifier(learned.QualityClassifierParams(), files)
    tagger = learned.prepare_domain(learned.DomainParams(), files)
    terms = TermTable([term.text for term in generate.invented(0, 2000)])
    works: dict[str, Callable[[pa.RecordBatch], Any]] = {
        "first stage": lambda batch: quality[1].probabilities(batch.column("text")),
        "quality_classifier": lambda batch: learned.annotate_quality_classifier(batch, quality),
        "domain": lambda batch: learned.annotate_domain(batch, tagger),
        "lexicon": lambda batch: terms.find(batch.column("text"), obfuscated=False),
        "lexicon, obfuscated too": lambda batch: terms.find(batch.column("text")),
    }
    speeds = {}
    for label, work in works.items():
        work(batches[0].slice(0, 2))
        speeds[label] = size / best(lambda work=work: [work(batch) for batch in batches])  # type: ignore[misc]
    small = every[:: max(1, int(size / options.peer_megabytes))]
    small_size = sum(len(text.encode()) for text in small) / 1e6
    for dim in (16, 100):
        speeds[f"fastText predict, {dim} dimensions"] = small_size / peer(small, dim)
    result |= {"megabytes": size, "peer_megabytes": small_size, "mb_per_s": speeds, "required": REQUIRED}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--peer-megabytes", type=float, default=4.0)
    result = measure(parser.parse_args())
    speeds = result["mb_per_s"]
    for label, speed in speeds.items():
        print(f"{label:<36}{speed:10.1f} MB/s")
    ratio = speeds["first stage"] / speeds["fastText predict, 16 dimensions"]
    print(f"first stage: {ratio:.0f} times fastText's predict; required {REQUIRED:.0f} MB/s")
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
