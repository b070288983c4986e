"""The watch of runs looks at those that are open, however many have ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from plinth.training.directory import RunDirectory
from plinth.training.run_state import RunWatch


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def made(runs: Path, name: str, ended: bool, at_s: float) -> RunDirectory:
    run = RunDirectory(runs / name)
    run.root.mkdir()
    run.events.write_text("{}\n")
    os.utime(run.events, (at_s, at_s))
    if ended:
        run.result.write_text("{}")
    return run


def settle(runs: Path) -> None:
    """As if the folder had last changed a minute ago."""
    at_s = time.time() - 60
    os.utime(runs, (at_s, at_s))


@pytest.mark.parametrize("ended", [1, 10, 100, 1000])
def test_a_look_costs_what_is_open(runs: Path, ended: int) -> None:
    for number in range(ended):
        made(runs, f"e{number}", True, number + 1)
    run = made(runs, "open", False, 10_000)
    settle(runs)
    watch = RunWatch(runs)
    facts, looked = watch.look().facts(), watch.looked_at
    assert looked == ended + 1
    assert watch.newest()[:2] == ["open", f"e{ended - 1}"]
    assert watch.look().facts() == facts
    assert watch.looked_at == looked + 1
    run.events.write_text("{}\n{}\n")
    assert watch.look().facts() != facts
    assert watch.looked_at == looked + 2


def test_runs_that_ended_long_ago_are_counted_and_not_kept(runs: Path) -> None:
    now = time.time()
    made(runs, "old", True, now - 200)
    made(runs, "new", True, now - 50)
    made(runs, "open", False, now - 200)
    settle(runs)
    watch = RunWatch(runs, kept_s=100.0).look()
    assert set(watch.timelines()) == {"new", "open"}
    looked, facts = watch.looked_at, watch.facts()
    assert watch.look().facts() == facts == RunWatch(runs).look().facts()
    assert watch.looked_at == looked + 1


def test_what_a_watch_of_another_process_has_seen_is_the_same(runs: Path) -> None:
    made(runs, "r1", True, 1)
    made(runs, "r2", False, 2)
    settle(runs)
    watch = RunWatch(runs)
    watch.look()
    assert watch.look().facts() == RunWatch(runs).look().facts()


def test_a_run_that_ends_begins_again_is_made_and_is_removed(runs: Path) -> None:
    run, watch = made(runs, "r1", False, 1), RunWatch(runs)
    settle(runs)
    facts = [watch.look().facts()]
    run.result.write_text("{}")
    facts.append(watch.look().facts())
    run.reopen()
    settle_newer(runs)
    facts.append(watch.look().facts())
    run.events.write_text("{}\n{}\n")
    facts.append(watch.look().facts())
    made(runs, "r2", True, 3)
    facts.append(watch.look().facts())
    run.events.unlink()
    run.root.rmdir()
    facts.append(watch.look().facts())
    assert len({str(one) for one in facts}) == 6
    assert watch.newest() == ["r2"]


def settle_newer(runs: Path) -> None:
    """The folder was touched since, half a minute ago."""
    assert time.time() - runs.stat().st_mtime < 30
    os.utime(runs, (time.time() - 30, time.time() - 30))


def test_a_change_within_the_resolution_of_the_clock_is_seen(runs: Path) -> None:
    watch = RunWatch(runs)
    made(runs, "r1", True, 1)
    watch.look()
    now = runs.stat().st_mtime_ns
    made(runs, "r2", True, 2)
    os.utime(runs, ns=(now, now))
    assert watch.look().newest() == ["r2", "r1"]


def test_no_runs(tmp_path: Path) -> None:
    watch = RunWatch(tmp_path / "none")
    assert watch.look().newest() == []
    made((tmp_path / "none").parent, "none", False, 1).events.unlink()
    made(tmp_path / "none", "r1", False, 1)
    assert watch.look().newest() == ["r1"]
