"""`plinth experiment list`: the published effects, without the file of an experiment."""

from __future__ import annotations

import json
from pathlib import Path

from plinth.compute.context import Context, manifest
from plinth.records import Step
from plinth.storage.workspace import Workspace
from tests.jobs.conftest import here


def publish(ctx: Context, asset: str, stats: dict[str, object]) -> str:
    """Publish a manifest with these statistics; return its digest."""
    made = manifest(asset, Step(name="made", version="1"), {}, [], stats)
    ctx.refs.save(made)
    ctx.refs.publish(made, "key")
    return made.digest


def test_experiments_with_results_are_listed_by_name(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path).ensure())
    effect = {"arm": "strict", "size": "one", "slice": "all", "finding": "better by 0.1"}
    publish(ctx, "experiment/words/strict/one-s1", {"status": "finished"})
    publish(ctx, "experiment/odd/effects/one-s1", {"status": "finished"})  # a run of an arm with that name
    words = publish(ctx, "experiment/words/effects", {"effects": [effect], "runs": {"finished": 2}})
    pages = publish(ctx, "experiment/pages/effects", {"effects": [], "runs": {"failed": 1}})
    listed = json.loads(here(tmp_path, "experiment", "list", "--json").stdout)
    assert listed == [
        {"name": "pages", "digest": pages, "effects": [], "runs": {"failed": 1}},
        {"name": "words", "digest": words, "effects": [effect], "runs": {"finished": 2}},
    ]
    shown = here(tmp_path, "experiment", "list").stdout
    assert shown.index("pages") < shown.index("words") < shown.index("better by 0.1")


def test_a_workspace_without_experiments_says_so(tmp_path: Path) -> None:
    Workspace(tmp_path).ensure()
    assert here(tmp_path, "experiment", "list").stdout == "No experiments have results.\n"
