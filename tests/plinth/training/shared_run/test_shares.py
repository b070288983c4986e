"""Checkpoints of machines without a common disk: each has its share, the bucket has all, and one request commits.

The writers of two ranks work on two machines, one after the other. A kill strikes before a request to the bucket, or
after its answer, which nobody reads.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from plinth.errors import CheckpointError, LaunchError, StorageError
from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.storage.uris import sizes
from plinth.training.checkpoint import checkpoint, rank_part, shares, writer
from plinth.training.checkpoint.rank_part import Lead, SharedSave, Tensor, TensorsFile, Timing, WritePlan
from plinth.training.checkpoint.shares import SharedCheckpoints
from plinth.training.config import RunConfig, layout_of
from plinth.training.directory import RunDirectory
from plinth.training.parameters.run import Checkpoints
from plinth.training.shared_run.head import RecordedFile, RunHead, SharedRun
from plinth.training.shared_run.shipping import refresh
from tests.s3_server import Bucket, bad_line

pytestmark = pytest.mark.slow

On = Callable[[str], RunDirectory]
A, B = "a" * 32, "b" * 32
BLOCK = memoryview(bytes(range(256)) * 16)


@pytest.fixture
def config(make: Callable[..., RunConfig]) -> RunConfig:
    """A run on two machines, of one rank each."""
    unchecked = Supervision(host_checks=HostChecks(enabled=False))
    return make(launch=Launch(kind="slurm", ranks=2, nodes=2), supervision=unchecked)


def claim(run: RunDirectory, session: str) -> None:
    shared = SharedRun.of(run, session)
    assert shared is not None
    shared.claim(lease_s=-1.0)


def plan_of(config: RunConfig, run: RunDirectory, session: str, step: int, rank: int, number: int) -> WritePlan:
    tensor = Tensor(name="w", dtype="F32", torch_dtype="torch.float32", shape=(512,), at=rank * 2048, bytes=2048)
    state = {"step": step, "monitor": {}, "layout": layout_of(config)}
    lead = Lead(ranks=2, state=state, checkpoints=Checkpoints(keep_last=2), always=())
    path = f"engine/rank-{rank:05d}.safetensors"
    return WritePlan(
        run=str(run.root),
        step=step,
        rank=rank,
        mode="async",
        tensor_files=(TensorsFile(path=path, metadata={}, tensors=(tensor,)),),
        texts={f"rng/rank-{rank:05d}.json": f"[{number}]"},
        pieces={"w": (0, 0, 1, rank * 512, rank * 512 + 512)},
        parameters=(tensor,) if rank == 0 else (),
        optimizer=(tensor,),
        rng_sha256="r",
        lead=lead if rank == 0 else None,
        shared=SharedSave(number=f"{number:016x}", session=session, first=rank, ranks=1),
    )


def save(config: RunConfig, runs: tuple[RunDirectory, RunDirectory], session: str, step: int, number: int = 1) -> None:
    """The writers' work of both machines."""
    leading, other = (plan_of(config, run, session, step, rank, number) for rank, run in enumerate(runs))
    for plan in (other, leading):
        checkpoint.stage(plan.directory, step)
        rank_part.write(plan, BLOCK)
    finish(leading, other)


def finish(leading: WritePlan, other: WritePlan) -> None:
    assert leading.lead is not None
    assert other.shared is not None
    writer.wait_for_parts(leading, leading.lead)
    rank_part.commit(leading, leading.lead, Timing(0.0, 0.0, 0.0))
    writer.adopt(other, other.shared)


def away() -> None:
    raise StorageError("the bucket is away")


def files(run: RunDirectory) -> set[str]:
    return {path.name for path in run.checkpoints.glob("*/engine/*")}


def in_bucket(bucket: Bucket, run: RunDirectory) -> set[str]:
    """The saves in the bucket: their folders, records and parts."""
    shared = SharedRun.of(run)
    assert shared is not None
    return {name.partition("/")[0] for name in sizes(shared.objects.uri) if name.startswith("step-")}


def test_each_machine_has_its_share(config: RunConfig, machine: On, bucket: Bucket) -> None:
    runs = here, there = machine("a"), machine("b")
    claim(here, A)
    for step in (1, 2, 3):
        save(config, runs, A, step, step)
        assert checkpoint.committed(here) == checkpoint.committed(there) == [1, 2, 3][max(0, step - 2) : step]
    assert (files(here), files(there)) == ({"rank-00000.safetensors"}, {"rank-00001.safetensors"})
    kept = {f"step-{step:08d}.{step:016x}{suffix}" for step in (2, 3) for suffix in ("", ".json", ".parts")}
    assert in_bucket(bucket, here) >= {name for name in kept if not name.endswith(".parts")}
    assert in_bucket(bucket, here) <= kept
    for rank, run in enumerate(runs):
        checkpoint.verify_share(run, 3, rank, 2)

    new = machine("c"), machine("d")
    claim(new[0], B)
    for rank, run in enumerate(new):
        refresh(run)  # a command was called there
        assert SharedCheckpoints(run, B).sync(config, range(rank, rank + 1)) == [3, 2]
        assert SharedCheckpoints(run, B).sync(config, range(rank, rank + 1)) == []
        checkpoint.verify_share(run, 3, rank, 2)
        assert files(run) == {f"rank-{rank:05d}.safetensors"}
        assert (run.checkpoints / "step-00000003.json").read_bytes() == checkpoint.record_path(here, 3).read_bytes()


def test_a_reader_fetches_a_whole_checkpoint(config: RunConfig, machine: On) -> None:
    runs = machine("a"), machine("b")
    claim(runs[0], A)
    save(config, runs, A, 1)
    reader = config.model_copy(update={"workspace": str(machine("c").workspace)})
    refresh(reader.directory)
    assert checkpoint.committed(reader.directory) == [1]
    assert checkpoint.kept(reader.directory) == []
    shares.fetch_whole(reader, 1, state_only=True)
    assert checkpoint.read_state(reader.directory, 1)["step"] == 1
    assert files(reader.directory) == set()
    shares.fetch_whole(reader, 1)
    checkpoint.verify(reader.directory, 1)
    with checkpoint.record_path(runs[0], 1).open("rb") as record:
        assert record.read() == checkpoint.record_path(reader.directory, 1).read_bytes()
    save(config, runs, A, 2)
    SharedCheckpoints(runs[0], A).drop([1])
    refresh(reader.directory)
    assert checkpoint.committed(reader.directory) == [2]
    assert not checkpoint.path(reader.directory, 1).exists()


def test_another_layout_needs_all_files(config: RunConfig, machine: On) -> None:
    runs = machine("a"), machine("b")
    claim(runs[0], A)
    save(config, runs, A, 1)
    other = config.model_copy(update={"micro_batch_sequences": 1})
    SharedCheckpoints(machine("c"), A).sync(other, range(1))
    checkpoint.verify(machine("c"), 1)


def test_a_stale_leader_commits_nothing(config: RunConfig, machine: On, bucket: Bucket) -> None:
    """Its writers were at work when another machine claimed the run; what they have uploaded is deleted later."""
    runs = stale, other = machine("a"), machine("b")
    claim(stale, A)
    save(config, runs, A, 1, 1)
    plans = [plan_of(config, run, A, 2, rank, 2) for rank, run in enumerate(runs)]
    for plan in plans:
        checkpoint.stage(plan.directory, 2)
        rank_part.write(plan, BLOCK)
    new = machine("c"), machine("d")
    claim(new[0], B)
    assert plans[0].lead is not None
    with pytest.raises(LaunchError, match="another supervisor has claimed"):
        rank_part.commit(plans[0], plans[0].lead, Timing(0.0, 0.0, 0.0))
    assert plans[1].shared is not None
    with pytest.raises(CheckpointError, match="was not committed"):
        writer.adopt(plans[1], plans[1].shared)
    assert checkpoint.committed(stale) == checkpoint.committed(other) == [1]
    for rank, run in enumerate(new):
        assert SharedCheckpoints(run, B).sync(config, range(rank, rank + 1)) == [1]
    save(config, new, B, 2, 3)
    assert {name.partition(".")[2][:16] for name in in_bucket(bucket, stale)} == {f"{1:016x}", f"{3:016x}"}


def test_a_leader_that_is_away_while_it_retires_deletes_nothing_of_the_next(
    config: RunConfig, machine: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, new, dropped = (machine("a"), machine("b")), (machine("c"), machine("d")), SharedCheckpoints.drop
    claim(runs[0], A)
    save(config, runs, A, 1)

    def drop(self: SharedCheckpoints, steps: Iterable[int]) -> RunHead:
        head = dropped(self, steps)
        if self.shared.session == A:  # its machine stands still here, until the claim has expired
            claim(new[0], B)
            save(config, new, B, 2, 2)
        return head

    monkeypatch.setattr(SharedCheckpoints, "drop", drop)
    SharedCheckpoints(runs[0], A).retire([])
    assert SharedCheckpoints(machine("e"), B).sync(config, range(2)) == [2, 1]


def test_ranks_fetch_what_they_load_whoever_commits_it_on_their_machine(config: RunConfig, machine: On) -> None:
    """After a loss, the leading rank names a checkpoint that the writer of another machine has not committed yet; an
    auditing machine has the ranks of all nodes."""
    here, there = machine("a"), machine("b")
    claim(here, A)
    leading, other = (plan_of(config, run, A, 1, rank, 1) for rank, run in enumerate((here, there)))
    for plan in (other, leading):
        checkpoint.stage(plan.directory, 1)
        rank_part.write(plan, BLOCK)
    assert leading.lead is not None
    writer.wait_for_parts(leading, leading.lead)
    rank_part.commit(leading, leading.lead, Timing(0.0, 0.0, 0.0))
    assert checkpoint.committed(there) == []
    shares.fetch_share(config, there, 1, range(1, 2))
    checkpoint.verify_share(there, 1, 1, 2)
    assert other.shared is not None
    writer.adopt(other, other.shared)  # later
    checkpoint.verify_share(there, 1, 1, 2)
    assert files(there) == {"rank-00001.safetensors"}
    for rank in (0, 1, 0):
        shares.fetch_share(config, machine("c"), 1, range(rank, rank + 1))
    checkpoint.verify(machine("c"), 1)
    damaged = checkpoint.path(machine("c"), 1) / "engine/rank-00001.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    for compare, outcome in ((False, pytest.raises(CheckpointError)), (True, nullcontext())):
        shares.fetch_share(config, machine("c"), 1, range(1, 2), compare=compare)
        with outcome:
            checkpoint.verify(machine("c"), 1)


def test_a_save_that_will_not_be_committed_holds_up_no_machine(
    config: RunConfig, machine: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leading rank's writer has failed; or a rank was lost, and the others have left their writers, which wait for
    each other: for the part, and for the commit. They wait a minute, or until they are told that it is no use."""
    here, there = machine("a"), machine("b")
    claim(here, A)
    leading, other = (plan_of(config, run, A, 1, rank, 1) for rank, run in enumerate((here, there)))
    assert leading.lead is not None
    assert other.shared is not None
    for plan in (other, leading):
        checkpoint.stage(plan.directory, 1)
    rank_part.write(leading, BLOCK)
    keyboard, pipe = os.dup(0), os.pipe()
    try:
        os.dup2(pipe[0], 0)
        assert writer._limited(leading, 7.0) == 7.0
        lock = writer.hold(here, 0)
        writer.give_up(here)  # a node was lost, and the rank waits for the answer of its writer
        os.close(lock)
        assert writer._limited(leading, 1e12) <= time.monotonic()
        writer.wanted_path(here, 0).unlink()
        os.close(pipe[1])
        for orphan_s in (0.5, 3600.0):
            monkeypatch.setattr(writer, "ORPHAN_S", orphan_s)
            with pytest.raises(CheckpointError, match="the part of rank 1 on another machine did not arrive"):
                writer.wait_for_parts(leading, leading.lead)
            with pytest.raises(CheckpointError, match="was not committed by the leading rank"):
                writer.adopt(other, other.shared)
            for plan in (leading, other):
                lock = writer.hold(plan.directory, plan.rank)
                writer.give_up(plan.directory)
                os.close(lock)
        writer.wanted_path(here, 0).write_text(str(os.getpid()))  # it is the next writer itself
        assert writer._limited(leading, 1e12) > time.monotonic() + 3000.0
    finally:
        os.dup2(keyboard, 0)
        os.close(keyboard)
        os.close(pipe[0])
    writer.tell_machines(leading, {"kind": "DiskFullError", "what": "no room on a"})
    with pytest.raises(CheckpointError, match="was not committed by the leading rank"):
        writer.adopt(other, other.shared)


def test_a_leader_asks_for_parts_a_few_times_per_second(
    config: RunConfig, machine: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, pauses, opened = (machine("a"), machine("b")), list[float](), list[object]()
    claim(runs[0], A)
    leading, other = (plan_of(config, run, A, 1, rank, 1) for rank, run in enumerate(runs))
    made = shares.SharedCheckpoint.__init__

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            rank_part.write(other, BLOCK)

    def make(self: object, *args: Any) -> None:
        opened.append(self)
        made(self, *args)  # type: ignore[arg-type]

    for plan in (leading, other):
        checkpoint.stage(plan.directory, 1)
    monkeypatch.setattr(shares.SharedCheckpoint, "__init__", make)
    monkeypatch.setattr(writer.time, "sleep", pause)
    rank_part.write(leading, BLOCK)
    assert leading.lead is not None
    writer.wait_for_parts(leading, leading.lead)
    assert pauses == [shares.POLL_S] * 5
    assert len(opened) <= 3  # of the leading rank, of the other one, and of the leading one again


def test_checkpoints_of_an_earlier_version_are_uploaded(
    config: RunConfig, machine: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were on one machine only. Neither the first claim of the run nor an interrupted upload deletes them."""
    run = machine("a")
    for step in (1, 2):
        checkpoint.stage(run, step)
        for rank in (0, 1):
            rank_part.write(plan_of(config, run, A, step, rank, step).model_copy(update={"shared": None}), BLOCK)
        leading = plan_of(config, run, A, step, 0, step).model_copy(update={"shared": None})
        assert leading.lead is not None
        rank_part.commit(leading, leading.lead, Timing(0.0, 0.0, 0.0))
    claim(run, A)
    shared = SharedRun.of(run, A)
    assert shared is not None
    shipped = RecordedFile(bytes=0, sha256="0" * 64)  # before the checkpoints, by an earlier job
    shared.change(lambda head: head.model_copy(update={"files": {"result.json": shipped}}))
    with monkeypatch.context() as patch:
        patch.setattr(SharedCheckpoints, "put", lambda self, key, data: away() if "00000002" in key else None)
        with pytest.raises(StorageError, match="away"):
            SharedCheckpoints(run, A).upload_earlier()
    for _ in range(2):
        SharedCheckpoints(run, A).upload_earlier()
        assert SharedCheckpoints(run, A).sync(config, range(2)) == []
    assert checkpoint.committed(run) == [1, 2]
    assert SharedCheckpoints(machine("b"), A).sync(config, range(2)) == [2, 1]
    checkpoint.verify(machine("b"), 2)


def test_a_failed_part_is_named_on_the_leading_machine(config: RunConfig, machine: On) -> None:
    runs = machine("a"), machine("b")
    claim(runs[0], A)
    leading, other = (plan_of(config, run, A, 1, rank, 1) for rank, run in enumerate(runs))
    checkpoint.stage(runs[0], 1)
    rank_part.write(leading, BLOCK)
    writer._report_failure(other, {"kind": "DiskFullError", "what": "no room on b"})
    assert leading.lead is not None
    with pytest.raises(Exception, match="no room on b"):
        writer.wait_for_parts(leading, leading.lead)


def test_a_bad_line_delays_a_save(config: RunConfig, machine: On, bucket: Bucket) -> None:
    runs = machine("a"), machine("b")
    claim(runs[0], A)
    with bad_line(bucket.endpoint, 0, 4) as line:
        save(config, runs, A, 1)
    assert line.cuts == 4
    assert checkpoint.committed(runs[1]) == [1]


def count_requests(strike_at: int) -> list[int]:
    """Kill this process at the k-th boundary of its requests: before one is sent, or once its answer is there."""
    from botocore.httpsession import URLLib3Session

    passed, whole = [0], URLLib3Session.send

    def cross() -> None:
        passed[0] += 1
        if passed[0] == strike_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def send(self: Any, request: Any) -> Any:
        cross()
        answer = whole(self, request)
        cross()
        return answer

    URLLib3Session.send = send
    return passed


def in_child(work: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(work() or 0))
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(number: int, config: RunConfig, runs: tuple[RunDirectory, RunDirectory], session: str, step: int) -> None:
    count_requests(number)
    save(config, runs, session, step, step)


@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_killed_at_every_request_of_a_save(config: RunConfig, machine: On, bucket: Bucket, every: int) -> None:
    """Other machines continue: from the save if it was committed, otherwise from the one before. Nothing is mixed."""
    runs = machine("a"), machine("b")
    claim(runs[0], A)
    for step in (1, 2):
        save(config, runs, A, step, step)
    read, write = os.pipe()

    def counted() -> None:
        passed = count_requests(0)
        save(config, runs, A, 3, 3)
        os.write(write, str(passed[0]).encode())

    assert in_child(counted) == 0
    total, newest = int(os.read(read, 20)), []
    assert total > 40
    session = A
    for number in range(1, total + 1, every):
        step = 3 + number
        assert in_child(partial(killed_at, number, config, runs, session, step)) == -9
        session = f"{number:032x}"
        claim(runs[0], session)  # the machines themselves return
        for rank, run in enumerate(runs):
            checkpoint.clean(run)
            SharedCheckpoints(run, session).sync(config, range(rank, rank + 1))
            checkpoint.verify_share(run, checkpoint.committed(run)[-1], rank, 2)
            assert files(run) == {f"rank-{rank:05d}.safetensors"}
            texts = (checkpoint.path(run, checkpoint.committed(run)[-1]) / f"rng/rank-{rank:05d}.json").read_text()
            assert texts == f"[{checkpoint.committed(run)[-1]}]"
        assert checkpoint.committed(runs[0]) == checkpoint.committed(runs[1])
        newest.append(checkpoint.committed(runs[0])[-1] == step)
    assert newest == sorted(newest)  # before the request that commits, never; after it, always
    save(config, runs, session, 1000, 1000)
    listed = {f"step-{step:08d}" for step in checkpoint.committed(runs[0])}
    assert {name.partition(".")[0] for name in in_bucket(bucket, runs[0])} == listed
