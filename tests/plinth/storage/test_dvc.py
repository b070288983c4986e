"""Plain DVC reads what Plinth writes; remotes get everything or say what is missing."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Manifest, Part
from plinth.storage import dvc
from plinth.storage.workspace import Workspace

BUCKET = "s3://bucket/plinth"


@pytest.fixture
def other(tmp_path: Path) -> Context:
    """A second, empty workspace."""
    return Context(Workspace(tmp_path / "other").ensure())


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


def test_push_and_pull_through_a_local_remote(ctx: Context, other: Context, shards: Manifest, tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    assert dvc.push(ctx, [shards], remote) == 4  # two parts, the manifest, the directory object
    assert dvc.push(ctx, [shards], remote) == 0
    assert dvc.pull(other, shards.digest, remote) == shards
    assert dvc.restore(other, shards.digest, tmp_path / "out") == shards
    assert other.refs.ref("web/shards") is None  # pulled, not published


@pytest.mark.parametrize("damage", [b"torn", b"\x02\x00" * 500])
def test_pull_replaces_a_damaged_blob(ctx: Context, shards: Manifest, tmp_path: Path, damage: bytes) -> None:
    remote = str(tmp_path / "remote")
    dvc.push(ctx, [shards], remote)
    path = ctx.store.path(shards.parts[0].blob)
    path.chmod(0o644)
    path.write_bytes(damage)
    path.chmod(0o444)
    dvc.pull(ctx, shards.digest, remote)
    ctx.store.verify(shards.parts[0].blob)


def test_push_of_a_missing_blob_is_named_and_leaves_no_manifest(ctx: Context, shards: Manifest, tmp_path: Path) -> None:
    ctx.store.path(shards.parts[0].blob).unlink()
    with pytest.raises(MissingError):
        dvc.push(ctx, [shards], str(tmp_path / "remote"))
    assert not (tmp_path / "remote").exists()


def test_pull_names_what_the_remote_lacks_or_has_changed(
    ctx: Context, other: Context, shards: Manifest, tmp_path: Path
) -> None:
    remote = tmp_path / "remote"
    dvc.push(ctx, [shards], str(remote))
    with pytest.raises(MissingError, match="has no manifest"):
        dvc.pull(other, "0" * 64, str(remote))
    md5 = shards.parts[0].blob.md5
    path = remote / "files" / "md5" / md5[:2] / md5[2:]
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"\x00" + good[1:])
    path.chmod(0o444)
    with pytest.raises(IntegrityError, match=r"returned wrong bytes for shard-00000\.bin"):
        dvc.pull(other, shards.digest, str(remote))
    assert not other.store.path(md5).exists()
    path.unlink()
    with pytest.raises(MissingError, match="has no blob"):
        dvc.pull(other, shards.digest, str(remote))
    with pytest.raises(MissingError):
        other.refs.load(shards.digest)


def test_a_remote_that_refuses_is_named(ctx: Context, shards: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(StorageError):
        dvc.push(ctx, [shards], str(tmp_path / "file" / "remote"))
    with pytest.raises(StorageError, match="unknown scheme"):
        dvc.push(ctx, [shards], "gopher://x")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Options of a remote on an S3 server over HTTP."""
    pytest.importorskip("moto.server")
    pytest.importorskip("dvc_s3")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    secrets = (
        ("AWS_ACCESS_KEY_ID", "k"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    )
    for name, value in secrets:
        monkeypatch.setenv(name, value)
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket="bucket")
    yield {"endpointurl": url}
    server.stop()


def test_push_and_pull_through_s3(ctx: Context, other: Context, shards: Manifest, s3: dict[str, str]) -> None:
    assert dvc.push(ctx, [shards], BUCKET, s3) == 4
    assert dvc.pull(other, shards.digest, BUCKET, s3) == shards
    assert other.store.read_bytes(shards.parts[0].blob) == b"\x01\x00" * 500
    with pytest.raises(StorageError):
        dvc.push(ctx, [shards], "s3://no-such-bucket/x", s3)


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
