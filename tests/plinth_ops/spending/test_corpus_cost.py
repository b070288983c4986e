"""Storage, requests and cores of a corpus: a blob is paid for once, by bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.compute import context
from plinth.compute.context import AssetCost, Context, StepCost, manifest
from plinth.operation.spending import CorpusPrices
from plinth.records import Blob, Part, Step
from plinth.storage.workspace import Workspace
from plinth_ops.spending import corpus_costs


def test_by_bucket_every_blob_once(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())

    def published(asset: str, *blobs: tuple[str, int]) -> None:
        parts = [
            Part(name=f"part-{n}", blob=Blob(md5=letter * 32, sha256=letter * 64, bytes=size), rows=1)
            for n, (letter, size) in enumerate(blobs)
        ]
        made = manifest(asset, Step(name=asset, version="1", params={}), {}, parts)
        ctx.refs.save(made)
        ctx.refs.publish(made, "0" * 64)

    published("web/documents", ("a", 10**9), ("b", 2 * 10**9))
    published("web/curated", ("b", 2 * 10**9), ("c", 10**9))
    published("code/documents", ("d", 10**9))
    published("dedup/minhash", ("a", 10**9), ("e", 5 * 10**8))
    spent = StepCost(tasks=2, cpu_s=3600.0, opened=1200, written=100)
    context.save(ctx.workspace, AssetCost(asset="web/curated", steps={"x": spent}, driver_cpu_s=3600.0, wall_s=9.0))
    rows = corpus_costs(ctx, CorpusPrices(gigabyte_month=0.02, million_requests=5.0, core_hour=0.04))
    found = [(row.bucket, row.stored_bytes) for row in rows]
    assert found == [("web", 4 * 10**9), ("code", 10**9), ("-", 5 * 10**8)]
    web = rows[0]
    assert (web.storage_month, web.cores, web.core_hours) == (pytest.approx(0.08), pytest.approx(0.08), 2.0)
    assert (web.reads, web.writes, web.requests) == (1200, 100, pytest.approx((100 + 1200 / 12) * 5e-6))
    assert sum(row.requests for row in rows[1:]) == 0.0
