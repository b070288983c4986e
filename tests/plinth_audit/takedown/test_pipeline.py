"""A removal through the pipeline: what held a page, the corpus without it, and the signed report."""

import json

import pytest

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from tests import tiny_corpus
from tests.jobs.conftest import answer, digests, plinth, variant

pytestmark = pytest.mark.exhaustive

SMALL_PARTS = "corpus: {documents: {part_bytes: 2048}}\n"
MADE = ("takedown/index", "dedup/index", "code/trace_index", "prose/trace_index", "web/trace_index")


def parts(workspace, asset):
    """Blobs of an asset's parts."""
    made = Context(Workspace(workspace)).refs.current(asset)
    return {part.blob.sha256 for part in made.parts if part.name.rsplit("/", 1)[-1].startswith("part-")}


def test_a_file_is_taken_down(tmp_path):
    tiny_corpus.write(tmp_path / "input")
    recipe = variant(tmp_path, SMALL_PARTS)
    run = ("run", "-r", recipe, *(word for asset in MADE for word in ("--select", asset)))
    plinth(tmp_path, *run)
    ctx = Context(Workspace(tmp_path))
    ledger = ctx.refs.current("ledger")
    trained = next(row for row in rows(ctx, ledger) if row["bucket"] == "code" and row["decision"] == "train")
    found = answer(tmp_path, "takedown", "find", "--url", trained["uri"])
    assert trained["id"] in {one["id"] for one in found["found"]["documents"]}
    before = {asset: parts(tmp_path, asset) for asset in ("code/documents", "code/c4", "prose/documents")}
    asked = ("corpus", "takedown", "exclude", "--url", trained["uri"], "--reason", "a letter", "--yes")
    taken = answer(tmp_path, *asked)
    assert taken["takes"] >= 1
    assert plinth(tmp_path, "corpus", "takedown", "report", check=False).returncode == 6
    plinth(tmp_path, "run", "-r", recipe, "--select", "*/curated")
    refused = plinth(tmp_path, "corpus", "takedown", "report", check=False)
    assert refused.returncode == 6
    for asset in (*MADE, "code/shards", "mixture", "ledger"):
        assert asset in refused.stderr
    untouched = digests(tmp_path)["prose/documents"]
    plinth(tmp_path, *run)
    after = {asset: parts(tmp_path, asset) for asset in before}
    assert len(after["code/documents"] - before["code/documents"]) == taken["parts"] < len(before["code/documents"])
    assert after["prose/documents"] == before["prose/documents"]
    assert digests(tmp_path)["prose/documents"] == untouched
    assert ctx.refs.current("code/documents").stats["rejects"]["takedown"] == taken["takes"]
    found = answer(tmp_path, "takedown", "find", "--url", trained["uri"])
    assert not [one for one in found["found"]["documents"] if one["published"]]
    assert [one["id"] for one in found["found"]["documents"]] == [trained["id"]]
    said = answer(tmp_path, "takedown", "report")
    assert sum(one["hits"] for one in said["corpus"]) == 0
    assert json.loads((tmp_path / "takedown" / "00001" / "report.json").read_bytes())["payload"]


def rows(ctx, ledger):
    from plinth.storage.parts import read_table

    for part in ledger.parts:
        if "/part-" in part.name:
            yield from read_table(ctx.store, part, ["id", "uri", "bucket", "decision"]).to_pylist()
