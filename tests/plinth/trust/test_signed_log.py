"""A signed log: what reading and appending cost as it grows, and that no saving lets a change pass."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import ConflictError, SignatureError
from plinth.storage.objects import Folder
from plinth.storage.state import State
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, enrolment
from plinth.trust.dsse import COMPLIANCE, PROMOTER, TRAINER
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog, anchor_of

LOG = SignedLog("notes", (COMPLIANCE, PROMOTER))
FORMS = {
    "plain": LOG,
    "keeps revoked": SignedLog("notes", (COMPLIANCE, PROMOTER), keeps_revoked=True),
    "flat": SignedLog("notes", (COMPLIANCE,), flat=True),
    "readable": SignedLog("notes", (COMPLIANCE,), flat=True, readable=True),
}
ABOUT = {"note": "0" * 64}
AT = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def ctx(tmp_path: Path, own_trust: Path) -> State:
    return State(Workspace(tmp_path / "workspace").ensure())


def write(ctx: State, count: int, first: int = 1) -> None:
    """Records written one after another, as a machine that proves nothing on the way would."""
    before = LOG.newest(ctx)
    trust = Trust.of(ctx.workspace)
    signer = trust.signer(COMPLIANCE)
    LOG.folder(ctx).mkdir(exist_ok=True)
    for number in range(first, first + count):
        data = LOG.sealed(signer, before, AT, {"n": number}, ABOUT)
        LOG.path(ctx, number).write_bytes(data)
        before = LOG.opened(trust, data, "it", proved=True)


def append(ctx: State, n: int, **more: Any) -> int:
    return LOG.append(ctx, {"n": n}, ABOUT, COMPLIANCE, **{"at": AT, **more}).number


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Signatures verified and files opened."""
    found: Counter[str] = Counter()
    verify, get = dsse.holding, Folder.get

    def verified(*given: Any) -> Any:
        found["signatures"] += 1
        return verify(*given)

    def opened(self: Folder, name: str) -> Any:
        found["files"] += 1
        return get(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(dsse, "holding", verified)
        patch.setattr(Folder, "get", opened)
        yield found


def test_an_append_costs_the_same_however_long_the_log_is(ctx: State, monkeypatch: pytest.MonkeyPatch) -> None:
    costs, written = [], 0
    for length in (10, 100, 1000):
        write(ctx, length - written, written + 1)
        assert len(LOG.records(ctx)) == length
        with counted(monkeypatch) as cost:
            assert append(ctx, length + 1) == length + 1
        costs.append(dict(cost))
        written = length + 1
    assert costs[0] == costs[1] == costs[2]
    assert costs[0] == {"signatures": 3, "files": 3}  # the root twice and the new record; the last record, the new name


def test_what_was_proved_is_read_and_not_verified_again(ctx: State, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ctx, 20)
    found = {}
    for name, whole in (("first", False), ("again", False), ("whole", True)):
        with counted(monkeypatch) as cost:
            assert [record.body["n"] for record in LOG.records(ctx, whole=whole)] == [*range(1, 21)]
        found[name] = cost["signatures"]
    assert (found["first"], found["again"], found["whole"]) == (21, 1, 21)  # one is that of the root
    write(ctx, 5, 21)
    with counted(monkeypatch) as cost:
        assert len(LOG.records(ctx)) == 25
    assert cost["signatures"] == 6


def test_the_last_ones_are_read_without_the_others(ctx: State, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ctx, 50)
    LOG.records(ctx)
    with counted(monkeypatch) as cost:
        assert next(record.number for record in LOG.back(ctx) if record.body["n"] <= 48) == 48
    assert cost["files"] <= 6
    assert [record.number for record in LOG.back(ctx)] == [*range(50, 0, -1)]


def forge(ctx: State, number: int) -> None:
    """Another record under the same number, by the key that may sign it."""
    path = LOG.path(ctx, number)
    content = dsse.unverified(json.loads(path.read_bytes()), "it")
    content["predicate"]["body"] = {"n": "forged"}
    dsse.write(path, content, Trust.of(ctx.workspace).signer(COMPLIANCE))


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    """The envelope of a record changed, in either form of file."""
    whole = json.loads(path.read_bytes())
    made = change(whole.get("envelope", whole))
    path.write_text(json.dumps(whole | {"envelope": made} if "envelope" in whole else made))


def edited(envelope: Any) -> Any:
    """Another time under the old signature."""
    payload = base64.b64decode(envelope["payload"]).replace(b"2026", b"2027")
    return envelope | {"payload": base64.b64encode(payload).decode()}


def swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


Change = Callable[[Trust, list[Path]], object]
ATTACKS: dict[str, tuple[Change, str]] = {
    "edited": (lambda _, files: rewritten(files[1], edited), r"00002\.json is invalid"),
    "by another role": (
        lambda trust, files: rewritten(
            files[1], lambda found: dsse.seal(dsse.unverified(found, "it"), trust.signer(TRAINER))
        ),
        r"00002\.json is invalid",
    ),
    "first taken out": (lambda _, files: files[0].unlink(), "are broken at 00002"),
    "one taken out": (lambda _, files: files[1].unlink(), "are broken at 00003"),
    "moved up": (lambda _, files: files[2].rename(files[1]), "are broken at 00002"),
    "swapped": (lambda _, files: swap(files[1], files[2]), "are broken at 00002"),
    "replaced by another": (lambda _, files: files[2].write_bytes(files[1].read_bytes()), "are broken at 00003"),
    "cut short": (lambda _, files: files[2].unlink(), "newest records of notes/ are missing"),
    "all gone": (lambda _, files: [one.unlink() for one in files], "newest records of notes/ are missing"),
    "torn": (lambda _, files: files[1].write_bytes(b'{"pay'), r"00002\.json is not a DSSE envelope"),
    "a list": (lambda _, files: files[1].write_bytes(b"[]"), r"00002\.json is (not a DSSE envelope|not one of the)"),
    "nothing": (lambda _, files: files[2].write_bytes(b"{}"), r"00003\.json is (not a DSSE envelope|not one of the)"),
    "another file": (lambda _, files: files[0].with_name("old.json").write_text("{}"), "is not a signed record"),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("form", FORMS)
def test_every_other_change_is_refused_by_name(ctx: State, form: str, attack: str) -> None:
    log, (change, said) = FORMS[form], ATTACKS[attack]
    for number in (1, 2, 3):
        log.append(ctx, {"n": number}, ABOUT, COMPLIANCE, at=AT)
    assert [record.body["n"] for record in log.records(ctx)] == [1, 2, 3]
    change(Trust.of(ctx.workspace), [log.path(ctx, number) for number in (1, 2, 3)])
    with pytest.raises(SignatureError, match=said):
        log.records(ctx)
    with pytest.raises(SignatureError):
        list(log.back(ctx))


def test_what_a_readable_record_shows_is_what_was_signed(ctx: State) -> None:
    log = FORMS["readable"]
    log.append(ctx, {"by": "ada"}, ABOUT, COMPLIANCE, at=AT)
    log.path(ctx, 1).write_text(log.path(ctx, 1).read_text().replace('"by": "ada"', '"by": "eve"'))
    with pytest.raises(SignatureError, match="differs from its signed record"):
        log.records(ctx)


@pytest.mark.parametrize("number", [1, 4, 5])
def test_a_record_signed_anew_is_noticed_where_the_old_one_was_proved(ctx: State, number: int) -> None:
    write(ctx, 5)
    LOG.records(ctx)
    forge(ctx, number)
    with pytest.raises(SignatureError, match="are broken at"):
        LOG.records(ctx)
    with pytest.raises(SignatureError, match="are broken at"):
        list(LOG.back(ctx))


def test_an_append_refuses_what_is_missing_and_what_is_new(ctx: State) -> None:
    write(ctx, 5)
    LOG.records(ctx)
    kept = LOG.path(ctx, 2).read_bytes()
    LOG.path(ctx, 2).unlink()
    with pytest.raises(SignatureError, match="are broken at 00003"):
        append(ctx, 6)
    LOG.path(ctx, 2).write_bytes(kept)
    forge(ctx, 5)
    with pytest.raises(SignatureError, match="are broken at 00005"):
        append(ctx, 6)
    LOG.path(ctx, 5).unlink()
    with pytest.raises(SignatureError, match=r"newest records of notes/ are missing"):
        append(ctx, 6)
    LOG.path(ctx, 6).write_text("{}")
    with pytest.raises(SignatureError, match="are broken at 00006"):
        append(ctx, 6)


def test_a_record_that_would_not_hold_is_not_written(ctx: State) -> None:
    append(ctx, 1)
    with pytest.raises(SignatureError, match="older than its predecessor"):
        append(ctx, 2, at="2020-01-01T00:00:00+00:00")
    assert (len(LOG.records(ctx)), append(ctx, 2)) == (1, 2)


def test_what_was_proved_under_another_root_is_verified_again(ctx: State) -> None:
    write(ctx, 3)
    assert len(LOG.records(ctx)) == 3
    key = Trust.of(ctx.workspace).signer(COMPLIANCE)
    enrolment.revoke(ctx.workspace, key.key_id, datetime(2025, 1, 1, tzinfo=UTC))
    for read in (LOG.records, LOG.newest):
        with pytest.raises(SignatureError, match="was revoked"):
            read(ctx)


def test_writers_at_once_lose_nothing(ctx: State) -> None:
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda n: append(ctx, n), range(12)))
    assert sorted(numbers) == [*range(1, 13)]
    assert sorted(record.body["n"] for record in LOG.records(ctx, whole=True)) == [*range(12)]


def test_a_number_that_is_taken_is_a_conflict(ctx: State) -> None:
    append(ctx, 1)
    with pytest.raises(ConflictError, match="another process has written"):
        append(ctx, 2, number=1)
    assert append(ctx, 2, number=2) == 2


def test_an_anchor_is_followed_back_from_the_newest(ctx: State, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ctx, 5)
    anchor = anchor_of(LOG.newest(ctx))
    write(ctx, 3, 6)
    found = LOG.newest_after(ctx, anchor)
    assert found is not None
    assert found.number == 8
    for wrong in ({"number": 5, "sha256": "0" * 64}, {"number": 9, "sha256": "0" * 64}):
        with pytest.raises(SignatureError, match="missing or were replaced"):
            LOG.newest_after(ctx, wrong)
