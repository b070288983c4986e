"""Records of game days: signed, chained, and refused when they are edited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.storage.workspace import Workspace
from plinth_ops.gamedays import play
from plinth_ops.gamedays.gameday import GameDayRecord, Instant, Outcome


def record(name: str = "toy", passed: bool = True) -> GameDayRecord:
    found = Outcome(what="it <holds>", passed=passed, seen="seen")
    return GameDayRecord(
        name=name,
        hypothesis="h",
        fault="f",
        blast_radius="b",
        abort="a",
        protection="p",
        alerts=(),
        seed=1,
        version="0",
        machine="m",
        instants=(Instant(number=0, struck="here", findings=(found,), seconds=1.5),),
        seconds=2.0,
    )


@pytest.fixture
def ctx(tmp_path: Path, own_trust: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def test_they_are_chained_and_come_back(ctx: Context) -> None:
    play.require_signer(ctx)
    made = [play.append(ctx, record(name, name == "one")) for name in ("one", "two")]
    found = play.records(ctx)
    assert [each.number for each, _ in found] == [1, 2]
    assert found[1][0].prior == made[0].sha256
    assert [(each.name, each.passed) for _, each in found] == [("one", True), ("two", False)]
    assert found[0][0].owners == ("evaluator",)
    assert list(found[0][0].subjects) == ["gameday/one"]


def test_an_edited_or_removed_one_is_refused(ctx: Context) -> None:
    for name in ("one", "two"):
        play.append(ctx, record(name, passed=False))
    first = ctx.workspace.root / "gamedays" / "00001.json"
    kept = first.read_bytes()
    envelope = json.loads(kept)
    envelope["payload"] = envelope["payload"][:-8] + "AAAAAAA="
    first.write_text(json.dumps(envelope))
    with pytest.raises(SignatureError):
        play.records(ctx)
    first.write_bytes(kept)
    assert len(play.records(ctx)) == 2
    (ctx.workspace.root / "gamedays" / "00002.json").unlink()
    with pytest.raises(SignatureError, match="missing"):
        play.records(ctx)


def test_without_a_root_nothing_is_played_that_could_not_be_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "none"))
    with pytest.raises(SignatureError):
        play.require_signer(Context(Workspace(tmp_path / "workspace").ensure()))


def test_the_page_says_what_failed_and_escapes_it(ctx: Context) -> None:
    written = play.write(ctx, record(passed=False), "record 1").read_text()
    assert "Failed: 0 of 1 fault injections passed" in written
    assert "it &lt;holds&gt;: seen" in written
    assert "no page may fire" in written
    assert written == play.write(ctx, record(passed=False), "record 1").read_text()
