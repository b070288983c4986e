"""The frame of a game day: what passes, what fails, what aborts, and that an instant can be played again alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from plinth.errors import MissingError, RequestError
from plinth.storage.workspace import TRUST_VARIABLE
from plinth_ops.gamedays.gameday import TABLE, GameDay, GameDayRecord, Outcome, Struck, find, finding
from plinth_ops.gamedays.play import play

Play = Callable[[Any, Path, Random], Struck]


def day(played: Play, **changes: Any) -> GameDay:
    """A game day without training."""
    fields = {"hypothesis": "h", "fault": "f", "blast_radius": "b", "protection": "p", "abort_s": 60.0}
    return GameDay(**{**fields, "name": "toy", "prepare": lambda folder: folder, "play": played, **changes})


def holding(prepared: Any, folder: Path, chooser: Random) -> Struck:
    return Struck(f"at {chooser.randrange(10**9)}", (finding("it holds", 1, 1),))


def failures(record: GameDayRecord) -> list[str]:
    return [failure for one in record.instants for failure in one.failures]


def test_an_instant_draws_the_same_alone() -> None:
    together = play(day(holding), seed=3, instants=4)
    alone = play(day(holding), seed=3, instants=1, first=2)
    assert together.passed
    assert alone.instants[0].struck == together.instants[2].struck
    assert len({one.struck for one in together.instants}) == 4
    other = play(day(holding), seed=4, instants=4)
    assert {one.struck for one in other.instants}.isdisjoint(one.struck for one in together.instants)


def test_one_finding_that_does_not_hold_fails_all() -> None:
    def play_it(prepared: Any, folder: Path, chooser: Random) -> Struck:
        return Struck("here", (finding("it holds", 1, 1), finding("the end", folder.name, "instant-0")))

    record = play(day(play_it), instants=2)
    assert [one.passed for one in record.instants] == [True, False]
    assert not record.passed
    assert failures(record) == ["the end: instant-1 ≠ instant-0"]


def test_nothing_compared_is_no_pass() -> None:
    assert not play(day(lambda *_: Struck("here", ())), instants=1, first=0).instants[0].findings[:-1]
    record = GameDayRecord(**{**play(day(holding), instants=1).model_dump(), "instants": ()})
    assert not record.passed


def test_an_error_is_a_failed_instant_and_the_next_is_played() -> None:
    def play_it(prepared: Any, folder: Path, chooser: Random) -> Struck:
        if folder.name == "instant-0":
            raise KeyError("lost")
        return holding(prepared, folder, chooser)

    record = play(day(play_it), instants=2)
    assert [one.passed for one in record.instants] == [False, True]
    assert "KeyError: 'lost' (test_play.py:" in failures(record)[0]


def test_time_aborts_and_what_was_started_is_ended(tmp_path: Path) -> None:
    def play_it(prepared: Any, folder: Path, chooser: Random) -> Struck:
        process = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pid").write_text(str(process.pid))
        with suppress(Exception):  # what is tested may catch anything
            process.wait()
        return holding(prepared, folder, chooser)

    record = play(day(play_it, abort_s=0.5), instants=1)
    assert failures(record) == ["aborted: timeout after 0.5 s"]
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline


def test_damage_outside_aborts_all_that_is_left(tmp_path: Path) -> None:
    outside = tmp_path / "workspace"
    outside.mkdir()
    (outside / "ref").write_text("a")

    def play_it(prepared: Any, folder: Path, chooser: Random) -> Struck:
        if folder.name == "instant-1":
            (outside / "ref").write_text("ab")
        return holding(prepared, folder, chooser)

    record = play(day(play_it), instants=4, outside=(outside,))
    assert [one.passed for one in record.instants] == [True, False]
    assert "1 files outside the scratch folder changed" in record.instants[1].aborted


def test_a_process_that_is_left_over_fails_the_instant() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def play_it(prepared: Any, folder: Path, chooser: Random) -> Struck:
        started.append(subprocess.Popen(["sleep", "600"]))
        return holding(prepared, folder, chooser)

    try:
        assert failures(play(day(play_it), instants=1)) == [f"no process is left: {started[0].pid}"]
    finally:
        started[0].kill()
        started[0].wait()


def test_the_callers_keys_and_servers_are_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ours")
    monkeypatch.setenv("PLINTH_KEY_PROMOTER", "env:OURS")
    before, seen = os.environ[TRUST_VARIABLE], list[dict[str, str]]()

    def play_it(prepared: Any, folder: Path, chooser: Random) -> Struck:
        seen.append(dict(os.environ))
        assert Path(os.environ[TRUST_VARIABLE]).parent == folder.parent
        return holding(prepared, folder, chooser)

    assert play(day(play_it), instants=1).passed
    assert not {"MLFLOW_TRACKING_URI", "PLINTH_KEY_PROMOTER"} & set(seen[0])
    assert (os.environ[TRUST_VARIABLE], os.environ["MLFLOW_TRACKING_URI"]) == (before, "http://ours")
    assert not Path(seen[0][TRUST_VARIABLE]).exists()


def test_the_longest_time_of_every_phase_is_kept_in_their_order() -> None:
    def play_it(prepared: Any, folder: Path, chooser: Random) -> Struck:
        spent = {"instant-0": {"detect": 3.0, "act": 1.0}, "instant-1": {"detect": 2.0, "act": 4.0}}
        return Struck("here", (finding("it holds", 1, 1),), phases=spent.get(folder.name, {}))

    record = play(day(play_it), instants=3)
    assert list(record.phases.items()) == [("detect", 3.0), ("act", 4.0)]
    assert record.instants[1].phases == {"detect": 2.0, "act": 4.0}
    assert not record.instants[2].phases


def test_what_cannot_be_played_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="toy cannot run on this machine") as refused:
        play(day(holding, missing=lambda: "no S3 server"))
    assert refused.value.found == "no S3 server"
    with pytest.raises(RequestError, match="too few instants"):
        play(day(holding), instants=0)
    with pytest.raises(MissingError, match="no game day 'nonsense'"):
        find("nonsense")


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_game_day_states_what_it_must(name: str) -> None:
    found = find(name)
    assert found.name == name
    for stated in (found.hypothesis, found.fault, found.blast_radius, found.protection, found.abort):
        assert len(stated) > 20
    assert found.hypothesis.endswith(".")


def test_findings_say_both_sides() -> None:
    assert finding("n", 1, 2) == Outcome(what="n", passed=False, seen="1 ≠ 2")
