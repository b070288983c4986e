"""The asset `evaluation`: bits per byte of a checkpoint on every held-out slice, beside two baselines.

The model runs in a child process, so that the caller never imports torch and no crash takes it along.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import plinth
from plinth.compute import stage
from plinth.compute.context import Context
from plinth.compute.progress import Meter
from plinth.compute.threads import cores
from plinth.errors import CheckpointError, TrainingError
from plinth.evaluation import items, slices, tables
from plinth.evaluation.items import ScoredItem
from plinth.evaluation.parameters import Evaluation
from plinth.evaluation.slices import Document
from plinth.model.hugging_face import REQUIRED_FILES
from plinth.records import Manifest, Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.checkout import checkout
from plinth.tokens.tokenizer.sample import sample, sampled_texts

if TYPE_CHECKING:
    from plinth.evaluation.baselines import Trigram

ASSET = "evaluation"
VERSION = "1"

#: Training text that the trigram baseline is trained on, shared evenly by the buckets; chosen by hash of id.
TRIGRAM_BYTES = 64 * 2**20

TAIL_LINES = 25


def run(
    ctx: Context,
    params: Evaluation,
    checkpoint: Manifest,
    curated: Mapping[str, Manifest],
    documents: Mapping[str, Manifest] | None = None,
    language: Mapping[str, Manifest] | None = None,
    *,
    column: str = "label",
    protected: Manifest | None = None,
    sets: Mapping[str, Manifest] | None = None,
) -> Manifest:
    """Measure a checkpoint; part `documents.parquet` has a row per held-out document (`tables.DOCUMENTS`).

    With the comparison with protected sets and the sets by name, part `items.parquet` has a row per item that was
    measured (`tables.ITEMS`), and the stat `protected` the same numbers by set and status; `overall` is without them.

    Stats: `slices` (bucket -> bytes, documents, tokens, and bits per byte of model, gzip and trigram),
    `languages` (the same for `bucket/language`, in buckets that hold several), `overall`,
    `trigram_bytes` (text the trigram was trained on). Languages need both `documents` and `language`.

    Raises:
        CheckpointError: the checkpoint lacks a file that is needed.
        StageError: a bucket has no held-out text.
        TrainingError: the model could not be evaluated, with the end of its log.
    """
    files = _files(checkpoint)
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json") | {"column": column})
    inputs: dict[str, Manifest] = {"checkpoint": checkpoint}
    inputs |= {f"{bucket}/curated": made for bucket, made in sorted(curated.items())}
    if documents is not None and language is not None:
        inputs |= {f"{bucket}/documents": made for bucket, made in sorted(documents.items())}
        inputs |= {f"{bucket}/language": made for bucket, made in sorted(language.items())}
    if protected is not None and sets:
        inputs |= {"protected": protected} | {f"protected/{name}": made for name, made in sorted(sets.items())}
    key = step.key([each.digest for each in inputs.values()])
    parts = ctx.cache.get(key)
    if parts is None:
        chosen = slices.choose(ctx.store, curated, params.max_bytes_per_slice)
        if documents is not None and language is not None:
            chosen = slices.with_languages(ctx, chosen, documents, language, column)
        asked = items.choose(ctx.store, protected, sets, params.max_bytes_per_slice) if protected and sets else []
        trigram = _trigram(ctx, curated)
        tokens, bits = _model(ctx, files, [*chosen, *asked], params)
        parts = (tables.documents(ctx, chosen, tokens[: len(chosen)], bits[: len(chosen)], trigram),)
        if asked:
            parts = (*parts, tables.items(ctx, asked, tokens[len(chosen) :], bits[len(chosen) :], trigram))
        ctx.cache.put(key, parts)
    stats = tables.totals(ctx, parts[0])
    stats |= {"protected": tables.by_status(ctx, parts[1])} if len(parts) > 1 else {}
    return stage.manifest(ASSET, step, inputs, parts, stats)


def _files(checkpoint: Manifest) -> tuple[Part, ...]:
    found = {part.name: part for part in checkpoint.parts}
    lacking = [name for name in REQUIRED_FILES if name not in found]
    if lacking:
        raise CheckpointError(
            f"checkpoint {checkpoint.digest[:12]} cannot be evaluated",
            found=f"no {', '.join(lacking)} among {sorted(found)}",
            expected=", ".join(REQUIRED_FILES),
            remedy="make the checkpoint again: `plinth run --select checkpoint`",
        )
    return tuple(found[name] for name in REQUIRED_FILES)


def _trigram(ctx: Context, curated: Mapping[str, Manifest]) -> Trigram:
    from plinth.evaluation.baselines import Trigram  # numba is slow to import

    model = Trigram()
    for sampled in sample(ctx, curated, TRIGRAM_BYTES, f"{ASSET}: trigram"):
        model.train(text.encode() for text in sampled_texts(ctx.store, sampled))
    return model


def _model(
    ctx: Context, files: Sequence[Part], chosen: Sequence[Document | ScoredItem], params: Evaluation
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tokens and total bits of each document, from the child."""
    with named_failures(ctx.workspace.tmp):
        ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="evaluation-", dir=ctx.workspace.tmp) as name:
        folder = Path(name)
        checkout(ctx.store, files, folder / "model")
        pq.write_table(
            pa.table({"text": pa.array([each.text for each in chosen], pa.large_string())}), folder / "texts"
        )
        config = {
            "model": str(folder / "model"),
            "documents": str(folder / "texts"),
            "scores": str(folder / "scores"),
            "batch_sequences": params.batch_sequences,
            "workers": cores(),
        }
        (folder / "config.json").write_text(json.dumps(config))
        _child(ctx, folder)
        scores = pq.read_table(folder / "scores")
    tokens, bits = scores["tokens"].to_numpy(), scores["bits"].to_numpy()
    if len(bits) != len(chosen) or not np.isfinite(bits).all():
        raise TrainingError(
            "the evaluation gave no score for some documents",
            found=f"{int(np.isfinite(bits).sum())} scores",
            expected=f"{len(chosen)}, one for each document",
        )
    return tokens, bits


def _child(ctx: Context, folder: Path) -> None:
    """Run the child and relay its progress.

    Raises:
        TrainingError: it failed, with the end of its log.
    """
    root = str(Path(plinth.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "plinth.evaluation", str(folder / "config.json")]
    log = folder / "log"
    with log.open("wb") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        try:
            assert child.stdout is not None
            _relay(ctx, child.stdout)
            code = child.wait()
        finally:
            child.kill()
            child.wait()
    if code or not (folder / "scores").exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        raise TrainingError(
            "the checkpoint could not be evaluated",
            found=f"exit code {code}\n{tail}",
            expected="a score for every held-out document",
            remedy="correct the cause above and run the same command again",
        )


def _relay(ctx: Context, lines: IO[str]) -> None:
    """Progress of the child, in tokens; the first line has the total."""
    first = next((found for found in map(_progress, lines) if found), None)
    if first is None:
        return
    done, total = first
    with ctx.progress.meter(ASSET, total) as meter:
        meter.advance(done)
        _advance(meter, done, lines)


def _advance(meter: Meter, done: int, lines: Iterable[str]) -> None:
    for line in lines:
        found = _progress(line)
        if found:
            meter.advance(found[0] - done)
            done = found[0]


def _progress(line: str) -> tuple[int, int] | None:
    """The progress in a line, if it has any; libraries may print other things."""
    try:
        content = json.loads(line)
        return int(content["done"]), int(content["total"])
    except (ValueError, KeyError, TypeError):
        return None
