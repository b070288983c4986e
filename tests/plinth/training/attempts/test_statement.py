"""Statements of a run: signed, chained, kept with each checkpoint; a missing, moved or foreign one is refused."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from plinth import fingerprint, processes
from plinth.errors import LineageError, SignatureError, TrustError
from plinth.storage.workspace import Workspace
from plinth.training.attempts import BUNDLE, AttemptRecord, ContinuedState, bundle, known, opened, state, unpacked
from plinth.training.checkpoint import checkpoint
from plinth.training.directory import RunDirectory
from plinth.trust import dsse
from plinth.trust.dsse import EVALUATOR, TRAINER, Authority
from plinth.trust.root import Trust
from tests.training_host import HOST


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(Workspace(tmp_path / "workspace").ensure().runs / "tiny-1")


@pytest.fixture
def trainer(run: RunDirectory) -> Authority:
    return Trust.of(Workspace(run.workspace)).authority(TRAINER)


def begin(run: RunDirectory, continuation: ContinuedState | None = None, **changes: Any) -> AttemptRecord:
    host = HOST.model_copy(update=changes)
    return state(run, b"{}", "key", ranks=2, nodes=1, hosts=[host], audit=False, continuation=continuation)


def commit(run: RunDirectory, step: int) -> Path:
    (checkpoint.stage(run, step) / "state.json").write_text("{}")
    checkpoint.commit(run, step)
    return checkpoint.path(run, step)


def test_each_attempt_names_the_one_before_and_what_it_began_from(run: RunDirectory, trainer: Authority) -> None:
    first = begin(run)
    commit(run, 7)
    second = begin(run, cpus=4)
    assert (first.number, first.previous, first.from_step) == (1, "", 0)
    assert (second.number, second.from_step) == (2, 7)
    assert second.previous == fingerprint.digest(known(run)[0])
    assert first.config_sha256 == hashlib.sha256(b"{}").hexdigest()
    assert opened(known(run), trainer, "tiny-1") == (first, second)
    assert first.hosts[0].hardware != second.hosts[0].hardware
    assert first.hosts[0].software == second.hosts[0].software


def test_a_statement_names_the_trace_of_its_job(
    run: RunDirectory, trainer: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(run)
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    assert "TRACEPARENT" in processes.environment(*processes.KEYS)  # as for the process that signs a checkpoint
    begin(run)
    invalid = ("00-not-a-trace\n", f"00-{'0' * 32}-{'cd' * 8}-01", f"00-{'ab' * 16}-{'0' * 16}-01",
               f"ff-{'ab' * 16}-{'cd' * 8}-01", f"00-{'ab' * 16}-{'cd' * 8}-01\n")  # fmt: skip
    for traceparent in invalid:
        monkeypatch.setenv("TRACEPARENT", traceparent)
        assert dsse.trace_id() == ""
    begin(run)
    assert [one.trace for one in opened(known(run), trainer, "tiny-1")] == ["", "ab" * 16, ""]
    assert ["trace" in dsse.unverified(one, "an attempt")["predicate"] for one in known(run)] == [False, True, False]


def test_a_checkpoint_keeps_what_was_stated_until_then(run: RunDirectory, trainer: Authority) -> None:
    begin(run)
    folder = commit(run, 1)
    begin(run)
    later = commit(run, 2)
    assert checkpoint.verify(run, 1) == folder
    assert [len(opened(unpacked((at / BUNDLE).read_bytes()), trainer, "tiny-1")) for at in (folder, later)] == [1, 2]
    assert (later / BUNDLE).read_bytes() == bundle(run)


def test_a_machine_that_has_only_the_checkpoint_goes_on_with_its_statements(
    run: RunDirectory, trainer: Authority
) -> None:
    begin(run)
    commit(run, 3)
    shutil.rmtree(run.attempts)
    resumed = begin(run, host="node-2")
    assert (resumed.number, resumed.from_step) == (2, 3)
    assert [one.hosts[0].host for one in opened(known(run), trainer, "tiny-1")] == ["node-1", "node-2"]


def test_a_run_that_stated_nothing_keeps_nothing(run: RunDirectory, trainer: Authority) -> None:
    assert bundle(run) is None
    assert not (commit(run, 1) / BUNDLE).exists()
    with pytest.raises(LineageError, match="do not form a complete chain"):
        opened([], trainer, "tiny-1")


def test_a_continuation_has_the_digest_of_the_copies(run: RunDirectory, trainer: Authority) -> None:
    """One with another digest is refused, and one that no trainer signed, or that was altered."""
    told = ContinuedState(lost="rank 1", step=4, source="memory", copies_sha256="a", restored_sha256="a")
    begin(run)
    begin(run, told)
    assert [one.continuation for one in opened(known(run), trainer, "tiny-1")] == [None, told]
    first, second = known(run)
    trust, other = Trust.of(Workspace(run.workspace)), told.model_copy(update={"step": 5}).model_dump(mode="json")
    with pytest.raises(SignatureError):
        opened([first, resigned(second, trust, EVALUATOR, continuation=other)], trainer, "tiny-1")
    altered = resigned(second, trust, TRAINER, continuation=other) | {"signatures": second["signatures"]}
    with pytest.raises(SignatureError):
        opened([first, altered], trainer, "tiny-1")
    begin(run, told.model_copy(update={"restored_sha256": "b"}))
    with pytest.raises(LineageError, match="attempt 3 continued with a state that differs"):
        opened(known(run), trainer, "tiny-1")


def resigned(envelope: Any, trust: Trust, role: str, **changes: Any) -> dict[str, Any]:
    content = dsse.unverified(envelope, "it")
    content["predicate"] |= changes
    return dsse.seal(content, trust.signer(role))


@pytest.mark.parametrize(
    "change",
    [
        lambda own, trust: own[1:],
        lambda own, trust: own[:1] + own[2:],
        lambda own, trust: own[::-1],
        lambda own, trust: [own[0], own[0], own[2]],
        lambda own, trust: [*own[:2], resigned(own[2], trust, TRAINER, run="other")],
        lambda own, trust: [*own[:2], resigned(own[2], trust, TRAINER, previous="0" * 64)],
        lambda own, trust: [*own[:2], resigned(own[2], trust, TRAINER, config_sha256="0" * 64)],
        lambda own, trust: [*own[:2], resigned(own[2], trust, TRAINER, hosts=[])],
        lambda own, trust: [*own[:2], resigned(own[2], trust, EVALUATOR)],
        lambda own, trust: [*own[:2], {**own[2], "signatures": []}],
        lambda own, trust: [*own[:2], {"payload": "x"}],
    ],
)
def test_what_is_not_the_trainers_whole_account_is_refused(run: RunDirectory, trainer: Authority, change: Any) -> None:
    for _ in range(3):
        begin(run)
    with pytest.raises(TrustError):
        opened(change(known(run), Trust.of(Workspace(run.workspace))), trainer, "tiny-1")


def test_no_attempt_begins_on_top_of_a_changed_account(run: RunDirectory) -> None:
    begin(run)
    begin(run)
    (run.attempts / "0001.json").unlink()
    with pytest.raises(LineageError, match="do not form a complete chain"):
        begin(run)
    (run.attempts / "0002.json").write_text("torn")
    with pytest.raises(SignatureError):
        begin(run)
    assert [path.name for path in run.attempts.iterdir()] == ["0002.json"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"attempts": 1}', b'{"attempts": [1]}', b'"x"'])
def test_a_file_of_something_else_is_named(data: bytes) -> None:
    with pytest.raises(LineageError, match="contains no attestations"):
        unpacked(data)
