"""Arrivals in a bucket: the sensor sees them with a listing, and downloads only what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.recipe.recipe import Recipe
from plinth.storage import listing
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import stages
from plinth_assets.framework.build import execute
from plinth_jobs.sensors import arrival
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE
from tests.s3_server import serving


@dg.op
def nothing() -> None:
    """No work."""


@dg.job
def corpus() -> None:
    nothing()


def moved(recipe: Recipe, bucket: str, path: str) -> Recipe:
    """The recipe with one bucket's only source somewhere else."""
    one = recipe.corpus.buckets[bucket]
    source = one.sources[0].model_copy(update={"path": path})
    buckets = {**recipe.corpus.buckets, bucket: one.model_copy(update={"sources": (source,)})}
    return recipe.model_copy(update={"corpus": recipe.corpus.model_copy(update={"buckets": buckets})})


@pytest.mark.exhaustive
@pytest.mark.slow
def test_arrivals_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_corpus.write(tmp_path / "input")
    workspace = Workspace(tmp_path).ensure()
    with serving() as bucket:
        bucket.put("prose/a.jsonl", (tmp_path / "input/tiny/prose.jsonl").read_bytes())
        recipe = moved(load(RECIPE), "prose", bucket.uri("prose"))

        def tick(cursor: str | None = None) -> Any:
            sensor = arrival(recipe, workspace.root, corpus)
            with dg.instance_for_test() as instance:
                return sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))

        ctx = Context(workspace)
        for stage in stages(recipe):
            if stage.group == "sources":
                list(execute(stage, ctx, print))
        published = tick()
        assert not published.run_requests
        assert tick(published.cursor).skip_message == "no source file changed"

        read: list[str] = []
        real = listing._file_digests

        def spy(entry: Any) -> Any:
            read.append(entry.uri)
            return real(entry)

        monkeypatch.setattr(listing, "_file_digests", spy)
        bucket.put("prose/b.jsonl", b'{"text": "A new article."}\n')
        bucket.put("prose/readme.md", b"nothing that the source reads")
        arrived = tick(published.cursor)
        assert [request.tags["plinth/new_sources"] for request in arrived.run_requests] == ["prose"]
        assert [uri for uri in read if uri.startswith("s3://")] == [bucket.uri("prose/b.jsonl")]
        assert tick(arrived.cursor).skip_message == "no source file changed"

        for name in ("b.jsonl", "readme.md"):  # the account of a source names what it does not read, too
            bucket.client.delete_object(Bucket=bucket.name, Key=f"prose/{name}")
        gone = tick(arrived.cursor)
        assert not gone.run_requests  # the published version is the current content
