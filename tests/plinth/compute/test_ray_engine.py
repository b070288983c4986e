"""Ray: the same promises as the local engine, on a real cluster of two nodes on this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.select_engine import Compute, RayEngine
from plinth.errors import MissingError, RecipeError, WorkerError
from tests.ray_patience import patient, small_node, started, two_nodes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each."""
    with pytest.MonkeyPatch.context() as here:
        here.setenv("RAY_AUTH_MODE", "disabled")
        here.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patient(here)
        made = two_nodes()
        yield made
        made.shutdown()


@pytest.fixture
def engine(cluster: Any) -> Iterator[RayEngine]:
    with RayEngine(cluster.address) as made:
        yield made


def where(n: int) -> tuple[int, str]:
    import ray

    time.sleep(0.2)
    return n * n, ray.get_runtime_context().get_node_id()


def until_both(folder: str) -> str:
    """The node it runs on; it waits until a task runs on the other one too."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    (Path(folder) / node).touch()
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.02)
    return node


def refuse(n: int) -> int:
    raise MissingError(f"no {n}", found="nothing", expected="something", remedy="look again")


def break_down(n: int) -> int:
    return 1 // n


def die_once(mark: str) -> str:
    path = Path(mark)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def die(_: int) -> int:
    os._exit(9)


def hang(n: int) -> int:
    time.sleep(600 if n == 1 else 0)
    return n


def test_both_nodes_work_and_results_come_in_task_order(engine: RayEngine, tmp_path: Path) -> None:
    assert len(set(engine.map(until_both, [str(tmp_path)] * 2))) == 2
    told: dict[int, Any] = {}
    found = list(engine.map(where, range(12), done=told.__setitem__))
    assert [square for square, _ in found] == [n * n for n in range(12)]
    assert [told[n] for n in range(12)] == found


@pytest.mark.exhaustive
def test_a_killed_worker_costs_only_its_task(engine: RayEngine, tmp_path: Path) -> None:
    marks = [str(tmp_path / f"mark-{n}") for n in range(6)]
    for mark in marks[1:]:
        Path(mark).touch()
    finished: list[int] = []
    assert list(engine.map(die_once, marks, done=lambda index, _: finished.append(index))) == [
        f"mark-{n}" for n in range(6)
    ]
    assert sorted(finished) == list(range(6))  # each exactly once


@pytest.mark.exhaustive
def test_what_was_raised_on_purpose_arrives_as_it_was(engine: RayEngine) -> None:
    with pytest.raises(MissingError, match="no 3") as caught:
        list(engine.map(refuse, [3]))
    assert caught.value.remedy == "look again"


@pytest.mark.exhaustive
def test_a_defect_names_its_line(engine: RayEngine) -> None:
    with pytest.raises(WorkerError, match="break_down raised ZeroDivisionError") as caught:
        list(engine.map(break_down, [0]))
    assert "return 1 // n" in str(caught.value.found)


@pytest.mark.exhaustive
def test_a_worker_that_always_dies_fails_by_name(engine: RayEngine) -> None:
    with pytest.raises(WorkerError, match="died"):
        list(engine.map(die, [1]))


def test_a_task_over_its_limit_is_killed(engine: RayEngine) -> None:
    with pytest.raises(WorkerError, match="time limit"):
        list(engine.map(hang, [0, 1], timeout_s=3, retries=0))


@pytest.mark.exhaustive
def test_a_lost_node_costs_its_tasks_and_no_more(cluster: Any) -> None:
    lost = started(lambda: cluster.add_node(**small_node()))
    cluster.wait_for_nodes(timeout=300)
    finished: list[int] = []

    def done(index: int, _: Any) -> None:
        finished.append(index)
        if len(finished) == 3:
            cluster.remove_node(lost, allow_graceful=False)

    with RayEngine(cluster.address) as engine:
        found = list(engine.map(where, range(12), done=done))
    assert [square for square, _ in found] == [n * n for n in range(12)]
    assert sorted(finished) == list(range(12))


def test_an_address_where_nothing_answers() -> None:
    with pytest.raises(WorkerError, match="cannot reach a Ray cluster"):
        list(RayEngine("127.0.0.1:1").map(refuse, [1]))


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(RecipeError, match="no engine 'spark'"):
        Compute("spark").open()
