"""Supervisors of several nodes agree: orders, reports, signals, and silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plinth import processes
from plinth.errors import LaunchError
from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.training import config as configuration
from plinth.training.attempts import HostFacts, this_host
from plinth.training.config import RunConfig
from plinth.training.supervise import result as locks
from plinth.training.supervise.node_roles import Follower, Leader, RemoteRank
from plinth.training.supervise.nodes import NodeFiles, NodeOrder, NodePlace, NodeReport, rank_environment, write
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED, Process
from plinth.training.supervise.supervisor import Supervisor
from plinth.training.telemetry.timeline import timeline
from tests.training_host import HOST

Make = Callable[..., RunConfig]

LEASE_S = 300.0  # no node is lost here unless a test requests it

#: Rank that leaves on request; the file shows that it is ready for one.
WAITS = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75));"
    "pathlib.Path({ready!r}).touch(); time.sleep(600)"
)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def pair(make: Make) -> RunConfig:
    """A run on two nodes of two ranks."""
    patience = Supervision(backoff_s=0.1, hang_s=LEASE_S, grace_s=300.0)
    config = make(launch=Launch(kind="slurm", ranks=4, nodes=2), supervision=patience)
    configuration.write(config)
    return config


class Rehearsal(Follower):
    """Ranks follow the plan for the attempt."""

    plan: tuple[str, ...] = ()

    def start(self, order: NodeOrder, rank: int) -> subprocess.Popen[bytes]:
        code = self.plan[order.attempt].format(rank=rank, port=order.port, ready=str(ready(self.config, rank)))
        return subprocess.Popen([sys.executable, "-S", "-c", code])


def ready(config: RunConfig, rank: int) -> Path:
    return config.directory.root / f"ready-{rank}"


def follower(config: RunConfig, *plan: str, lease_s: float = LEASE_S) -> Rehearsal:
    made = Rehearsal(config, config.directory.config, NodePlace(node=1, nodes=2, lease_s=lease_s))
    made.plan = plan
    return made


def leader(config: RunConfig) -> Leader:
    return Leader(config, NodePlace(nodes=2, address="node-0", lease_s=LEASE_S))


def beside(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def waited(ranks: list[RemoteRank]) -> list[int]:
    return [rank.wait() for rank in ranks]


def test_place_is_what_the_scheduler_says(pair: RunConfig, make: Make) -> None:
    given = {"PLINTH_NODE": "1", "PLINTH_NODES": "2", "PLINTH_ADDRESS": "n1"}
    place = NodePlace.of(given, pair)
    assert (place.node, place.nodes, place.address) == (1, 2, "n1")
    assert (list(place.ranks(pair)), list(place.ranks(pair, 0))) == ([2, 3], [0, 1])
    assert NodePlace.of({}, make()) == NodePlace()
    with pytest.raises(LaunchError, match="does not match this allocation"):
        NodePlace.of(given, make())
    with pytest.raises(LaunchError, match="does not match this allocation"):
        NodePlace.of({**given, "PLINTH_NODE": "2"}, pair)


def test_attempts_statuses_and_the_end(pair: RunConfig) -> None:
    """Node 1 reports its machine; one rank fails, all are restarted, and the job ends with the status of node 0."""
    seen: list[list[int]] = []
    hosts: list[HostFacts] = []

    def lead() -> None:
        first = leader(pair)
        hosts.extend(first.hosts())
        seen.append(waited(first.start(1, 0, False)))
        seen.append(waited(first.start(2, 1, False)))
        first.end(7)

    thread = beside(lead)
    assert follower(pair, "raise SystemExit({rank} - 2)", "raise SystemExit({port})").follow() == 7
    thread.join()
    assert seen == [[0, 1], [2, 2]]
    assert hosts == [this_host()]


def test_a_node_that_is_silent_is_left_out_of_the_statement(pair: RunConfig) -> None:
    """A report to an earlier node 0 is left out as well: the node may be another machine now."""
    files, place = NodeFiles(pair.directory), NodePlace(nodes=2, address="node-0", lease_s=0.2)
    files.root.mkdir(parents=True)
    write(files.report(1), NodeReport(order="1", session="an earlier one", host=HOST))
    assert Leader(pair, place).hosts() == ()


def test_only_this_user_can_read_the_secret(pair: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a workspace of a team. The heartbeat, which others may read, has another number, and children of ranks do
    not inherit it."""
    monkeypatch.setenv("PLINTH_UMASK", "007")
    first, files = leader(pair), NodeFiles(pair.directory)
    while not files.beat(0).exists() or not files.beat(0).read_text():
        time.sleep(0.01)
    assert len(first.secret) == 64
    assert first.secret not in files.beat(0).read_text()
    assert files.order.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("PLINTH_RECOVERY", first.secret)
    assert "PLINTH_RECOVERY" not in processes.environment(*processes.JOB)


@pytest.mark.parametrize("status", [0, 5])
def test_a_node_fetches_its_share_before_its_ranks_start(pair: RunConfig, status: int) -> None:
    """Its status of the fetch is not mistaken for a rank's end, nor the order to fetch for one of a later attempt."""
    seen: list[list[int]] = []

    class Fetching(Rehearsal):
        def fetch(self, step: int) -> subprocess.Popen[bytes]:
            assert step == 7
            return subprocess.Popen([sys.executable, "-S", "-c", f"raise SystemExit({status})"])

    def lead() -> None:
        first = leader(pair)
        assert first.count == 2
        first.begin(7)
        seen.append(first.failed())
        seen.append(waited(first.start(1, 0, False)))
        first.end(0)

    thread = beside(lead)
    made = Fetching(pair, pair.directory.config, NodePlace(node=1, nodes=2, lease_s=LEASE_S))
    made.plan = ("raise SystemExit({rank})",)
    assert made.follow() == 0
    thread.join()
    assert seen == [[1] if status else [], [2, 3]]


def test_signals_go_out_and_come_in(pair: RunConfig) -> None:
    """SIGTERM of one node alone reaches node 0, which stops all; SIGKILL reaches ranks that do not mind."""
    seen: list[object] = []

    def lead() -> None:
        first = leader(pair)
        ranks = first.start(1, 0, False)
        while not first.asked_to_stop():
            time.sleep(0.05)
        seen.append(first.asked_to_stop())
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        seen.append(waited(ranks))
        ranks = first.start(1, 1, False)
        ranks[0].send_signal(signal.SIGKILL)
        seen.append(waited(ranks))
        first.end(EXIT_PREEMPTED)

    def preempt() -> None:
        while not all(ready(pair, rank).exists() for rank in (2, 3)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threads = [beside(lead), beside(preempt)]
    assert follower(pair, WAITS, "import time; time.sleep(600)").follow() == EXIT_PREEMPTED
    for thread in threads:
        thread.join()
    assert seen == [signal.SIGTERM, [75, 75], [-9, -9]]


def test_without_node_0_a_node_leaves_for_another_try(pair: RunConfig) -> None:
    """Files left behind by a killed supervisor start nothing and end nothing."""
    files = NodeFiles(pair.directory)
    pair = pair.model_copy(update={"supervision": Supervision(hang_s=0.5)})
    for stale in (NodeOrder(id="a", session="gone", port=1), NodeOrder(id="b", session="gone", status=0)):
        write(files.order, stale)
        files.beat(0).write_text("gone 17")
        made = follower(pair, "raise SystemExit(1)", lease_s=0.5)
        assert made.follow() == EXIT_PREEMPTED
        assert not files.report(1).exists() or '"codes":[]' in files.report(1).read_text()
        os.close(made._lock_fd)
    pair.directory.result.write_text('{"status": "finished"}')
    assert follower(pair, lease_s=0.5).follow() == 0


def test_a_node_that_is_not_heard_ends_the_attempt_but_not_the_run(pair: RunConfig) -> None:
    """No name for it, no restart here: the scheduler has another node."""

    class Alone(Supervisor):
        def _start(self, rank: int, port: int, audit: bool) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])

        def _on_poll(self, ranks: list[Process]) -> None:
            if not NodeFiles(pair.directory).beat(1).exists():
                NodeFiles(pair.directory).beat(1).write_text("node-1 1")  # once, and never again
            super()._on_poll(ranks)

    place = NodePlace(nodes=2, lease_s=1.5)
    unchecked = Supervision(hang_s=300.0, host_checks=HostChecks(enabled=False))  # those would get no answer
    patient = pair.model_copy(update={"supervision": unchecked})
    lock = locks.hold(pair.directory.lock)
    quick = Alone(patient, pair.directory.config, lock, place=place)
    ended = quick.supervise()
    assert (ended.status, ended.restarts) == ("stopped", 0)
    assert ended.reason == "the node of rank 2 sends no heartbeat"
    story = timeline(pair.directory.events)
    assert story.of("restart") == []
    assert [event["reason"] for event in story.of("lost")] == [ended.reason]
    os.close(lock)


def test_a_rank_keeps_its_buffers_unless_the_operator_says_otherwise(
    pair: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = NodeOrder(id="", session="", attempt=0, audit=False, address="127.0.0.1", port=1)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    found = rank_environment(pair, NodePlace(), order, 0)
    assert (found["MALLOC_MMAP_THRESHOLD_"], found["MALLOC_TRIM_THRESHOLD_"]) == ("65536", f"{2**28}")
