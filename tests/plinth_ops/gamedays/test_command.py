"""`plinth ops gameday`: lists, plays, signs, writes the page, and fails by exit code; with game days that train
nothing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from plinth_jobs.cli import call
from plinth_ops.gamedays import gameday
from plinth_ops.gamedays.gameday import GameDay, Struck, finding


def _played(prepared: Any, folder: Path, chooser: Random) -> Struck:
    return Struck(f"at {chooser.randrange(100)}", (finding("the second holds too", folder.name != "instant-1", True),))


TOY = GameDay("toy", "It holds.", "a fault", "a protection", lambda folder: None, _played, "nothing", 60.0)
LACKS = GameDay("lacks", "It holds.", "f", "p", lambda _: None, _played, "b", 60.0, missing=lambda: "no server")


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch, own_trust: Path, tmp_path: Path) -> None:
    here = {"toy": f"{__name__}:TOY", "lacks": f"{__name__}:LACKS"}
    monkeypatch.setattr(gameday, "TABLE", {**here, "preemption": gameday.TABLE["preemption"]})
    monkeypatch.setenv("PLINTH_WORKSPACE", str(Workspace(tmp_path / "workspace").ensure().root))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert call(["ops", "gameday", *arguments]) == code
    return "".join(capsys.readouterr())


def test_a_game_day_is_played_signed_and_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = shown(capsys, "toy", "--instants", "1")
    assert "hypothesis    It holds." in said
    assert "toy: passed" in said
    assert "record 1 of gamedays/, SHA-256 " in said
    assert "signed by evaluator" in said
    assert "Passed: 1 of 1 fault injections passed in" in (tmp_path / "workspace/reports/gameday-toy.html").read_text()
    listed = {row["name"]: row for row in json.loads(shown(capsys, "list", "--json"))}
    assert listed["toy"]["last"]["passed"] is True
    assert listed["lacks"]["missing"] == "no server"
    assert listed["preemption"]["last"] is None
    assert "never run" in shown(capsys, "list")


def test_one_that_fails_has_its_exit_code_and_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, "toy", "--instants", "3", "--json", code=6)
    found = json.loads(said[: said.rindex("}") + 1])
    assert found["passed"] is False
    assert [one["number"] for one in found["instants"]] == [0, 1, 2]
    assert "failed in 1 of 3 fault injections" in said
    assert "plinth ops gameday toy --seed 0 --first 1 --instants 1" in said
    assert {row["name"]: row for row in json.loads(shown(capsys, "list", "--json"))}["toy"]["last"]["passed"] is False


def test_what_cannot_be_played_or_signed_is_refused_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "lacks cannot run on this machine" in shown(capsys, "lacks", code=2)
    assert "no game day 'other'" in shown(capsys, "other", code=3)
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "nothing"))
    assert "hypothesis" not in shown(capsys, "toy", code=8)
    assert "not signed: --unsigned" in shown(capsys, "toy", "--instants", "1", "--unsigned")
