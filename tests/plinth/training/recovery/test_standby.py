"""Ranks are forked by a process that has loaded torch: they are children of the supervisor like any others."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plinth import processes
from plinth.training.recovery import standby
from plinth.training.recovery.standby import ForkedProcess, StandbyStarter
from plinth.training.supervise.nodes import _interpreter
from plinth.training.supervise.rank_watch import SUPERVISOR, Process, end_process

HERE = Path(__file__).parent.parent


@pytest.fixture
def starter() -> Iterator[StandbyStarter]:
    made = StandbyStarter(_interpreter)
    yield made
    made.close()


def start(starter: StandbyStarter, place: Path, word: str, locks: tuple[int, ...] = ()) -> Process:
    return starter(processes.python("forked_rank", str(place), word), environment(), locks)


def environment(**more: str) -> dict[str, str]:
    own = {SUPERVISOR: str(os.getpid()), "RANK": "3", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}
    return processes.environment(own={"PYTHONPATH": os.pathsep.join((str(HERE), *sys.path)), **own})


def told(place: Path) -> dict[str, Any]:
    until = time.monotonic() + 60
    while not place.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return dict(json.loads(place.read_bytes()))


def waiting(starter: StandbyStarter) -> psutil.Process:
    assert starter._process is not None
    return psutil.Process(starter._process.pid)


def test_a_fork_is_a_child_with_the_environment_and_the_locks_of_its_rank(
    starter: StandbyStarter, tmp_path: Path
) -> None:
    command = processes.python("forked_rank", str(tmp_path / "one"), "sleep")
    starter.fill(command, environment(LOADS="yes"))  # the fork has an environment of its own
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_WRONLY)
    try:
        process = start(starter, tmp_path / "one", "sleep", (lock,))
    finally:
        os.close(lock)
    assert isinstance(process, ForkedProcess)
    said = told(tmp_path / "one")
    assert (said["pid"], psutil.Process(process.pid).ppid()) == (process.pid, os.getpid())
    assert (said["loaded"], said["input"]) == (True, "/dev/null")
    assert said["variables"] == {"RANK": "3", "LOADS": None}
    assert str(tmp_path / "lock") in said["files"]
    assert not any("socket" in one for one in said["files"])
    assert len(said["threads"]) == 1
    assert not [one for one in waiting(starter).open_files() if one.path.endswith("lock")]
    assert not _is_subreaper()

    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait() == process.poll() == -signal.SIGKILL
    process.send_signal(signal.SIGKILL)  # does nothing
    assert not psutil.pid_exists(process.pid)


def test_the_exit_status_of_a_fork_is_seen(starter: StandbyStarter, tmp_path: Path) -> None:
    ranks = [start(starter, tmp_path / word, word) for word in ("0", "75", "signal")]
    assert [rank.wait() for rank in ranks] == [0, 75, -signal.SIGABRT]
    assert len({told(tmp_path / word)["pid"] for word in ("0", "75", "signal")}) == 3


def test_ranks_outlive_the_process_that_waits_and_the_next_one_is_started(
    starter: StandbyStarter, tmp_path: Path
) -> None:
    first = start(starter, tmp_path / "first", "sleep")
    before = waiting(starter)
    before.kill()
    before.wait()
    assert first.poll() is None
    second = start(starter, tmp_path / "second", "7")  # of another process that waits
    assert second.wait() == 7
    assert waiting(starter).pid != before.pid
    end_process(first)


def test_a_process_that_does_not_load_is_replaced_by_a_plain_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code").mkdir()
    lines = f"import sys\nif {standby.OPTION!r} in sys.argv: sys.exit(1)\nsys.exit(9)\n"
    (tmp_path / "code/never_waits.py").write_text(lines)
    starter = StandbyStarter(_interpreter)
    given = {**environment(), "PYTHONPATH": str(tmp_path / "code")}
    rank = starter(processes.python("never_waits", str(tmp_path)), given, ())
    assert isinstance(rank, subprocess.Popen)
    assert rank.wait() == 9
    assert "no rank can be forked" in capfd.readouterr().err
    starter.close()


def test_nothing_waits_on_a_machine_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "GPUS", (tmp_path,))
    starter = StandbyStarter(_interpreter)
    starter.fill(processes.python("forked_rank", "x"), {**environment(), "CUDA_VISIBLE_DEVICES": "0"})
    assert starter._process is None
    starter.close()


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; sys.path[:] = sys.argv[2].split(':')\n"
        "from pathlib import Path; from plinth.training.recovery.standby import StandbyStarter\n"
        "from tests.plinth.training.recovery import test_standby as t\n"
        "s = StandbyStarter(t._interpreter); t.start(s, Path(sys.argv[1]), 'sleep')\n"
        "print(t.waiting(s).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "one"), ":".join(sys.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        left = [int(supervisor.stdout.readline()), told(tmp_path / "one")["pid"]]
        supervisor.kill()
    until = time.monotonic() + 30
    while any(psutil.pid_exists(one) for one in left):
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_subreaper() -> bool:
    found = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0) == 0
    return bool(found.value)
