"""An attacker who can write the bucket of a run's checkpoints: nothing is written outside the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plinth import fingerprint
from plinth.errors import CheckpointError
from plinth.training.checkpoint import checkpoint, upload
from plinth.training.checkpoint.parameters import Checkpoints
from plinth.training.config import RunConfig
from tests.s3_server import Bucket, serving

PAYLOAD = b"#!/bin/sh\necho owned\n"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with serving() as found:
        yield found


@pytest.fixture
def config(make: Callable[..., RunConfig], bucket: Bucket, request: pytest.FixtureRequest) -> RunConfig:
    return make(checkpoints=Checkpoints(keep_last=1, upload=bucket.uri(request.node.name.replace("[", "-").strip("]"))))


def forge(config: RunConfig, bucket: Bucket, names: list[str], step: int = 7) -> None:
    """A checkpoint in the bucket whose list has these names; digests and lengths are right."""
    prefix = f"{str(config.checkpoints.upload).removeprefix(f's3://{bucket.name}/')}/{config.run_id}"
    folder = f"{prefix}/{checkpoint.name(step)}"
    digest = hashlib.sha256(PAYLOAD).hexdigest()
    files = [{"path": name, "bytes": len(PAYLOAD), "sha256": digest} for name in names]
    manifest = fingerprint.canonical({"step": step, "files": files})
    for name in names:
        bucket.put(f"{folder}/{name}", PAYLOAD)
    bucket.put(f"{folder}/manifest.json", manifest)
    bucket.put(f"{folder}.events.jsonl", b"")
    record = {"step": step, "manifest_sha256": hashlib.sha256(manifest).hexdigest(), "bytes": 1}
    bucket.put(f"{folder}.json", json.dumps(record).encode())


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", ["absolute", "climbing", "inner", "manifest", "twice"])
def test_names_that_leave_the_checkpoint_are_refused(
    config: RunConfig, bucket: Bucket, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    names = {
        "absolute": [str(victim)],
        "climbing": ["../../../../../victim", "../../config.json"],
        "inner": ["engine/../../../config.json"],
        "manifest": ["manifest.json"],
        "twice": ["state.json", "state.json"],
    }[kind]
    forge(config, bucket, ["model/good.bin", *names])
    before = everything(tmp_path) | {"events.jsonl"}
    with pytest.raises(CheckpointError, match=r"step-00000007.*manifest\.json names") as caught:
        upload.restore(config)
    assert kind == "twice" or repr(names[0]) in str(caught.value)
    assert not victim.exists()
    new = {name for name in everything(tmp_path) - before if not name.endswith("events.jsonl")}
    assert all(path.is_dir() for path in (tmp_path / name for name in new)), new  # no byte of a file was fetched
    assert checkpoint.committed(config.directory) == []


def test_a_link_in_a_committed_checkpoint_is_refused(config: RunConfig, tmp_path: Path) -> None:
    """A writer of the workspace swaps a file for a link to one with the same bytes, which can change later."""
    run = config.directory
    folder = checkpoint.stage(run, 3)
    (folder / "state.json").write_bytes(PAYLOAD)
    checkpoint.commit(run, 3)
    outside = tmp_path / "outside"
    outside.write_bytes(PAYLOAD)
    target = checkpoint.path(run, 3) / "state.json"
    target.unlink()
    target.symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"step-00000003/manifest\.json names 'state\.json'"):
        checkpoint.verify(run, 3)
