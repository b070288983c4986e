"""The history of releases: signed by the promoter, chained, and broken by any change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.errors import SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import TRAINER
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import LogHead, SignedLog
from plinth_registry import policy, releases
from plinth_registry.releases import ReleaseRecord
from tests.registry.conftest import moved, small_policy


def write(ctx: Context, version: str, model: str = "demo") -> ReleaseRecord:
    made = {"model": model, "candidate_version": version, "at": "2026-01-01T00:00:00+00:00"}
    return moved(ctx, "champion", version, {"candidate": version * 64}, **made)


def test_records_are_numbered_and_chained(ctx: Context) -> None:
    made = [write(ctx, version) for version in "123"]
    assert [record.number for record in made] == [1, 2, 3]
    assert made[0].prior is None
    assert len({record.prior for record in made}) == 3
    assert releases.history(ctx) == tuple(made)


def test_a_model_has_its_own_history(ctx: Context) -> None:
    mine = write(ctx, "1")
    write(ctx, "1", model="other")
    assert releases.history(ctx, "demo") == (mine,)


def test_the_newest_record_cannot_be_removed(ctx: Context) -> None:
    for version in "123":
        write(ctx, version)
    head = (ctx.workspace.releases / releases.HEAD).read_bytes()
    newest = ctx.workspace.releases / "00003.json"
    kept = newest.read_bytes()
    newest.unlink()
    with pytest.raises(SignatureError, match="newest release records are missing"):
        releases.history(ctx)
    newest.write_bytes(kept)
    write(ctx, "4")
    (ctx.workspace.releases / "00004.json").unlink()
    (ctx.workspace.releases / releases.HEAD).write_bytes(head)
    with pytest.raises(SignatureError, match="newest release records are missing"):
        releases.history(ctx)


def test_a_whole_history_cannot_be_removed(ctx: Context) -> None:
    write(ctx, "1")
    write(ctx, "2")
    for path in ctx.workspace.releases.iterdir():
        path.unlink()
    with pytest.raises(SignatureError, match="newest release records are missing"):
        releases.history(ctx)


def test_a_machine_that_has_seen_nothing_refuses_an_old_head(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ctx, "1")
    later = datetime.now(UTC) + timedelta(days=releases.HEAD_DAYS)
    monkeypatch.setattr("plinth.trust.signed_log.now", lambda: later.isoformat(timespec="seconds"))
    with pytest.raises(SignatureError, match="has expired"):
        releases.history(ctx)


def test_a_crash_before_the_head_loses_nothing_and_refreshing_mends_it(ctx: Context) -> None:
    write(ctx, "1")
    head = (ctx.workspace.releases / releases.HEAD).read_bytes()
    write(ctx, "2")
    (ctx.workspace.releases / releases.HEAD).write_bytes(head)
    assert len(releases.history(ctx)) == 2
    assert releases.refresh(ctx)
    assert not releases.refresh(ctx)
    assert len(releases.history(ctx)) == 2


def test_two_crashes_before_the_head_break_nothing(ctx: Context, own_trust: Path) -> None:
    """The record after the first crash signs the head that the crash has left behind, before its own crash."""
    write(ctx, "1")
    path = ctx.workspace.releases / releases.HEAD
    for version in "23":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogHead, "sign", _killed_at(int(version), LogHead.sign))
            with pytest.raises(KeyboardInterrupt):
                write(ctx, version)
    assert dsse.unverified(dsse.envelope_of(path), "head")["predicate"]["number"] == 2
    assert [record.version for record in releases.history(ctx)] == ["1", "2", "3"]
    (own_trust / "seen.json").unlink()  # another machine
    assert len(releases.history(ctx)) == 3
    assert [record.version for record in (write(ctx, "4"), *releases.history(ctx))] == ["4", "1", "2", "3", "4"]


def _killed_at(number: int, sign: Callable[..., None]) -> Callable[..., None]:
    """A process that dies before it signs the head of this record."""

    def killed(head: LogHead, ctx: Context, newest: LogRecord, others: Iterable[SignedLog]) -> None:
        if newest.number == number:
            raise KeyboardInterrupt
        sign(head, ctx, newest, others)

    return killed


def test_two_records_after_the_head_were_put_in(ctx: Context) -> None:
    write(ctx, "1")
    head = (ctx.workspace.releases / releases.HEAD).read_bytes()
    write(ctx, "2")
    write(ctx, "3")
    (ctx.workspace.releases / releases.HEAD).write_bytes(head)
    with pytest.raises(SignatureError, match="the head is older than the newest of the"):
        releases.history(ctx)


@pytest.mark.parametrize("log", ["policies/demo", "exclusions"])
def test_a_new_machine_misses_the_newest_record_of_every_log_that_the_head_names(
    ctx: Context, own_trust: Path, log: str
) -> None:
    policy.sign(ctx, small_policy("demo"))
    exclusions.append(ctx, kind="domain", value="a.example", found=0, reason="a letter")
    write(ctx, "1")
    (own_trust / "seen.json").unlink()  # another machine
    (ctx.workspace.root / log / "00001.json").unlink()
    with pytest.raises(SignatureError, match="are missing or were replaced"):
        releases.refresh(ctx)
    if log == "exclusions":
        return
    with pytest.raises(SignatureError, match="are missing or were replaced"):
        policy.current(ctx, "demo")


def test_a_head_signed_by_somebody_else_is_refused(ctx: Context) -> None:
    write(ctx, "1")
    path = ctx.workspace.releases / releases.HEAD
    statement = dsse.unverified(dsse.envelope_of(path), "it")
    dsse.write(path, statement, Trust.of(ctx.workspace).signer(TRAINER))
    with pytest.raises(SignatureError, match="is invalid"):
        releases.history(ctx)
