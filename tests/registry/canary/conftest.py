"""Two lines of one release, a champion and a canary, whose held-out documents were measured and signed for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from plinth.compute.context import Context
from plinth.evaluation.slices import job
from plinth.evaluation.slices.tables import DOCUMENT_COLUMNS
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.trust.dsse import now
from plinth_registry import attestations, releases

#: Held-out documents of each bucket.
DOCUMENTS = 400


def documents(bits: Mapping[str, float], count: int = DOCUMENTS) -> pa.Table:
    """Return held-out documents of buckets with these bits per byte: the same text for every model, independent
    noise."""
    rows = []
    for bucket, level in bits.items():
        own, shared = np.random.default_rng([ord(bucket[0]), round(level * 1e4)]), np.random.default_rng(ord(bucket[0]))
        for at in range(count):
            size, hard = int(shared.integers(500, 5000)), shared.lognormal(0, 0.25)
            text = hashlib.sha256(f"{bucket} {at}".encode()).digest()[:16]
            noisy = level * hard * (1 + own.normal(0, 0.03))
            row = dict.fromkeys(DOCUMENT_COLUMNS.names, "same") | {"id": text, "text": text, "bucket": bucket}
            counts = {"bytes": size, "tokens": size // 4, "gzip_bits": 3.5 * size, "trigram_bits": 2.5 * size}
            rows.append({**row, **counts, "model_bits": float(size * noisy)})
    return pa.Table.from_pylist(rows, schema=DOCUMENT_COLUMNS)


def measured(line: Any, bits: Mapping[str, float], count: int = DOCUMENTS, signed: bool = True) -> Manifest:
    """The evaluation of a line's checkpoint, signed for by the evaluator or not."""
    table = documents(bits, count)
    part = write_table(line.ctx.store, "documents.parquet", table)
    inputs = {"checkpoint": line.checkpoint.digest, "web/curated": line.curated.digest}
    slices = {name: _rates(table.filter(pc.equal(table["bucket"], name))) for name in bits}
    made = Manifest(
        asset="evaluation", step="bpb", version="1", params={}, inputs=inputs, parts=(part,), stats={"slices": slices}
    )
    line.ctx.refs.save(made)
    if signed:
        attestations.attest_measurement(line.ctx, line.recipe, line.checkpoint.digest, made)
    return made


def _rates(own: pa.Table) -> dict[str, Any]:
    size = pc.sum(own["bytes"]).as_py()
    rates = {name: job.exact_sum(own[f"{name}_bits"].to_numpy()) / size for name in ("model", "gzip", "trigram")}
    return {"bytes": size, **{name: round(rate, 6) for name, rate in rates.items()}}


@pytest.fixture
def released(ctx: Context) -> Callable[..., None]:
    """Return a function that records a placement of a line's version, without MLflow."""

    def append(line: Any, action: str, version: str, previous: str | None = None) -> None:
        facts = {"goal": action, "model": line.recipe.release.name, "version": version, "previous": previous}
        known = {"candidate": {"checkpoint": line.checkpoint.digest}, "candidate_version": version}
        releases.append(ctx, action=action, by="ada", reason="test", at=now(), **facts, **known)

    return append


@pytest.fixture
def two(make_line: Callable[..., Any], released: Callable[..., None]) -> tuple[Any, Any]:
    """The champion, version 1, and the canary, version 2."""
    champion, canary = make_line(1), make_line(2)
    released(champion, "champion", "1")
    released(canary, "canary", "2", "1")
    return champion, canary
