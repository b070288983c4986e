"""Workers: start, configuration, and complete removal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.compute.worker import Program, Worker, wait
from plinth.errors import WorkerError
from tests.plinth.compute import handlers

SHOUTING = Program(f"{handlers.__name__}:shouting")
QUIET = Program(f"{handlers.__name__}:shouting", quiet=True)


def answers(worker: Worker, count: int) -> list[bytes]:
    found = list[bytes]()
    while len(found) < count:
        for one in wait([worker]):
            found += one.receive()
    return found


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(QUIET)
    yield made
    made.end()


def test_batches_are_answered_in_order_whatever_their_size(worker: Worker) -> None:
    items = [b"a", b"", b"x" * 3_000_000, b"b"]
    worker.send(items)
    worker.send([b"c"])
    assert answers(worker, 5) == [item.upper() + b"!" for item in [*items, b"c"]]
    assert worker.started_and_finished() == (5, 5)


def test_the_counts_say_which_item_is_in_hand(worker: Worker) -> None:
    worker.send([b"a", b"hang", b"b"])
    while worker.started_and_finished()[0] < 2:
        time.sleep(0.001)
    assert worker.started_and_finished() == (2, 1)


def test_arguments_and_variables_reach_the_handler() -> None:
    worker = Worker(Program(f"{handlers.__name__}:shouting", ("?",), (("PYTHONUNBUFFERED", "1"),), quiet=True))
    worker.send([b"a"])
    assert answers(worker, 1) == [b"A?"]
    assert b"PYTHONUNBUFFERED=1" in Path(f"/proc/{worker.pid}/environ").read_bytes()
    worker.end()


def test_nothing_is_left_of_a_worker(worker: Worker) -> None:
    before = len(os.listdir("/proc/self/fd"))
    other = Worker(QUIET)
    other.send([b"a"])
    assert answers(other, 1)
    other.end()
    other.end()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ProcessLookupError):
        os.kill(other.pid, 0)


def test_an_idle_worker_ends_by_itself() -> None:
    worker = Worker(Program(SHOUTING.target, idle_s=0.05))
    with pytest.raises(EOFError):
        answers(worker, 1)
    assert worker.died() == 0


@pytest.mark.parametrize(
    "target", [f"{handlers.__name__}:failing", f"{handlers.__name__}:missing", "no_such_module:handler"]
)
def test_a_handler_that_cannot_be_made_is_a_named_error_with_a_command_that_shows_why(target: str) -> None:
    worker = Worker(Program(target, quiet=True))
    with pytest.raises(WorkerError, match="does not start") as failure:
        answers(worker, 1)
    assert str(failure.value.remedy).startswith("`")
    assert target in str(failure.value.remedy)


def test_a_worker_started_by_hand_serves_its_standard_input() -> None:
    command = [sys.executable, "-P", "-m", "plinth.compute.worker_process", SHOUTING.target]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout == b"ready"


OWNER = """if True:
    import os, signal, sys, threading, time
    from plinth.compute.worker import Program, Worker, wait
    made = []
    thread = threading.Thread(target=lambda: made.append(Worker(Program(sys.argv[1], quiet=True))))
    thread.start()
    thread.join()
    worker = made[0]
    worker.send([b"a"])
    while not (wait([worker]) and worker.receive()):
        pass
    if sys.argv[2] == "in the middle of an item":
        worker.send([b"hang"])
        while worker.started_and_finished()[0] < 2:
            time.sleep(0.001)
    print(worker.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)"""


@pytest.mark.parametrize("when", ["between items", "in the middle of an item"])
def test_a_worker_dies_with_its_owner_but_not_with_the_thread_that_started_it(when: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OWNER, SHOUTING.target, when]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    pid, deadline = int(done.stdout), time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
