"""`plinth run` ends with the account of each bucket: what was read, rejected and not read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.compute.context import Context
from plinth.compute.select_engine import DEFAULT
from plinth.corpus.documents import documents
from plinth.corpus.sources.record import Account
from plinth.storage.workspace import Workspace
from plinth_jobs import asset_states, definitions, pipeline
from plinth_jobs.recipes import load
from tests.jobs.conftest import RECIPE

Plinth = Callable[..., Any]
ACCOUNT = Account(
    found=3, read=2, not_read={".md": 1}, records=2, documents=1, exclusions={}, damage={"broken_record": 1}, repeats=0
)
LINE = "notes: 3 files: 2 read, 1 not read (1 .md); 2 records: 1 document, 1 damaged (1 broken_record)"


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


ASSETS = ["notes/sources", "notes/documents"]


@pytest.mark.slow
def test_a_run_accounts_for_files_and_needs_dagster_for_whatever_changed(
    plinth: Plinth, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", "-r", str(recipe), "--select", "notes/documents", "-n", "1")
    outcome, rest = plinth(*run), "3 records: 2 documents, 1 damaged (1 broken_record)"
    account = f"notes: 4 files: 2 read, 2 not read (1 .md, 1 hidden); {rest}"
    assert (outcome.code, account in outcome.out.splitlines()) == (0, True)
    code = (
        f"import sys; from plinth_jobs.cli import call; assert call({list(run)}) == 0\n"
        "heavy = ('dagster', 'mlflow', 'great_expectations', 'matplotlib', 'torch')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=recipe.parent)
    assert "nothing to do, 2 up to date" in done.stdout
    assert account in done.stdout.splitlines()
    assert done.stderr.strip().splitlines()[-1] == "[]"

    space = Workspace(recipe.parent / "workspace")
    before = Context(space).refs.current("notes/documents").digest
    (space.root / "input/notes/more.md").write_text("More.")
    outcome = plinth(*run)
    assert f"notes: 5 files: 2 read, 3 not read (2 .md, 1 hidden); {rest}" in outcome.out.splitlines()
    assert Context(space).refs.current("notes/documents").digest == before  # so nothing that reads documents runs again

    executed = list[list[str]]()
    monkeypatch.setattr(definitions, "execute", lambda space, _, assets, *rest: executed.append(assets) or ())

    def made() -> list[str]:
        executed.clear()
        assert plinth(*run).code == 0
        return [asset for assets in executed for asset in assets]

    source, kept = space.root / "input/notes/a.jsonl", Context(space).refs.current("notes/documents")
    assert made() == []
    with monkeypatch.context() as newer:
        newer.setattr(documents, "VERSION", "later")
        assert made() == ASSETS[1:]
    assert made() == []
    written = recipe.read_text()
    recipe.write_text(written.replace("max_reject_rate: 0.5", "max_reject_rate: 0.6"))
    assert made() == ASSETS[1:]
    recipe.write_text(written)
    (part,) = space.root.glob(f"store/**/*{kept.parts[0].blob.md5[2:]}*")
    for lost in (part, space.root / "refs/notes/documents.json"):  # the reference is what a failed check does not write
        lost.rename(lost.with_suffix(".away"))
        assert made() == ASSETS[1:], lost
        lost.with_suffix(".away").rename(lost)
    assert made() == []
    source.write_text(source.read_text() + "\n")
    assert made() == ASSETS


def test_what_the_approval_sensor_would_request_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    space, executed, wanted = Workspace(tmp_path).ensure(), list[tuple[Any, ...]](), list[str]()
    recipe = load(RECIPE)
    release = recipe.required_release().model_copy(update={"auto_approve_as": None})
    asked = recipe.model_copy(update={"release": release})
    monkeypatch.setattr(asset_states, "requests", lambda *_: tuple(wanted))
    monkeypatch.setattr(pipeline, "describe_release", lambda *_: {})
    monkeypatch.setattr(definitions, "execute", lambda *given: executed.append((given[2], given[4])) or ())
    pipeline._release(Context(space), asked, DEFAULT)
    assert executed == []
    wanted.append("key")
    pipeline._release(Context(space), asked, DEFAULT)
    assert executed == [(["release"], "make_release")]
