"""Plain DVC reads what Plinth writes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, StorageError
from plinth.records import Manifest, Part
from plinth.storage import dvc


@pytest.fixture
def shards(ctx: Context) -> Manifest:
    return make(ctx, "web/shards", **{"shard-00000.bin": b"\x01\x00" * 500, "index-00000.arrow": b"index"})


def make(ctx: Context, asset: str, **files: bytes) -> Manifest:
    parts = tuple(Part(name=name, blob=ctx.store.put_bytes(data), rows=1) for name, data in files.items())
    manifest = Manifest(asset=asset, step="s", version="1", params={}, inputs={}, parts=parts)
    ctx.refs.publish(manifest, key="k")
    return manifest


def test_directory_object_is_the_listing_that_dvc_defines(ctx: Context, shards: Manifest) -> None:
    oid = dvc.directory_object(ctx, shards)
    data = ctx.store.path(oid).read_bytes()
    assert oid == hashlib.md5(data).hexdigest() + ".dir"
    assert [entry["relpath"] for entry in json.loads(data)] == sorted(
        ["manifest.json", "shard-00000.bin", "index-00000.arrow"]
    )
    assert dvc.directory_object(ctx, shards) == oid


def test_names_alike_are_refused(ctx: Context) -> None:
    with pytest.raises(IntegrityError, match="duplicate names"):
        dvc.directory_object(ctx, make(ctx, "x", **{"manifest.json": b"x"}))


def test_restore_writes_the_parts(ctx: Context, shards: Manifest, tmp_path: Path) -> None:
    assert dvc.restore(ctx, shards.digest[:12], tmp_path / "out") == shards
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index-00000.arrow", "shard-00000.bin"]
    assert (tmp_path / "out" / "index-00000.arrow").read_bytes() == b"index"


def test_two_assets_with_one_pointer_are_refused(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="same pointer"):
        dvc.export(ctx, [make(ctx, "a/b", x=b"1"), make(ctx, "a-b", x=b"2")], tmp_path / "project")


def test_plain_dvc_pulls_an_export(ctx: Context, shards: Manifest, tmp_path: Path) -> None:
    project = tmp_path / "project"
    funnel = make(ctx, "funnel")
    dvc.export(ctx, [shards, make(ctx, "code/shards", **{"de/a.bin": b"deep"}), funnel], project)
    before = {path: path.read_bytes() for path in ctx.store.files.rglob("*") if path.is_file()}
    done = _dvc(project, "pull")
    assert done.returncode == 0, done.stderr
    assert (project / "web-shards" / "shard-00000.bin").read_bytes() == b"\x01\x00" * 500
    assert (project / "code-shards" / "de" / "a.bin").read_bytes() == b"deep"
    assert Manifest.model_validate_json((project / "web-shards" / "manifest.json").read_bytes()) == shards
    assert Manifest.model_validate_json((project / "funnel" / "manifest.json").read_bytes()) == funnel
    status = _dvc(project, "status")
    assert "up to date" in status.stdout, status.stdout + status.stderr
    assert before == {path: path.read_bytes() for path in ctx.store.files.rglob("*") if path.is_file()}


def _dvc(project: Path, command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(project / ".site")}
    return subprocess.run(
        [sys.executable, "-m", "dvc", command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
