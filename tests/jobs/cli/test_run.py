"""`plinth run` ends with the account of each bucket: what was read, rejected and not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import pipeline
from plinth.compute.context import Context
from plinth.corpus.documents.account import Account
from plinth.storage.workspace import Workspace

Plinth = Callable[..., Any]
ACCOUNT = Account(
    found=3, read=2, not_read={".md": 1}, records=2, documents=1, exclusions={}, damage={"broken_record": 1}, repeats=0
)
LINE = "notes: 3 files = 2 read + 1 not read (1 .md); 2 records = 1 document + 1 damaged (1 broken_record)"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """One bucket of JSON lines with what no one reads next to them, and one line that is cut."""
    folder = tmp_path / "workspace/input/notes"
    (folder / ".git").mkdir(parents=True)
    line = json.dumps({"text": "The old bridge over the river was built a hundred years ago."}) + "\n"
    for name in ("a.jsonl", "B.JSONL", "notes.md", ".git/c.jsonl"):
        (folder / name).write_text(line)
    with (folder / "a.jsonl").open("a") as out:
        out.write('{"text": "cut')
    source = {"kind": "jsonl", "path": "notes", "licence": "MIT", "domain": "e.org", "snapshot": "s"}
    source |= {"terms": {"train": True, "redistribute": True, "commercial": True}}
    corpus = {"buckets": {"notes": {"description": "N.", "owner": "a@example.org", "sources": [source]}}}
    corpus |= {"documents": {"max_reject_rate": 0.5}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "name": "notes", "corpus": corpus}))
    return tmp_path / "r.yaml"


def test_the_account_of_each_bucket_is_one_line(plinth: Plinth, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = pipeline.RunSummary(("notes/documents",), (), 1.0, accounts={"notes": ACCOUNT})
    monkeypatch.setattr(pipeline, "run", lambda *given, **options: summary)
    (Path.cwd() / "r.yaml").write_text("name: x\n")
    assert LINE in plinth("run", "-r", "r.yaml").out.splitlines()
    found = json.loads(plinth("run", "-r", "r.yaml", "--json").out)["accounts"]
    assert found == {"notes": ACCOUNT.model_dump(mode="json")}


@pytest.mark.slow
def test_a_run_says_what_was_not_read(plinth: Plinth, recipe: Path) -> None:
    rest = "3 records = 2 documents + 1 damaged (1 broken_record)"
    for _ in range(2):  # also where everything is up to date
        outcome = plinth("run", "-r", recipe, "--select", "notes/documents", "-n", 1)
        expected = f"notes: 4 files = 2 read + 2 not read (1 .md, 1 hidden); {rest}"
        assert (outcome.code, expected in outcome.out.splitlines()) == (0, True)
    ctx = Context(Workspace(recipe.parent / "workspace"))
    before = ctx.refs.current("notes/documents").digest
    (recipe.parent / "workspace/input/notes/more.md").write_text("More.")
    outcome = plinth("run", "-r", recipe, "--select", "notes/documents", "-n", 1)
    assert f"notes: 5 files = 2 read + 3 not read (2 .md, 1 hidden); {rest}" in outcome.out.splitlines()
    assert ctx.refs.current("notes/documents").digest == before  # so nothing that reads documents runs again
