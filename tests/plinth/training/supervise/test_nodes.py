"""Supervisors of several nodes agree: orders, reports, signals, and silence."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from plinth import processes
from plinth.errors import LaunchError
from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.storage import atomic, seal
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training import wire
from plinth.training.attempts import HostFacts, this_host
from plinth.training.config import RunConfig
from plinth.training.parameters.trainer import ExternalTrainer
from plinth.training.peers import PeerLink
from plinth.training.recovery.orders import JoinOrder, RecoveryLink
from plinth.training.supervise import nodes
from plinth.training.supervise import result as locks
from plinth.training.supervise.follower import Follower
from plinth.training.supervise.leader import Leader, RemoteProcess
from plinth.training.supervise.leadership import Leadership
from plinth.training.supervise.nodes import NodeOrder, NodePlace, NodeReport, rank_environment, ranks_of
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED, NODE_LOST
from plinth.training.supervise.rendezvous import FileRendezvous, RendezvousRecord
from plinth.training.supervise.result import JobResult
from plinth.training.supervise.supervisor import Supervisor
from plinth.training.telemetry.timeline import timeline

Make = Callable[..., RunConfig]

PATIENT = {"closed_s": 300.0, "silent_s": 300.0}  # no node is lost here unless a test requests it

#: Rank that leaves on request; the file shows that it is ready for one.
WAITS = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75));"
    "pathlib.Path({ready!r}).touch(); time.sleep(600)"
)


@pytest.fixture
def pair(make: Make) -> RunConfig:
    """A run on two nodes of two ranks."""
    patience = Supervision(backoff_s=0.1, hang_s=300.0, grace_s=300.0)
    config = make(launch=Launch(kind="slurm", ranks=4, nodes=2), supervision=patience)
    configuration.write(config)
    return config


class Rehearsal(Follower):
    """Ranks follow the plan for the attempt."""

    plan: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # secrets of the links of the ranks

    def start(self, order: NodeOrder, rank: int) -> subprocess.Popen[bytes]:
        self.links += (order.recovery.secret,) if order.recovery else ()
        code = self.plan[order.attempt].format(rank=rank, port=order.port, ready=str(ready(self.config, rank)))
        return subprocess.Popen([sys.executable, "-S", "-c", code])


def ready(config: RunConfig, rank: int) -> Path:
    return config.directory.root / f"ready-{rank}"


def follower(config: RunConfig, *plan: str, **limits: float) -> Rehearsal:
    made = Rehearsal(config, config.directory.config, NodePlace(node=1, nodes=2, **{**PATIENT, **limits}))
    made.plan = plan
    return made


def leader(config: RunConfig) -> Leader:
    return Leader(config, NodePlace(nodes=2, **PATIENT))


def beside(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.02)


def shut(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as opened:
        opened.shutdown(socket.SHUT_RDWR)


def left(made: Follower) -> int | None:
    """Follow until node 0 is lost, and return the exit status."""
    assert made.follow() is None
    return made.exit_status()


def waited(ranks: list[RemoteProcess]) -> list[int]:
    return [rank.wait() for rank in ranks]


def test_place_is_what_the_scheduler_says(pair: RunConfig, make: Make) -> None:
    given = {"PLINTH_NODE": "1", "PLINTH_NODES": "2", "PLINTH_ADDRESS": "n1"}
    place = NodePlace.of(given, pair)
    assert (place.node, place.nodes, place.address) == (1, 2, "n1")
    assert (list(ranks_of(pair, 1)), list(ranks_of(pair, 0))) == ([2, 3], [0, 1])
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
        seen.append(waited(first.start(NodeOrder(port=1))))
        seen.append(waited(first.start(NodeOrder(port=2, attempt=1))))
        first.end(7)

    thread = beside(lead)
    assert follower(pair, "raise SystemExit({rank} - 2)", "raise SystemExit({port})").follow() == 7
    thread.join()
    assert seen == [[0, 1], [2, 2]]
    assert hosts == [this_host()]


def test_a_node_that_is_silent_is_left_out_of_the_statement(pair: RunConfig) -> None:
    alone = Leader(pair, NodePlace(nodes=2, silent_s=0.2))
    assert alone.hosts() == ()
    alone.close()


def test_only_this_user_can_read_the_secret(pair: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a workspace of a team. Children of ranks do not inherit it."""
    monkeypatch.setenv("PLINTH_UMASK", "007")
    first, path = leader(pair), pair.directory.rendezvous
    assert len(first.secret) == 64
    assert first.secret in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    first.close()
    monkeypatch.setenv("PLINTH_RECOVERY", first.secret)
    assert "PLINTH_RECOVERY" not in processes.environment(*processes.JOB)


def test_a_node_obeys_nobody_who_only_writes_the_workspace(pair: RunConfig) -> None:
    """The record by which it finds node 0 is sealed."""
    seal.make(Workspace(pair.workspace).trust_folder)
    path, place = pair.directory.rendezvous, FileRendezvous(pair.directory)
    record = RendezvousRecord(address="n0:1", secret="s")
    place.publish(record)
    assert place.read() == record
    genuine = json.loads(path.read_text())
    elsewhere = {**genuine["record"], "address": "n9:1"}
    for forged in ({**genuine, "record": elsewhere}, {"record": elsewhere}, {**genuine, "seal": None}, [], elsewhere):
        path.write_text(json.dumps(forged))
        assert place.read() is None


def test_a_trainers_rank_that_outlives_its_supervisor_keeps_the_next_one_off(pair: RunConfig) -> None:
    """An external trainer may survive; on the other nodes too, no second process of a rank starts beside it."""
    command = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    config = pair.model_copy(update={"trainer": ExternalTrainer(command=command)})
    path = config.directory.node_lock(1)
    lock = locks.hold(path)
    made = Follower(config, config.directory.config, NodePlace(node=1, nodes=2, **PATIENT), (lock,))
    made._link.ended.set()
    rank = made.start(NodeOrder(port=1), 2)
    os.close(lock)
    assert atomic.held(path)
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    assert not atomic.held(path)


@pytest.mark.parametrize("status", [0, 5])
def test_a_node_fetches_its_share_before_its_ranks_start(pair: RunConfig, status: int) -> None:
    """Its status of the fetch is not mistaken for a rank's end, nor the order to fetch for one of a later attempt."""
    seen: list[list[int]] = []

    class Fetching(Rehearsal):
        def fetch(self, step: int, seat: int) -> subprocess.Popen[bytes]:
            assert (step, seat) == (7, 1)
            return subprocess.Popen([sys.executable, "-S", "-c", f"raise SystemExit({status})"])

    def lead() -> None:
        first = leader(pair)
        assert first.count == 2
        first.begin(7)
        seen.append(first.failed())
        seen.append(waited(first.start(NodeOrder(port=1))))
        first.end(0)

    thread = beside(lead)
    made = Fetching(pair, pair.directory.config, NodePlace(node=1, nodes=2, **PATIENT))
    made.plan = ("raise SystemExit({rank})",)
    assert made.follow() == 0
    thread.join()
    assert seen == [[1] if status else [], [2, 3]]


def test_signals_go_out_and_come_in(pair: RunConfig) -> None:
    """SIGTERM of one node alone reaches node 0, which stops all; SIGKILL reaches ranks that do not mind."""
    seen: list[object] = []

    def lead() -> None:
        first = leader(pair)
        ranks = first.start(NodeOrder(port=1))
        while not first.asked_to_stop():
            time.sleep(0.05)
        seen.append(first.asked_to_stop())
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        seen.append(waited(ranks))
        ranks = first.start(NodeOrder(port=1, attempt=1))
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
    """The record of a killed node 0 starts nothing, even if another program listens at its address; nor does a record
    that is no record."""
    pair = pair.model_copy(update={"supervision": Supervision(hang_s=0.5)})
    other = wire.MessageServer("another secret", lambda connection: None, everywhere=False)
    gone = RendezvousRecord(address=f"127.0.0.1:{other.port}", secret="gone")
    FileRendezvous(pair.directory).publish(gone)
    assert FileRendezvous(pair.directory).read() == gone
    for _ in range(2):
        made = follower(pair, "raise SystemExit(1)", silent_s=0.5)
        assert left(made) == EXIT_PREEMPTED
        assert made._report.codes == {}
        pair.directory.rendezvous.write_text("{")
    ended = JobResult(status="finished", step=1, restarts=0, lost_steps=0, lost_s=0.0)
    pair.directory.result.write_text(ended.model_dump_json())
    assert left(follower(pair, silent_s=0.5)) == 0
    other.close()


def test_a_node_that_was_connected_leaves_before_node_0_counts_it_as_lost(pair: RunConfig) -> None:
    """It follows no later node 0: its ranks end before others get their places."""
    seen: list[float] = []

    def lead() -> None:
        first = Leader(pair, NodePlace(nodes=2, closed_s=0.5))
        ranks = first.start(NodeOrder(port=1))
        until(lambda: ready(pair, 2).exists() and ready(pair, 3).exists())
        first.close()
        node = first.known(1)
        assert node is not None
        assert node.connection is not None
        shut(node.connection)
        second = leader(pair)  # of another job
        assert waited(ranks) == [NODE_LOST, NODE_LOST]
        seen.append(time.monotonic())
        assert second.known(1) is None
        second.close()

    thread = beside(lead)
    made = follower(pair, WAITS, closed_s=0.5)
    assert left(made) == EXIT_PREEMPTED
    ended = time.monotonic()
    thread.join()
    assert made._processes == {}
    assert ended < seen[0] + 5.0


def test_one_process_per_node(pair: RunConfig) -> None:
    """A second supervisor of the same node is refused until node 0 has given the first one up."""
    first = leader(pair)
    states = [NodeReport(order=name).model_dump() for name in "ab"]
    one, other = (PeerLink(1, partial(dict, state), lambda message: None) for state in states)
    record = FileRendezvous(pair.directory).read()
    assert record is not None
    thread = beside(lambda: one.hold(record.address, record.secret))
    until(lambda: one.met)
    other.hold(record.address, record.secret)
    assert not other.met
    one.ended.set()
    thread.join()
    other.hold(record.address, record.secret)
    assert not other.met
    first._peers.forget(1)
    thread = beside(lambda: other.hold(record.address, record.secret))
    until(lambda: other.met and first._nodes[1].report.order == "b")
    other.ended.set()
    thread.join()
    first.close()


def test_a_spare_takes_the_seat_of_a_lost_node(pair: RunConfig) -> None:
    """It starts no rank before; it leaves at once if only it is asked to stop, and is no longer a spare then."""
    config = pair.model_copy(update={"launch": pair.launch.model_copy(update={"spares": 1})})
    seen: list[object] = []

    def lead() -> None:
        first = Leader(config, NodePlace(nodes=3, **{**PATIENT, "closed_s": 0.5}))
        record = FileRendezvous(pair.directory).read()
        assert record is not None
        other = PeerLink(1, lambda: NodeReport(order=first.order).model_dump(), lambda message: None)
        thread = beside(lambda: other.hold(record.address, record.secret))
        until(lambda: first.known(1) and first.known(2))
        ranks = first.start(NodeOrder(port=1))
        until(lambda: first._nodes[2].follows)
        seen.append((first.lacks_spares(), first.is_reachable(2), first._nodes[2].report.codes))
        other.ended.set()
        thread.join()
        until(lambda: not first.is_reachable(2))
        until(lambda: ranks[0].poll() == NODE_LOST)
        seen.append((first.lacks_spares(), [(move.node, move.by, move.ranks) for move in first.reseat()]))
        first.replace([2, 3], RecoveryLink(hub="h:1", secret=first.secret, first=JoinOrder(epoch=1)))
        assert first.secret not in str(first._peers._told)  # messages are not encrypted
        seen.append((waited(ranks), [one.cpus for one in first.hosts()], first.lacks_spares()))
        first.end(4)

    thread = beside(lead)
    made = Rehearsal(config, config.directory.config, NodePlace(node=2, nodes=3, **PATIENT))
    made.plan = ("raise SystemExit({rank})",)
    assert made.follow() == 4
    thread.join()
    assert made.links == (made._secret,) * 2
    assert seen == [
        (False, True, {}),
        (False, [(1, 2, "2-3")]),
        ([2, 3], [this_host().cpus], False),
    ]


def test_a_spare_that_is_asked_to_stop_leaves(pair: RunConfig) -> None:
    config = pair.model_copy(update={"launch": pair.launch.model_copy(update={"spares": 1})})
    first = Leader(config, NodePlace(nodes=3, **PATIENT))
    first.start(NodeOrder(port=1))
    made = Rehearsal(config, config.directory.config, NodePlace(node=2, nodes=3, **PATIENT))

    def preempt() -> None:
        until(lambda: first._nodes[2].follows)
        assert first._spares()
        os.kill(os.getpid(), signal.SIGTERM)

    thread = beside(preempt)
    assert left(made) == EXIT_PREEMPTED
    thread.join()
    assert first.asked_to_stop() == 0
    until(lambda: first._spares() == [])
    assert first.lost_spares() == []
    first._place = NodePlace(nodes=3, closed_s=0.1)
    until(lambda: first.lost_spares() == [2])
    assert first.lost_spares() == []  # another process may take its place as a spare
    first.close()


def test_a_node_that_is_not_heard_ends_the_attempt_but_not_the_run(pair: RunConfig) -> None:
    """No name for it, no restart here: the scheduler has another node."""

    def waiting(rank: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])

    def greet() -> None:  # once, and never again
        until(lambda: pair.directory.rendezvous.exists())
        record = FileRendezvous(pair.directory).read()
        assert record is not None
        with wire.connect(record.address, record.secret) as connection:
            wire.send(connection, {"number": 1, "process": "it"})
            wire.receive(connection)

    place = NodePlace(nodes=2, closed_s=0.5)
    unchecked = Supervision(hang_s=300.0, host_checks=HostChecks(enabled=False))  # those would get no answer
    patient = pair.model_copy(update={"supervision": unchecked})
    lock = locks.hold(pair.directory.lock)
    thread = beside(greet)
    quick = Supervisor(patient, pair.directory.config, Leadership(lock), place)
    quick.ranks._start = waiting
    ended = quick.supervise()
    thread.join()
    quick.leader.close()
    assert (ended.status, ended.restarts) == ("stopped", 0)
    assert ended.reason == "the node of rank 2 sends no heartbeat"
    story = timeline(pair.directory.events)
    assert story.of("restart") == []
    assert [event["reason"] for event in story.of("lost")] == [ended.reason]
    os.close(lock)


def test_a_rank_keeps_its_buffers_unless_the_operator_says_otherwise(
    pair: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = NodeOrder(address="127.0.0.1", port=1)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    found = rank_environment(pair, order, 0)
    assert (found["MALLOC_MMAP_THRESHOLD_"], found["MALLOC_TRIM_THRESHOLD_"]) == ("65536", f"{2**28}")


def test_an_audit_starts_where_its_order_says(pair: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(nodes, "_STARTER", [lambda command, *_: commands.append(command)])
    for order in (NodeOrder(audit=True, resume=4), NodeOrder(audit=True), NodeOrder(resume=4)):
        nodes.start_rank(pair, pair.directory.config, order, 0)
    found = [command[command.index("--attempt") + 2 :] for command in commands]
    assert found == [["--audit", "--start", "4"], ["--audit"], []]
