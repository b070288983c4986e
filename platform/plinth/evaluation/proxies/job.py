"""The asset `proxies`: what a checkpoint writes to generated items, and which answers it thinks likely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.compute import stage
from plinth.compute.context import Context
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling
from plinth.evaluation.proxies.checks import END, passes
from plinth.evaluation.proxies.families import Proxy, proxies
from plinth.evaluation.proxies.parameters import Proxies
from plinth.evaluation.statistics import Estimate, mean, ratio, share
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import write_table

ASSET = "proxies"
VERSION = "2"

#: A row per item: `passed` says whether the model's own answer passes, `bits` and `broken_bits` are the -log2 p of the
#: right and of the broken answer, which have `bytes` each.
ITEMS = pa.schema(
    [
        pa.field("family", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("output", pa.string(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("broken_bits", pa.float64(), nullable=False),
    ]
)

Rows = Sequence[Mapping[str, Any]]


def run(ctx: Context, params: Proxies, checkpoint: Manifest) -> Manifest:
    """Ask a checkpoint every item; one part with `ITEMS`.

    Stats: `families` (family -> `passed`, `prefers`, `margin` in bits, `bits_per_byte`, each with interval and n),
    `overall` (the same), `seed`.

    Raises:
        CheckpointError, TrainingError: the checkpoint cannot be loaded or evaluated.
    """
    libraries = fingerprint.libraries("jsonschema")
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"), libraries=libraries)

    def made() -> list[Part]:
        asked = proxies(params.items, params.seed)
        with ModelEngine.of(ctx, checkpoint, label=ASSET) as engine:
            rows = answered(engine, asked, params.max_tokens)
        table = pa.Table.from_pylist(rows, schema=ITEMS)
        return [write_table(ctx.store, "items.parquet", table, stats=summary(rows, params.seed))]

    parts = stage.cached(ctx, step, [checkpoint], made)
    return stage.manifest(ASSET, step, {"checkpoint": checkpoint}, parts, parts[0].stats)


def answered(engine: ModelEngine, asked: Sequence[Proxy], max_tokens: int) -> list[dict[str, Any]]:
    """Rows of `ITEMS`, in the order of the items."""
    pairs = [Request(one.prompt, answer) for one in asked for answer in (one.answer + END, one.broken + END)]
    bits = engine.likelihoods(pairs).bits.reshape(-1, 2)
    written = engine.generate([one.prompt for one in asked], Sampling(max_tokens=max_tokens, stop=(END,)))
    return [
        {
            "family": one.family,
            "number": one.number,
            "prompt": one.prompt,
            "answer": one.answer,
            "output": found.text,
            "passed": passes(one.check, one.asked, found.text),
            "bytes": len((one.answer + END).encode()),
            "bits": float(right),
            "broken_bits": float(broken),
        }
        for one, found, (right, broken) in zip(asked, written, bits, strict=True)
    ]


def summary(rows: Rows, seed: int) -> dict[str, Any]:
    """Estimates by family and of all."""
    families = sorted({row["family"] for row in rows})
    found = {family: _estimates([row for row in rows if row["family"] == family], seed) for family in families}
    return {"families": found, "overall": _estimates(rows, seed), "seed": seed}


def _estimates(rows: Rows, seed: int) -> dict[str, Any]:
    margins = [row["broken_bits"] - row["bits"] for row in rows]
    made: dict[str, Callable[[], Estimate]] = {
        "passed": lambda: share(sum(row["passed"] for row in rows), len(rows)),
        "prefers": lambda: share(sum(margin > 0 for margin in margins), len(rows)),
        "margin": lambda: mean(margins),
        "bits_per_byte": lambda: ratio([row["bits"] for row in rows], [row["bytes"] for row in rows], seed=seed),
    }
    return {name: make().model_dump(mode="json") for name, make in made.items()}
