"""`plinth verify`, `restore`, `export` and `taint` over an asset that was made from a real source file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus.documents import documents
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Documents
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_registry import taint

Plinth = Callable[..., Any]
BUCKET = {
    "description": "Notes.",
    "owner": "tests@example.org",
    "sources": [
        {
            "kind": "jsonl",
            "path": "notes.jsonl",
            "licence": "MIT",
            "terms": {"train": True, "redistribute": True, "commercial": True},
            "domain": "notes.example",
            "snapshot": "2026-46",
        }
    ],
}


@pytest.fixture
def made(tmp_path: Path) -> tuple[Context, Manifest]:
    """A workspace in which `notes/documents` is published."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    lines = [json.dumps({"text": f"This is note {n} of the archive.", "url": f"note:{n}"}) for n in range(20)]
    (ctx.workspace.input / "notes.jsonl").write_text("\n".join(lines))
    bucket = Bucket.model_validate(BUCKET)
    listed = inventory(bucket, ctx.workspace.input)
    manifest = documents.run(ctx, "notes", bucket, Documents(), listed)
    ctx.refs.publish(manifest, "key")
    return ctx, manifest


def damage(ctx: Context, manifest: Manifest) -> None:
    """Flip one byte of the first part, keeping its length."""
    path = ctx.store.path(manifest.parts[0].blob)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_an_asset_holds_to_its_sources(plinth: Plinth, made: tuple[Context, Manifest]) -> None:
    proved = json.loads(plinth("verify", "notes/documents", "--json").out)
    assert proved["digest"] == made[1].digest
    assert proved["complete"] is True
    assert len(proved["sources"]) == 1


def test_a_digest_and_its_beginning_are_targets(plinth: Plinth, made: tuple[Context, Manifest]) -> None:
    for target in (made[1].digest, made[1].digest[:12]):
        outcome = plinth("verify", target)
        assert outcome.code == 0, outcome.err
        assert "is verified down to its raw sources" in outcome.out


def test_a_flipped_byte_is_8_and_named(plinth: Plinth, made: tuple[Context, Manifest]) -> None:
    damage(*made)
    outcome = plinth("verify", "notes/documents")
    assert outcome.code == 8
    assert "the lineage breaks at notes/documents" in outcome.err
    assert made[1].parts[0].name in outcome.err
    assert "Traceback" not in outcome.err


def test_fast_says_that_it_did_not_read(plinth: Plinth, made: tuple[Context, Manifest]) -> None:
    damage(*made)
    assert json.loads(plinth("verify", "notes/documents", "--fast", "--json").out)["complete"] is False


def test_a_changed_manifest_is_8(plinth: Plinth, made: tuple[Context, Manifest]) -> None:
    ctx, manifest = made
    path = ctx.refs.manifests / f"{manifest.digest}.json"
    path.write_text(path.read_text().replace('"documents":20', '"documents":21'))
    outcome = plinth("verify", manifest.digest)
    assert outcome.code in (5, 8)
    assert "has changed" in outcome.err


@pytest.mark.parametrize("target", ["0123456789abcdef", "nothing"])
def test_an_unknown_target_is_3(plinth: Plinth, made: tuple[Context, Manifest], target: str) -> None:
    assert plinth("verify", target).code == 3


def test_a_mistyped_target_is_answered_with_the_nearest(plinth: Plinth, made: tuple[Context, Manifest]) -> None:
    assert "did you mean 'champion'?" in plinth("verify", "champoin").err
    assert "did you mean 'notes/documents'?" in plinth("verify", "notes-documents").err
    assert "release, champion, canary, latest, notes/documents, a digest or a folder" in plinth("verify", "xyzxyz").err


def test_a_mistyped_asset_is_answered_with_the_nearest(
    plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path
) -> None:
    assert "did you mean 'notes/documents'?" in plinth("export", tmp_path / "data", "notes/document").err
    assert "did you mean 'notes/documents'?" in plinth("release", "impact", "notes/document").err
    assert "did you mean" not in plinth("export", tmp_path / "data", "notes/shards").err


def test_restore_writes_the_parts(plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path) -> None:
    ctx, manifest = made
    outcome = plinth("export", "restore", manifest.digest[:10], tmp_path / "out")
    assert outcome.code == 0, outcome.err
    for part in manifest.parts:
        assert (tmp_path / "out" / part.name).read_bytes() == ctx.store.path(part.blob).read_bytes()


def test_restore_refuses_what_changed(plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path) -> None:
    damage(*made)
    assert plinth("export", "restore", made[1].digest, tmp_path / "out").code == 5


@pytest.mark.slow
def test_export_serves_a_plain_dvc_pull(plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path) -> None:
    ctx, manifest = made
    outcome = plinth("export", tmp_path / "data", "notes/documents", "--json")
    assert json.loads(outcome.out) == [str(tmp_path / "data" / "notes-documents.dvc")]
    command = [Path(sys.executable).with_name("dvc"), "pull", "-q"]
    environment = {**os.environ, "DVC_NO_ANALYTICS": "true"}
    subprocess.run(command, cwd=tmp_path / "data", check=True, timeout=900, env=environment)
    for part in manifest.parts:
        pulled = tmp_path / "data" / "notes-documents" / part.name
        assert pulled.read_bytes() == ctx.store.path(part.blob).read_bytes()


def test_export_of_what_is_not_made_is_3(plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path) -> None:
    outcome = plinth("export", tmp_path / "data", "web/shards")
    assert outcome.code == 3
    assert "asset web/shards was never materialized" in outcome.err


def leaving(plinth: Plinth, manifest: Manifest, out: Path) -> tuple[Any, Any]:
    return plinth("export", "restore", manifest.digest, out / "restored"), plinth(
        "export", out / "pointers", manifest.asset
    )


def test_what_leaves_is_noted(plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path) -> None:
    ctx, manifest = made
    for outcome in leaving(plinth, manifest, tmp_path):
        assert outcome.code == 0, outcome.err
    notes = [json.loads(path.read_bytes()) for path in (ctx.workspace.root / "exports").iterdir()]
    assert {(note["subject"], note["status"]) for note in notes} == {(manifest.digest, "data")}
    assert {note["to"] for note in notes} == {str(tmp_path / "restored"), str(tmp_path / "pointers")}


@pytest.mark.parametrize("marked", ["manifest", "inventory"])
def test_what_is_tainted_stays(plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path, marked: str) -> None:
    ctx, manifest = made
    target = manifest.digest if marked == "manifest" else manifest.inputs["notes/sources"]
    taint.mark(ctx, target, "compliance@example.org", "must go")
    for outcome in leaving(plinth, manifest, tmp_path):
        assert outcome.code == 8, outcome.out
        assert "must go" in outcome.err
    assert not (tmp_path / "restored").exists()
    assert not (tmp_path / "pointers").exists()
    assert not (ctx.workspace.root / "exports").exists()


def test_a_checkpoint_leaves_as_a_release_or_with_a_word(
    plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path
) -> None:
    ctx, manifest = made
    whole = {"asset": "checkpoint", "step": "checkpoint", "version": "1", "params": {}, "parts": manifest.parts}
    checkpoint = Manifest.model_validate({**whole, "inputs": {"notes/documents": manifest.digest}})
    ctx.refs.publish(checkpoint, "key")
    for outcome in leaving(plinth, checkpoint, tmp_path):
        assert outcome.code == 8
        assert "is a checkpoint" in outcome.err
    assert plinth("export", "restore", checkpoint.digest, tmp_path / "restored", "--unreleased").code == 0
    (note,) = (json.loads(path.read_bytes()) for path in (ctx.workspace.root / "exports").iterdir())
    assert note["status"] == "UNRELEASED"


def test_a_workspace_without_a_root_has_no_marks(
    plinth: Plinth, made: tuple[Context, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "nothing"))
    assert plinth("export", "restore", made[1].digest, tmp_path / "out").code == 0
