"""`plinth release impact` over an asset that was made from a real source file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage.workspace import Workspace

Plinth = Callable[..., Any]


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A workspace with three manifests in a chain, of which the middle was never published."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    inputs: dict[str, str] = {"inventory": "5" * 64}
    for asset in ("notes/sources", "notes/documents", "notes/curated"):
        given = {"notes/sources": "5" * 64} if asset == "notes/documents" else inputs
        manifest = Manifest(asset=asset, step="s", version="1", params={}, inputs=given, parts=())
        if asset == "notes/documents":
            ctx.refs.save(manifest)
        else:
            ctx.refs.publish(manifest, "key")
        inputs = {asset: manifest.digest}
    return ctx


def test_everything_is_listed_nearest_first(plinth: Plinth) -> None:
    found = json.loads(plinth("release", "impact", "notes", "--json").out)
    assert [(each["asset"], each["state"]) for each in found["manifests"]] == [
        ("notes/sources", "published"), ("notes/documents", "saved"), ("notes/curated", "published")
    ]  # fmt: skip
    assert found["origin"]["kind"] == "source"
    assert found["gaps"] == []  # MLflow does not run, and is read all the same
    shown = plinth("release", "impact", "notes/documents").out
    assert "asset notes/documents: 2 manifests" in shown
    assert "Not checked" not in shown


def test_the_page_lies_with_the_reports(plinth: Plinth, made: Context) -> None:
    outcome = plinth("release", "impact", "notes/sources", "--page", "--json")
    path = Path(json.loads(outcome.out)["page"])
    assert path.name == "impact-notes-sources.html"
    assert path.resolve().parent == made.workspace.reports
    assert re.search(r"<svg.*notes/curated", path.read_text(), re.DOTALL)


def test_what_nothing_was_made_of_is_3(plinth: Plinth) -> None:
    outcome = plinth("release", "impact", "other")
    assert outcome.code == 3
    assert "nothing is derived from 'other'" in outcome.err
