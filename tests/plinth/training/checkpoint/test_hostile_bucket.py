"""An attacker who can write the bucket of a run's checkpoints: nothing is written outside the run."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plinth import fingerprint
from plinth.errors import CheckpointError, SignatureError
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.training.checkpoint import checkpoint, commit_record, digest_tree, upload
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import Timeline, timeline
from plinth.trust import dsse, enrolment, root
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
    """A checkpoint in the bucket whose list has these names; signature, digests and lengths are right."""
    prefix = f"{str(config.checkpoints.upload).removeprefix(f's3://{bucket.name}/')}/{config.run_id}"
    folder = f"{prefix}/{checkpoint.name(step)}"
    digest = hashlib.sha256(PAYLOAD).hexdigest()
    files = [{"path": name, "bytes": len(PAYLOAD), "sha256": digest} for name in names]
    manifest = fingerprint.canonical({"form": digest_tree.FORM, "step": step, "files": files})
    for name in names:
        bucket.put(f"{folder}/{name}", PAYLOAD)
    bucket.put(f"{folder}/manifest.json", manifest)
    bucket.put(f"{folder}.events.jsonl", b"")
    bucket.put(f"{folder}.events.json", commit_record.seal_timeline(config.directory, step, b""))
    _, record = commit_record.seal(config.directory, step, hashlib.sha256(manifest).hexdigest(), 1)
    bucket.put(f"{folder}.json", record)


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
    with pytest.raises(CheckpointError, match=r"step-00000007.*manifest\.json (names|has a duplicate)") as caught:
        upload.restore(config)
    assert kind == "twice" or repr(names[0]) in str(caught.value)
    assert not victim.exists()
    new = {name for name in everything(tmp_path) - before if not name.endswith("events.jsonl")}
    assert all(path.is_dir() for path in (tmp_path / name for name in new)), new  # no byte of a file was fetched
    assert checkpoint.committed(config.directory) == []


EVENT = b'{"seq": 1, "time": 1.0, "event": "step", "step": 3, "loss": 2.0}\n'


def calm(config: RunConfig, at: str, bucket: Bucket) -> None:
    """A timeline without the restarts of the run."""
    bucket.put(f"{at}/step-00000006.events.jsonl", EVENT)


def nonsense(config: RunConfig, at: str, bucket: Bucket) -> None:
    bucket.put(f"{at}/step-00000006.events.jsonl", b"[[[\n")


def earlier(config: RunConfig, at: str, bucket: Bucket) -> None:
    """The timeline of the step before, which the trainer signed."""
    for name in ("events.jsonl", "events.json"):
        bucket.put(f"{at}/step-00000006.{name}", bucket.get(f"{at}/step-00000003.{name}"))


def unsigned_events(config: RunConfig, at: str, bucket: Bucket) -> None:
    bucket.remove(f"{at}/step-00000006.events.json")


def gone(config: RunConfig, at: str, bucket: Bucket) -> None:
    bucket.remove(f"{at}/step-00000006/state.json")


def endless(config: RunConfig, at: str, bucket: Bucket) -> None:
    bucket.put(f"{at}/step-00000006/state.json", PAYLOAD + bytes(5 << 20))


def exchanged(config: RunConfig, at: str, bucket: Bucket) -> None:
    """The files of the step before, with their list."""
    for name in ("state.json", "manifest.json"):
        bucket.put(f"{at}/step-00000006/{name}", bucket.get(f"{at}/step-00000003/{name}"))


@pytest.mark.parametrize("attack", [calm, nonsense, earlier, unsigned_events, gone, endless, exchanged])
def test_what_a_bucket_changed_about_the_newest_checkpoint_leaves_the_one_before(
    config: RunConfig, bucket: Bucket, tmp_path: Path, attack: Callable[[RunConfig, str, Bucket], None]
) -> None:
    run, remote = config.directory, upload.RemoteCheckpoints(str(config.checkpoints.upload), config.run_id)
    for step in (3, 6):
        Timeline(run.events).append("step", step=step, loss=2.0)
        Timeline(run.events).append("restart", attempt=step, reason="a rank was killed")
        (checkpoint.stage(run, step) / "state.json").write_bytes(PAYLOAD + bytes([step]))
        checkpoint.commit(run, step)
        remote.upload(run, step)
    attack(config, remote.prefix, bucket)
    shutil.rmtree(run.root)
    assert upload.restore(config) == 3
    assert checkpoint.committed(run) == [3]
    told = timeline(run.events)
    assert [event["reason"] for event in told.of("restart")] == ["a rank was killed"]
    assert [event["step"] for event in told.of("refused")] == [6]
    written = [path.stat().st_size for path in run.root.rglob("state.json")]
    assert max(written) <= 1 << 20


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


def unsigned(config: RunConfig, tmp_path: Path) -> bytes:
    """As versions before 0.4 wrote it."""
    return json.dumps({"step": 7, "manifest_sha256": "0" * 64, "bytes": 1}).encode()


def of_another_run(config: RunConfig, tmp_path: Path) -> bytes:
    return commit_record.seal(RunDirectory(tmp_path / "runs" / "other"), 7, "0" * 64, 1)[1]


def of_another_step(config: RunConfig, tmp_path: Path) -> bytes:
    return commit_record.seal(config.directory, 6, "0" * 64, 1)[1]


def altered(config: RunConfig, tmp_path: Path) -> bytes:
    envelope = json.loads(commit_record.seal(config.directory, 7, "0" * 64, 1)[1])
    payload = base64.b64decode(envelope["payload"]).replace(b"0" * 64, b"1" * 64)
    return json.dumps(envelope | {"payload": base64.b64encode(payload).decode()}).encode()


def by_another_role(config: RunConfig, tmp_path: Path) -> bytes:
    """An evaluator of the same root states a commit."""
    stated = json.loads(
        base64.b64decode(json.loads(commit_record.seal(config.directory, 7, "0" * 64, 1)[1])["payload"])
    )
    signer = root.Trust.of(Workspace(config.workspace)).signer("evaluator")
    return json.dumps(dsse.seal(stated, signer)).encode()


def by_a_stranger(config: RunConfig, tmp_path: Path) -> bytes:
    """Return a record signed under another root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(tmp_path / "strange"))
        enrolment.initialise(Workspace(tmp_path / "theirs"), "theirs", ["eve"])
        return commit_record.seal(config.directory, 7, "0" * 64, 1)[1]


def of_another_kind(config: RunConfig, tmp_path: Path) -> bytes:
    """A trainer's signature under something else."""
    signer = root.Trust.of(Workspace(config.workspace)).signer("trainer")
    return json.dumps(dsse.seal(dsse.statement("urn:x", {"a": "0" * 64}, {"step": 7}), signer)).encode()


RECORDS = (unsigned, of_another_run, of_another_step, altered, by_another_role, by_a_stranger, of_another_kind)


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_that_no_trainer_signed_for_this_step_commits_nothing(
    config: RunConfig, bucket: Bucket, tmp_path: Path, record: Callable[[RunConfig, Path], bytes]
) -> None:
    """The bucket holds nothing but the record: a request for more would fail with another error."""
    prefix = f"{str(config.checkpoints.upload).removeprefix(f's3://{bucket.name}/')}/{config.run_id}"
    data = record(config, tmp_path)
    bucket.put(f"{prefix}/step-00000007.json", data)
    with pytest.raises(CheckpointError, match=r"step-00000007\.json is invalid"):
        upload.restore(config)
    assert checkpoint.committed(config.directory) == []

    run = config.directory  # the same, with an intact checkpoint as well
    (checkpoint.stage(run, 3) / "state.json").write_bytes(PAYLOAD)
    checkpoint.commit(run, 3)
    (checkpoint.stage(run, 7) / "state.json").write_bytes(PAYLOAD)
    checkpoint.commit(run, 7)
    checkpoint.record_path(run, 7).write_bytes(data)
    step, refused = checkpoint.newest_valid(run)
    assert step == 3
    assert [(number, "is invalid: no trainer key" in error.what) for number, error in refused] == [(7, True)]


def test_without_a_root_nothing_is_refused_and_nothing_commits(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that cannot verify must not take whole checkpoints for bad ones."""
    run = config.directory
    (checkpoint.stage(run, 3) / "state.json").write_bytes(PAYLOAD)
    checkpoint.commit(run, 3)
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(SignatureError, match="no root of trust is pinned"):
        checkpoint.newest_valid(run)
    (checkpoint.stage(run, 4) / "state.json").write_bytes(PAYLOAD)
    with pytest.raises(SignatureError, match="no root of trust is pinned"):
        checkpoint.commit(run, 4)
    assert checkpoint.committed(run) == [3]
    assert not checkpoint.path(run, 4).exists()


def test_a_job_without_a_key_ends_before_it_trains(
    config: RunConfig, job: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust_folder: Path
) -> None:
    (tmp_path / "verifier").mkdir(mode=0o700)
    shutil.copy(trust_folder / "root.json", tmp_path / "verifier")
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "verifier"))
    assert job(config) == 7
    result = json.loads(config.directory.result.read_bytes())
    assert result["status"] == "failed"
    assert "no private key of trainer as trainer" in result["reason"]
    assert not [line for line in config.directory.events.read_text().splitlines() if '"started"' in line]
