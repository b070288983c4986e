"""The head of a run: one claimant, conditional changes, an expiry by the clock of the store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.errors import IntegrityError, LaunchError, SealError, StorageError
from plinth.storage.seal import Seal
from plinth.storage.workspace import CACHE_VARIABLE
from plinth.training.checkpoint.shares import SharedCheckpoints
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.job import command
from plinth.training.shared_run import head as heads
from plinth.training.shared_run import shipping
from plinth.training.shared_run.head import HEAD, RunHead, SharedRun, is_active
from plinth.training.shared_run.shipping import Shipper
from plinth.training.supervise import takeover
from plinth.training.supervise.job_log import JobLog
from plinth.training.supervise.job_ranks import JobRanks
from plinth.training.supervise.leader import Leader
from plinth.training.supervise.nodes import NodePlace
from plinth.training.supervise.rendezvous import BucketRendezvous, RendezvousRecord
from plinth.training.telemetry.timeline import Timeline
from tests.s3_server import Bucket, bad_line

pytestmark = pytest.mark.slow

On = Callable[[str], RunDirectory]
A, B = "a" * 32, "b" * 32


def shared(run: RunDirectory, session: str = "") -> SharedRun:
    found = SharedRun.of(run, session)
    assert found is not None
    return found


def named(name: str) -> Callable[[RunHead], RunHead]:
    return lambda head: head.model_copy(update={"commits": {**head.commits, name: "0" * 16}})


def test_a_stale_claimant_changes_nothing(machine: On) -> None:
    """Its lease expired while it was away, and another machine has claimed the run."""
    stale, new = shared(machine("a"), A), shared(machine("b"), B)
    assert stale.read() is None
    assert stale.claim().session == A
    stale.change(named("step-00000001"))
    assert new.claim(lease_s=-1.0).commits == {"step-00000001": "0" * 16}
    for _ in range(2):
        with pytest.raises(LaunchError, match="another supervisor has claimed run") as error:
            stale.change(named("step-00000002"))
        assert B in str(error.value.found)
    new.change(named("step-00000003"))
    found = new.read()
    assert found is not None
    assert sorted(found.head.commits) == ["step-00000001", "step-00000003"]


def test_a_live_claim_is_refused_and_a_released_one_is_free(machine: On, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, other = shared(machine("a"), A), shared(machine("b"), B)
    holder.claim()
    assert is_active(holder.read())
    assert not is_active(holder.read(), lease_s=-1.0)
    changes = [named("step-00000001"), lambda head: head]  # a save of the holder, which is then alive

    def changed(seconds: float) -> None:  # while the other waits for the lease
        holder.change(changes.pop(0))

    monkeypatch.setattr(heads.time, "sleep", changed)
    with pytest.raises(LaunchError, match="another supervisor has claimed run"):
        other.claim()
    assert changes == []
    holder.change(lambda head: head.model_copy(update={"ended": True}))
    assert not is_active(holder.read())
    with pytest.raises(LaunchError, match="another supervisor has claimed run"):
        other.claim(-1.0, ended=False)  # a job that has ended is not succeeded
    assert other.claim().session == B


def test_a_save_that_is_committed_after_its_supervisor_was_killed_does_not_keep_others_off(
    machine: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other, wait = shared(machine("a"), A), shared(machine("b"), B), time.sleep
    writer.claim()

    def committed(seconds: float) -> None:
        writer.change(named("step-00000001"))
        monkeypatch.setattr(heads.time, "sleep", lambda seconds: wait(1.2))

    monkeypatch.setattr(heads.time, "sleep", committed)
    assert other.claim(lease_s=1.0).commits == {"step-00000001": "0" * 16}


def test_steps_that_a_lost_machine_has_not_told_are_taken_again(machine: On, make: Callable[..., RunConfig]) -> None:
    """Its writer has committed step 6, and the timeline in the bucket ends with step 3."""
    run = shared(machine("a"), A)
    run.claim()
    run.change(named("step-00000006"))
    config, bucket = make(workspace=run.run.workspace), SharedCheckpoints(run.run, A)
    for step in (1, 2, 3):
        Timeline(run.run.events).append("step", step=step)
    ranks = JobRanks(config, run.run.config, -1, NodePlace(), Leader(config, NodePlace()), JobLog(run.run))
    assert bucket.committed() == [6]
    shipper = Shipper(run, run.claim(-1.0))
    assert takeover._fetch(ranks, shipper) == []
    assert bucket.committed() == []
    assert shipper.end()


def test_changes_of_one_session_are_all_kept(machine: On) -> None:
    """Supervisor and writers change the head at the same time."""
    shared(machine("a"), A).claim()
    names = [f"step-{step:08d}" for step in range(12)]
    threads = [threading.Thread(target=shared(machine("a"), A).change, args=(named(name),)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = shared(machine("a")).read()
    assert found is not None
    assert sorted(found.head.commits) == names


def test_a_lost_answer_is_no_failure(machine: On, bucket: Bucket) -> None:
    shared(machine("a"), A).claim()
    with bad_line(bucket.endpoint, 0, 3) as line:
        head = shared(machine("a"), A).change(named("step-00000001"))
    assert line.cuts == 3
    assert list(head.commits) == ["step-00000001"]


def test_a_head_that_no_worker_wrote_is_refused(machine: On, bucket: Bucket) -> None:
    run = shared(machine("a"), A)
    run.claim()
    key = run.objects.where(HEAD).removeprefix(f"s3://{bucket.name}/")
    good = json.loads(bucket.get(key))
    forged = {**good, "head": {**good["head"], "session": B}}
    for data in (json.dumps(forged).encode(), b"[]", b"", json.dumps({"head": good["head"], "seal": None}).encode()):
        bucket.put(key, data)
        with pytest.raises(IntegrityError, match="is not the record of this run"):
            run.read()


def test_an_old_head_that_is_put_back_is_refused_where_a_newer_one_was_seen(
    machine: On, bucket: Bucket, make: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With it, machines would delete the checkpoints that it does not list. The machines of a job refuse it too if its
    submitter has seen a newer one."""
    run, reader = shared(machine("a"), A), shared(machine("b"))
    run.claim()
    key = run.objects.where(HEAD).removeprefix(f"s3://{bucket.name}/")
    old = bucket.get(key)
    run.change(named("step-00000001"))
    assert reader.read() is not None
    shared(machine("c"), B).claim(lease_s=-1.0)  # another session goes on counting
    for one in (run, reader):
        assert one.read() is not None
    bucket.put(key, old)
    for one in (run, reader):
        with pytest.raises(IntegrityError, match="is not the record of this run"):
            one.read()
    assert shared(machine("new")).read() is not None  # it cannot know
    place, known = run.objects.where("config.json"), heads.seen_change(run.run)
    assert command(make(workspace=run.run.workspace), 0)[-2:] == ["--head", str(known)]
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "of a job"))
    for planted, said in ((old, "is not the record of this run"), (None, "does not exist")):
        bucket.put(key, planted) if planted else bucket.remove(key)
        with pytest.raises(IntegrityError, match=said):
            shipping.fetch_config(place, known)


def test_the_secret_of_a_job_is_not_in_the_bucket(machine: On, bucket: Bucket) -> None:
    run = shared(machine("a"), A)
    run.claim()
    record = RendezvousRecord(address="10.0.0.1:77", secret="0f" * 32)
    BucketRendezvous(run).publish(record)
    assert record.secret.encode() not in bucket.get(run.objects.where(HEAD).removeprefix(f"s3://{bucket.name}/"))
    assert BucketRendezvous(shared(machine("b"))).read() == record
    before = run.read()
    shared(machine("b"), B).claim(lease_s=-1.0, ended=False)  # a spare, which has not published its address yet
    assert BucketRendezvous(shared(machine("c"))).read() is None
    with pytest.raises(LaunchError):
        BucketRendezvous(run).publish(record)
    succeeded = record.model_copy(update={"address": "10.0.0.2:78"})  # of the same job
    BucketRendezvous(shared(machine("b"), B)).publish(succeeded)
    after = shared(machine("c")).read()
    assert before is not None
    assert after is not None
    assert len({record.secret, before.head.secret, after.head.secret}) == 3
    assert BucketRendezvous(shared(machine("c"))).read() == succeeded
    with pytest.raises(LaunchError):
        BucketRendezvous(run).publish(record)  # of the lost node 0, which returns


def test_without_a_secret_of_the_workers_no_job_runs_from_a_bucket(
    machine: On, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its secret would be plain in the head, and anyone could give it orders."""
    monkeypatch.setattr(heads, "load", lambda folder: Seal(None))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "a"))
    run = shared(machine("a"), A)
    run.claim()
    with pytest.raises(SealError, match="this machine has no secret of the workers"):
        BucketRendezvous(run).publish(RendezvousRecord(address="10.0.0.1:77", secret="0f" * 32))
    found = run.read()
    assert found is not None
    assert (found.head.address, found.head.secret) == ("", "")
    with pytest.raises(SealError, match="this machine has no secret of the workers"):
        shipping.fetch_config(run.objects.where("config.json"))


def test_files_that_a_submitter_gives_do_not_renew_an_expired_claim(
    machine: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, submitter = shared(machine("a"), A), shared(machine("b"))
    lost.claim()
    submitter.give({"config.json": b"{}"})
    assert is_active(submitter.read())
    monkeypatch.setattr(heads, "is_active", lambda found: False)  # a minute later
    submitter.give({"config.json": b"[]"})
    assert shared(machine("c"), B).claim().session == B
    submitter.give({"config.json": None, "handle.json": b"{}"})
    found = submitter.read()
    assert found is not None
    assert (found.head.session, list(found.head.given)) == (B, ["handle.json"])


def test_requests_wait_for_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [StorageError("away"), StorageError("away"), 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, StorageError):
            raise answer
        return int(answer)

    monkeypatch.setattr(heads.time, "sleep", lambda seconds: None)
    assert heads.patiently(ask) == 7
    monkeypatch.setattr(heads, "PATIENCE_S", -1.0)
    answers[:] = [StorageError("away")]
    with pytest.raises(StorageError, match="away"):
        heads.patiently(ask)
