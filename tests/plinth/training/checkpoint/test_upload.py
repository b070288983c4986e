"""Checkpoints on their way to a bucket and back, against a server that speaks S3 over HTTP."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ranked_files
from blake3 import blake3

from plinth.errors import CheckpointError, IntegrityError, StorageError
from plinth.launch.parameters import Launch
from plinth.training.checkpoint import checkpoint, remote, selection, upload
from plinth.training.checkpoint.remote import RemoteCheckpoints
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import Timeline, timeline
from tests.s3_server import Bucket, bad_line, serving

pytestmark = pytest.mark.slow

Make = Callable[..., RunConfig]
BIG = bytes(range(256)) * 50_000  # 12.8 MB: three parts of 5 MiB


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with serving() as found:
        yield found


@pytest.fixture
def config(make: Make, bucket: Bucket, request: pytest.FixtureRequest) -> RunConfig:
    """A run that uploads to a place of this test's own."""
    return make(checkpoints=Checkpoints(keep_last=1, upload=bucket.uri(request.node.name)))


def committed(config: RunConfig, *steps: int, data: bytes = BIG[:99_999]) -> RunDirectory:
    run = config.directory
    run.root.mkdir(parents=True, exist_ok=True)
    for step in steps:
        folder = checkpoint.stage(run, step)
        (folder / "engine").mkdir()
        (folder / "engine/rank-00000.safetensors").write_bytes(data + bytes([step]))
        (folder / "state.json").write_text(json.dumps({"step": step, "monitor": {}}))
        checkpoint.commit(run, step)
        Timeline(run.events).append("step", step=step, loss=1.0)
    return run


def followed(config: RunConfig) -> bool:
    """Run the loop of the uploader's process with a request to finish."""
    following = upload.UploadLoop(config, remote_of(config))
    following.finishing.set()
    return following.follow()


def test_what_is_refused_here_is_withdrawn_there(config: RunConfig) -> None:
    run = committed(config, 3, 6)
    assert followed(config)
    checkpoint.refuse(run, 6)
    assert followed(config)
    assert followed(config)
    assert remote_of(config).steps() == [3]
    assert [event["step"] for event in timeline(run.events).of("withdrawn")] == [6]
    committed(config, 6)  # saved again, from what it should have learned
    assert followed(config)
    assert remote_of(config).steps() == [3, 6]


def remote_of(config: RunConfig) -> RemoteCheckpoints:
    assert config.checkpoints.upload is not None
    return RemoteCheckpoints(config.checkpoints.upload, config.run_id)


def elsewhere(config: RunConfig, folder: Path) -> RunConfig:
    """The same run on a machine that has nothing of it."""
    return config.model_copy(update={"workspace": str(folder)})


def test_there_and_back(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5 * 2**20)
    run = committed(config, 1, 2, data=BIG)
    assert followed(config)
    uploaded = timeline(run.events).of("uploaded")
    assert sorted(event["step"] for event in uploaded) == [1, 2]
    assert all(event["bytes"] > len(BIG) for event in uploaded)
    assert remote_of(config).steps() == [1, 2]
    assert selection.retain(run, config.checkpoints, set()) == [1]  # now that it is there

    moved = elsewhere(config, tmp_path / "other")
    assert upload.restore(moved) == 2
    folder = checkpoint.verify(moved.directory, 2)
    original = checkpoint.path(run, 2)
    for name in ("manifest.json", "state.json", "engine/rank-00000.safetensors"):
        assert (folder / name).read_bytes() == (original / name).read_bytes()
    assert list(timeline(moved.directory.events).steps) == [1, 2]
    assert checkpoint.is_uploaded(moved.directory, 2)
    assert upload.restore(elsewhere(config.model_copy(update={"run_id": "another"}), tmp_path)) is None


def test_what_changed_on_either_side_is_found(config: RunConfig, bucket: Bucket, tmp_path: Path) -> None:
    run = committed(config, 1, 2)
    assert followed(config)
    here = remote_of(config)
    key = f"{here.prefix}/step-00000002/engine/rank-00000.safetensors"
    bucket.put(key, BIG[:99_999] + b"\x07")  # the last byte is another
    moved = elsewhere(config, tmp_path / "other")
    with pytest.raises(CheckpointError, match="differs from the checkpoint's manifest") as error:
        here.download(moved.directory, 2)
    assert blake3(BIG[:99_999] + b"\x07").hexdigest() in str(error.value.found)
    assert checkpoint.committed(moved.directory) == []
    assert upload.restore(moved) == 1  # the one before is whole
    assert [event["step"] for event in timeline(moved.directory.events).of("refused")] == [2]

    committed(config, 3)
    weights = checkpoint.path(run, 3) / "engine/rank-00000.safetensors"
    weights.write_bytes(BIG[:99_999] + b"\x08")
    with pytest.raises(IntegrityError, match="has changed since it was committed"):
        here.upload(run, 3)
    assert here.steps() == [1, 2]  # without a record it does not count


class Nodes:
    """The other nodes of a job, as threads; those in `broken` fetch nothing."""

    def __init__(self, config: RunConfig, count: int, broken: set[int]) -> None:
        self.config, self.count, self.broken = config, count, broken
        self.threads: list[threading.Thread] = []

    def begin(self, step: int) -> None:
        for node in sorted({*range(1, self.count)} - self.broken):
            arguments = (self.config.directory, step, node, self.count)
            self.threads.append(threading.Thread(target=remote_of(self.config).fetch, args=arguments))
            self.threads[-1].start()

    def failed(self) -> list[int]:
        for thread in self.threads:
            thread.join()
        return sorted(self.broken)


@pytest.mark.parametrize("broken", [set[int](), {2}])
def test_nodes_fetch_a_share_each(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: set[int]
) -> None:
    """Three nodes, eight ranks: no file twice; the share of a node that failed is fetched by the first."""
    ranked_files.committed(config.directory, 1, 2, ranks=8, times=2000)
    assert followed(config)
    moved = elsewhere(config, tmp_path / "other")
    fetched: list[tuple[int, str]] = []
    received = RemoteCheckpoints._received

    def counted(self: RemoteCheckpoints, key: str, *rest: Any) -> tuple[int, str]:
        fetched.append((threading.get_ident(), key))
        return received(self, key, *rest)

    monkeypatch.setattr(RemoteCheckpoints, "_received", counted)
    assert upload.restore(moved, Nodes(moved, 3, broken)) == 2
    checkpoint.verify(moved.directory, 2)
    keys = [key.partition("/")[2] for _, key in fetched]
    ranks = {file.path for file in checkpoint.listed_files(moved.directory, 2)}
    assert sorted(keys) == sorted(path for path in ranks if not path.startswith("ranks/"))


def test_lines_that_break_and_stall(
    config: RunConfig, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose connection is cut, or brings nothing for long, is asked for again; one of many is not hopeless."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(remote, "STALL_S", 1)
    committed(config, 1, data=BIG)
    assert followed(config)
    for number, stalls in enumerate((False, True)):
        moved = elsewhere(config, tmp_path / f"other-{number}")
        with bad_line(bucket.endpoint, 1 << 20, failures=2, stalls=stalls) as line:
            assert upload.restore(moved) == 1
            assert line.cuts == 2
        checkpoint.verify(moved.directory, 1)
    moved = elsewhere(config, tmp_path / "never")
    with bad_line(bucket.endpoint, 1 << 20, failures=99), pytest.raises(StorageError, match="unreachable or refused"):
        upload.restore(moved)
    assert checkpoint.committed(moved.directory) == []


def test_a_truncated_object_is_refused(config: RunConfig, bucket: Bucket, tmp_path: Path) -> None:
    """Damage of any kind: a file, a rank's manifest, one of another step; the previous checkpoint is taken."""
    ranked_files.committed(config.directory, 1, 2, ranks=3)
    assert followed(config)
    at = f"{remote_of(config).prefix}/step-0000000"
    for number, name in enumerate(("engine/rank-00001.safetensors", "ranks/rank-00002.json", "rng/rank-00000.json")):
        whole = bucket.get(f"{at}2/{name}")
        for data in (whole[:-1], *([bucket.get(f"{at}1/{name}"), b""] if number == 1 else [])):
            bucket.put(f"{at}2/{name}", data)
            moved = elsewhere(config, tmp_path / f"{number}-{len(data)}")
            assert upload.restore(moved) == 1, (name, len(data))
            shutil.rmtree(moved.directory.root)
        bucket.put(f"{at}2/{name}", whole)
    assert upload.restore(elsewhere(config, tmp_path / "whole")) == 2


def test_bucket_that_is_away(
    config: RunConfig, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures are reported with growing pauses, nothing is deleted, and everything is uploaded once the bucket answers
    again."""
    monkeypatch.setattr(upload, "FIRST_PAUSE_S", 0.05)
    run = committed(config, 1, 2)
    with monkeypatch.context() as away:
        away.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # no server listens
        away.setenv("AWS_MAX_ATTEMPTS", "1")
        assert not followed(config)
        with pytest.raises(StorageError, match="unreachable or refused"):
            upload.restore(elsewhere(config, tmp_path / "other"))
    failed = timeline(run.events).of("upload_failed")
    assert [event["tries"] for event in failed] == [1, 2, 3, 4]
    assert all("unreachable or refused" in event["reason"] for event in failed)
    assert selection.retain(run, config.checkpoints, set()) == []
    assert checkpoint.committed(run) == [1, 2]

    following = upload.UploadLoop(config, remote_of(config))
    thread = threading.Thread(target=following.follow)
    thread.start()
    following.finishing.set()
    thread.join(300)
    assert not thread.is_alive()
    assert remote_of(config).steps() == [1, 2]


def test_pauses_grow_to_a_bound(config: RunConfig) -> None:
    following = upload.UploadLoop(config, remote_of(config))
    pauses = []
    for failures in (1, 2, 3, 9, 50):
        following._failures = failures
        pauses.append(following._pause_s())
    assert pauses == [1, 2, 4, 256, 300]


@pytest.mark.exhaustive
def test_run_goes_on_from_the_bucket_alone(make: Make, job: Callable[..., int], bucket: Bucket, tmp_path: Path) -> None:
    """A run is trained with uploads, its machine is lost with the last steps, and another machine ends it."""
    saves = Checkpoints(every_steps=3, audit_steps=4, upload=bucket.uri("whole"))
    config = make(checkpoints=saves, launch=Launch(ranks=1))
    assert job(config) == 0
    assert {event["step"] for event in timeline(config.directory.events).of("uploaded")} >= {8, 12}
    for step in (9, 12):
        where = remote_of(config)
        where.client.delete_object(Bucket=where.bucket, Key=f"{where.prefix}/step-{step:08d}.json")
    moved = elsewhere(config, tmp_path / "other")
    assert job(moved) == 0
    story = timeline(moved.directory.events)
    assert [event["step"] for event in story.of("downloaded")] == [8]
    assert [event["step"] for event in story.of("resumed")] == [8]
    states = [checkpoint.read_state(one.directory, 12) for one in (config, moved)]
    assert states[0] == states[1]
    assert list(story.steps) == list(range(1, 13))
    shutil.rmtree(moved.directory.root)
