"""Worker processes: order, retries, limits, death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from plinth.compute import engine as engines
from plinth.compute.engine import Engine, InlineEngine, LocalEngine, with_kernels
from plinth.errors import MissingError, WorkerError


def slow_square(n: int) -> int:
    time.sleep(0.05 * (n % 3))
    return n * n


def refuse(n: int) -> int:
    raise MissingError(f"no {n}", found="nothing", expected="something", remedy="look again")


def break_down(n: int) -> int:
    return 1 // n


def die_once(mark: str) -> str:
    path = Path(mark)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def die(_: int) -> int:
    os._exit(9)


def hang(n: int) -> int:
    time.sleep(600 if n == 1 else 0)
    return n


def unpicklable(_: int) -> object:
    return (n for n in range(3))


@pytest.fixture(params=["inline", "local"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine = InlineEngine() if request.param == "inline" else LocalEngine(2)
    yield made
    made.close()


def test_results_come_in_task_order_and_done_is_told_of_each(engine: Engine) -> None:
    told: dict[int, int] = {}
    assert list(engine.map(slow_square, range(12), done=told.__setitem__)) == [n * n for n in range(12)]
    assert told == {n: n * n for n in range(12)}
    assert list(engine.map(slow_square, [])) == []


def test_errors_on_purpose_arrive_as_they_were(engine: Engine) -> None:
    with pytest.raises(MissingError) as failure:
        list(engine.map(refuse, [7]))
    assert (failure.value.what, failure.value.found, failure.value.remedy) == ("no 7", "nothing", "look again")


def test_other_errors_are_named_with_their_origin() -> None:
    with LocalEngine(1) as engine, pytest.raises(WorkerError, match="ZeroDivisionError") as failure:
        list(engine.map(break_down, [0]))
    assert "break_down" in str(failure.value)


def test_a_worker_that_dies_is_replaced_and_its_task_tried_again(tmp_path: Path) -> None:
    with LocalEngine(2) as engine:
        marks = [str(tmp_path / str(i)) for i in range(3)]
        assert list(engine.map(die_once, marks, retries=1)) == ["survived"] * 3


def test_a_task_that_kills_every_worker_is_a_named_error() -> None:
    with LocalEngine(2) as engine:
        with pytest.raises(WorkerError, match="worker process died"):
            list(engine.map(die, [0], retries=1))
        assert list(engine.map(slow_square, [3])) == [9]


def test_a_task_over_its_limit_is_killed() -> None:
    with LocalEngine(2) as engine:
        with pytest.raises(WorkerError, match="time limit"):
            list(engine.map(hang, [0, 1, 2], timeout_s=1.0, retries=0))
        assert list(engine.map(slow_square, [2])) == [4]


def test_a_result_that_cannot_leave_its_worker_is_named() -> None:
    with LocalEngine(1) as engine, pytest.raises(WorkerError, match=r"pickle\.dumps raised"):
        list(engine.map(unpicklable, [0]))


def test_no_worker_goes_on_for_a_caller_that_has_left() -> None:
    with LocalEngine(2) as engine:
        results = engine.map(hang, [0, 1])
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
        assert engine._pool == engine._idle


def test_closing_ends_the_workers() -> None:
    engine = LocalEngine(2)
    list(engine.map(slow_square, range(4)))
    pids = [worker.pid for worker in engine._pool]
    engine.close()
    assert pids
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids if pid)


def test_a_pool_left_open_does_not_hold_up_the_end_of_its_process() -> None:
    code = "from plinth.compute.engine import LocalEngine\nif __name__ == '__main__':\n"
    code += " pool = LocalEngine(1)\n print(list(pool.map(abs, [-1])))\n raise SystemExit(3)\n"
    ended = subprocess.run([sys.executable, "-c", code], timeout=300, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "[1]\n")


def test_workers_that_die_while_idle_are_replaced() -> None:
    with LocalEngine(2) as pool:
        assert list(pool.map(slow_square, range(4))) == [0, 1, 4, 9]
        for worker in pool._pool:
            os.kill(worker.pid, signal.SIGKILL)
            worker._process.wait()
        assert list(pool.map(slow_square, range(4), retries=0)) == [0, 1, 4, 9]


def test_kernels_are_compiled_before_the_first_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every worker would compile, or wait for another, within the time limit of its first task."""
    calls: dict[str, int] = {}
    with LocalEngine(2) as engine:
        monkeypatch.setattr(engines, "library", lambda name: calls.update({name: len(engine._pool)}))
        assert list(engine.map(abs, [-1, 2, -3])) == [1, 2, 3]
    assert calls == dict.fromkeys(with_kernels(), 0)
    assert {"plinth_text", "plinth"} <= set(calls)
