"""A run's files on their way to other machines: whole prefixes, whoever wrote them, whatever was interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, LaunchError, LineageError, MissingError
from plinth.launch.base import Handle, write_handle
from plinth.operation import contracts
from plinth.storage import atomic
from plinth.storage.workspace import CACHE_VARIABLE, Workspace
from plinth.training import attempts, contract, job
from plinth.training import config as configuration
from plinth.training.attempts import AttemptRecord
from plinth.training.config import RunConfig
from plinth.training.contract import BucketShare, LaunchContract, RunBudget
from plinth.training.directory import RunDirectory
from plinth.training.predicted_curve import CurvePoint, PredictedCurve
from plinth.training.run_state import RunState, run_state
from plinth.training.shared_run import files, shipping
from plinth.training.shared_run.head import SESSION, SharedRun
from plinth.training.shared_run.shipping import (
    Shipper,
    claim,
    fetch_config,
    give,
    newest_log,
    refresh,
    refresh_all,
    require_free,
)
from plinth.training.telemetry.timeline import Timeline, put_before, timeline
from plinth.trust import dsse
from plinth.trust.dsse import now
from plinth_jobs.cli import call
from plinth_jobs.targets import find_run
from tests.plinth.training.shared_run.conftest import RUN
from tests.s3_server import Bucket
from tests.training_host import HOST

pytestmark = pytest.mark.slow

On = Callable[[str], RunDirectory]
Make = Callable[..., RunConfig]
A, B = "a" * 32, "b" * 32


SHIPPERS: list[Shipper] = []


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(files, "PIECE_BYTES", 256)
    monkeypatch.setenv(shipping.EVERY, "3600")  # tests ship by themselves
    monkeypatch.setenv(SESSION, "")  # which a claim sets
    yield
    for shipper in SHIPPERS:
        shipper._stop.set()
        shipper._thread.join()
    SHIPPERS.clear()


def claimed(run: RunDirectory, session: str, lease_s: float = 60.0) -> Shipper:
    shared = SharedRun.of(run, session)
    assert shared is not None
    head = shared.claim(lease_s)
    refresh(run, own=True)
    SHIPPERS.append(Shipper(shared, head))
    return SHIPPERS[-1]


def steps(run: RunDirectory, *numbers: int) -> None:
    for step in numbers:
        Timeline(run.events).append("step", step=step, loss=1.0)


def state_attempt(run: RunDirectory, make: Make, **changes: Any) -> AttemptRecord:
    """Start the ranks as their supervisor does."""
    data = configuration.write(make(workspace=run.workspace, **changes)).read_bytes()
    return attempts.state(run, data, "0" * 64, ranks=2, nodes=1, hosts=[HOST], audit=False)


def sign(config: RunConfig) -> Mapping[str, Any]:
    """Sign the run's first contract on a machine."""
    made = LaunchContract(
        run=config.run_id, key=config.key, number=1, settings=contract.settings(config),
        mixture={"web": BucketShare(share=1.0, epochs=0.5)}, budget=RunBudget(rank_hours=2, reason="stated"),
        curve=None, owner="ada", at=dsse.now(),
    )  # fmt: skip
    contracts.sign(Context(Workspace(config.workspace)), made)
    return dsse.envelope_of(config.directory.contracts / "0001.json")


def test_a_reader_has_whole_lines_in_order(machine: On) -> None:
    run, reader = machine("a"), machine("b")
    shipper = claimed(run, A)
    for first in range(1, 40, 3):
        steps(run, first, first + 1, first + 2)
        with run.events.open("ab") as stream:
            stream.write(b'{"seq": 9')  # a writer was killed in the middle of a line
        shipper.flush()
        shipper.flush()
        refresh(reader)
        assert list(timeline(reader.events).steps) == list(range(1, first + 3))
    run.log.write_text("one\ntwo\n")
    (run.root / "attempts").mkdir()
    (run.root / "attempts/0001.json").write_text("{}")
    run.result.write_text('{"status": "stopped"}')
    assert shipper.end()
    found = refresh(reader)
    assert found is not None
    assert found.head.ended
    assert (reader.root / "attempts/0001.json").read_text() == "{}"
    assert reader.result.read_bytes() == run.result.read_bytes()
    assert newest_log(reader).read_text() == "one\ntwo\n"
    claimed(run, B)  # the next job of the run, which has no result yet
    refresh(reader)
    assert not reader.result.exists()


def test_another_machine_continues_the_timeline(machine: On, capsys: pytest.CaptureFixture[str]) -> None:
    """What was shipped is kept; what was not is moved aside on the machine that had it, and said."""
    first, second, reader = machine("a"), machine("b"), machine("c")
    lost = claimed(first, A)
    steps(first, *range(1, 8))
    lost.flush()
    steps(first, 8, 9)  # not shipped: the machine is away for a while
    new = claimed(second, B, lease_s=-1.0)
    assert list(timeline(second.events).steps) == list(range(1, 8))
    steps(second, 8)
    Timeline(second.events).append("checkpoint", step=8)
    new.flush()
    with pytest.raises(LaunchError, match="another supervisor has claimed"):
        lost.flush()
    assert not lost.end()
    assert "another supervisor has claimed" in capsys.readouterr().err
    steps(second, 10)
    new.end()
    for machine_of in (reader, first):
        refresh(machine_of)
        assert machine_of.events.read_bytes() == second.events.read_bytes()
    assert list(timeline(first.root / "events.jsonl.unshipped-1").steps) == list(range(1, 10))


def test_the_machine_that_returns_ships_what_it_has(machine: On) -> None:
    """Its supervisor was killed, and no other machine has continued: nothing is lost."""
    run = machine("a")
    killed = claimed(run, A)
    steps(run, 1, 2)
    killed.flush()
    steps(run, 3, 4)
    refresh(run)
    claimed(run, B, lease_s=-1.0).end()
    refresh(machine("b"))
    assert list(timeline(machine("b").events).steps) == [1, 2, 3, 4]


def test_a_copy_does_not_touch_the_files_of_a_live_supervisor(machine: On) -> None:
    run = machine("a")
    lock = atomic.take(run.lock)
    steps(run, 1)
    claimed(run, A).end()
    run.events.write_bytes(b"")
    assert refresh(run) is None
    assert run.events.read_bytes() == b""
    os.close(lock)
    refresh(run)
    assert list(timeline(run.events).steps) == [1]


def test_the_announcement_of_a_submission_is_not_lost_work(machine: On) -> None:
    submitter, node = machine("a"), machine("b")
    submitter.config.write_text("{}")
    Timeline(submitter.events).append("submitted", launcher="slurm")
    give(submitter, "config.json", "allowance.json")
    shipper = claimed(node, A)
    assert node.config.read_text() == "{}"
    steps(node, 1)
    shipper.end()
    refresh(submitter)
    assert submitter.events.read_bytes() == node.events.read_bytes()
    assert list(submitter.root.glob("*.unshipped-*")) == []
    submitter.config.write_text('{"a": 1}')
    give(submitter, "config.json", "allowance.json")
    refresh(node)
    assert node.config.read_text() == '{"a": 1}'


def test_a_job_takes_orders_of_workers_only(
    machine: On, bucket: Bucket, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Someone who can write the bucket cannot make the machines of a job run another configuration, or an earlier one,
    with an earlier allowance."""
    run, node = machine("a"), machine("b")

    def submit(config: str, allowance: str | None) -> None:
        run.config.write_text(config)
        run.allowance.write_text(allowance) if allowance else run.allowance.unlink()
        give(run, "config.json", "allowance.json")

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "b"))
    shared = SharedRun.of(run)
    assert shared is not None
    prefix = shared.objects.uri.removeprefix(f"s3://{bucket.name}/")
    submit("{}", "all")
    early = bucket.get(f"{prefix}/head.json")
    submit('{"launch": {}}', "little")
    refresh(node)
    late = bucket.get(f"{prefix}/head.json")
    bucket.put(f"{prefix}/head.json", early)
    with pytest.raises(IntegrityError, match="is not the record of this run"):
        refresh(node)
    bucket.remove(f"{prefix}/head.json")
    for start in (partial(submit, "[]", "little"), partial(fetch_config, shared.objects.where("config.json"))):
        with pytest.raises(IntegrityError, match=r"head\.json does not exist"):
            start()
    bucket.put(f"{prefix}/head.json", late)
    submit("[]", "little")
    recorded = shared.read()
    assert recorded is not None
    assert recorded.head.beat > 2
    for data in (b"{}", b""):
        bucket.put(f"{prefix}/files/{recorded.head.given['config.json'].sha256}", data)
        with pytest.raises(IntegrityError, match=r"config\.json differs from the record of the run"):
            refresh(node)
    assert node.config.read_text() == '{"launch": {}}'
    submit("[]", None)
    node.allowance.write_text("all")
    assert claim(make(workspace=node.workspace), A) is not None
    assert not node.allowance.exists()


def test_a_contract_is_known_to_every_machine_once_it_is_signed(machine: On) -> None:
    """No job is submitted yet; of two machines that sign the same number, one does."""
    signer, other = machine("a"), machine("b")
    point = CurvePoint(tokens=8, value=3.0, low=2.0, high=4.0)
    drafted = LaunchContract(
        run=signer.root.name, key="k", number=1, settings={}, mixture={}, owner="-", at=now(),
        budget=RunBudget(rank_hours=1, reason="stated"),
        curve=PredictedCurve(params=1, tokens=8, level=0.95, method="by hand", points=(point,)),
    )  # fmt: skip
    contracts.sign(Context(Workspace(signer.workspace)), drafted)
    refresh(other)
    assert contract.known(other) == contract.known(signer) != []
    (other.contracts / "0001.json").unlink()
    with pytest.raises(LineageError, match="contract 1 of run tiny-000000000000 exists"):
        contracts.sign(Context(Workspace(other.workspace)), drafted)


def test_a_run_that_is_active_elsewhere_is_not_submitted_again(machine: On) -> None:
    here, there = machine("a"), machine("b")
    require_free(there)
    shipper = claimed(here, A)
    (here.root / "session").write_text(A)
    require_free(here)  # this machine's supervisor may have been killed
    with pytest.raises(LaunchError, match="is active on"):
        require_free(there)
    shipper.end()
    require_free(there)


def test_what_changed_in_the_bucket_is_found(machine: On, bucket: Bucket) -> None:
    run = machine("a")
    steps(run, *range(1, 20))
    shipper = claimed(run, A)
    shipper.end()
    shared = SharedRun.of(run)
    assert shared is not None
    key = shared.objects.where(f"pieces/{A}/events.jsonl/000001").removeprefix(f"s3://{bucket.name}/")
    good = bucket.get(key)
    for bad in (good.replace(b"1.0", b"2.0", 1), good[:-1]):
        bucket.put(key, bad)
        with pytest.raises(IntegrityError, match=r"events\.jsonl differs from the record"):
            refresh(machine("b"))
        assert not machine("b").events.exists()
    bucket.put(key, good + b"more")  # of a later line, not in the head yet
    refresh(machine("b"))
    assert machine("b").events.read_bytes() == run.events.read_bytes()


def test_an_attempt_that_the_next_machine_does_not_know_is_moved_aside(machine: On, make: Make) -> None:
    """It was not shipped. With it, the chain of attempts would be broken once this machine leads the run again."""
    first, second = machine("a"), machine("b")
    lost = claimed(first, A)
    (first.root / "session").write_text(A)
    state_attempt(first, make)
    lost.flush()
    for _ in range(2):
        state_attempt(first, make)
    new = claimed(second, B, lease_s=-1.0)
    state_attempt(second, make)
    new.end()
    claim(make(workspace=first.workspace), "c" * 32)
    assert state_attempt(first, make).number == 3
    assert sorted(path.name for path in first.attempts.glob("*.unshipped")) == ["0003.json.unshipped"]


def test_the_attempts_of_the_machine_that_returns_stay(machine: On, make: Make) -> None:
    run = machine("a")
    killed = claimed(run, A)
    (run.root / "session").write_text(A)
    killed.flush()
    state_attempt(run, make)
    claim(make(workspace=run.workspace), B)
    assert state_attempt(run, make).number == 2


def test_a_run_whose_record_is_damaged_hides_no_other(
    machine: On, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    run, reader = machine("a"), machine("b")
    steps(run, 1)
    claimed(run, A).end()
    shared = SharedRun.of(run)
    assert shared is not None
    key = shared.objects.where("head.json").removeprefix(f"s3://{bucket.name}/")
    bucket.put(key.replace(run.root.name, "another"), b"[]")
    refresh_all(Workspace(reader.workspace))
    assert list(timeline(reader.events).steps) == [1]
    assert "another/head.json is not the record of this run" in capsys.readouterr().err


def test_an_earlier_timeline_before_the_shipped_one_is_shipped(machine: On) -> None:
    """A machine without checkpoints has fetched one, with its timeline, from `checkpoints.upload`."""
    run, reader = machine("a"), machine("b")
    shipper = claimed(run, A)
    Timeline(run.events).append("job_started", ranks=1, nodes=1)
    shipper.flush()
    refresh(reader)
    earlier = machine("c")
    steps(earlier, *range(1, 9))
    put_before(run.events, earlier.events.read_bytes())
    steps(run, 9)
    shipper.end()
    for one in (reader, machine("d")):
        refresh(one)
        assert one.events.read_bytes() == run.events.read_bytes()


def test_a_contract_reaches_the_machine_that_starts_the_ranks(machine: On, make: Make) -> None:
    signer, node = machine("a"), machine("b")
    config = make(workspace=node.workspace, contract="required")
    configuration.write(config)
    with pytest.raises(MissingError, match="has no launch contract"):
        state_attempt(node, make, contract="required")
    signed = sign(make(workspace=signer.workspace, contract="required"))
    claim(config, A)
    assert state_attempt(node, make, contract="required").contract == contract.fingerprint.digest(signed)


def test_a_job_on_another_machine_is_running_and_is_not_canceled_here(machine: On, make: Make) -> None:
    """This machine has the handle of an earlier job of its own."""
    here, there = machine("a"), machine("b")
    config = make(workspace=here.workspace)
    configuration.write(config)
    write_handle(here.root, Handle(launcher="local", id="1", started="0", host=os.uname().nodename))
    Timeline(here.events).append("submitted", launcher="local")
    Timeline(here.events).append("job_started", ranks=1, nodes=1)
    assert run_state(config) is RunState.LOST
    claimed(there, B)
    assert run_state(config) is RunState.RUNNING
    with pytest.raises(LaunchError, match="is active on"):
        job.cancel(Context(Workspace(here.workspace)), config)


def test_what_is_for_the_ranks_of_another_machine_is_not_left_here(
    machine: On, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    here = machine("a")
    configuration.write(make(workspace=here.workspace))
    give(here, "config.json")
    claimed(machine("b"), B)
    assert call(["-w", str(here.workspace), "run", "profile", "tiny", "--steps", "3"]) != 0
    assert "is active on" in capsys.readouterr().err
    assert not here.profiles.exists()


def test_the_handle_of_a_job_that_waits_is_found_on_any_machine(machine: On, make: Make) -> None:
    """An earlier job of the run has ended; its head has not changed since this machine read it."""
    submitter, reader = machine("a"), machine("b")
    configuration.write(make(workspace=submitter.workspace))
    give(submitter, "config.json")
    claimed(submitter, A).end()
    ctx = Context(Workspace(reader.workspace))
    find_run(ctx, RUN)
    write_handle(submitter.root, Handle(launcher="slurm", id="7", started="0", host="cluster"))
    give(submitter, "handle.json")
    assert find_run(ctx, RUN).directory.handle.read_bytes() == submitter.handle.read_bytes()
