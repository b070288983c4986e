"""The right to act for a run: one supervisor has it, and a spare takes it after the loss of node 0."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

from plinth.errors import LaunchError
from plinth.launch.parameters import Launch, Supervision
from plinth.storage import atomic
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.supervise import follower, leadership, supervisor
from plinth.training.supervise.follower import Follower, follow
from plinth.training.supervise.leader import Leader
from plinth.training.supervise.leadership import Leadership
from plinth.training.supervise.nodes import NodeOrder, NodePlace
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED, NODE_LOST, Process, describe_exit
from plinth.training.supervise.result import Ending, JobResult, hold

SPARES = (2, 3)


class Rehearsal(Follower):
    """Node whose ranks end with their own number."""

    def start(self, order: NodeOrder, rank: int) -> Process:
        return subprocess.Popen([sys.executable, "-S", "-c", f"raise SystemExit({rank})"])


@dataclass
class Job:
    """A job of two nodes of one rank and two spares, in threads."""

    config: RunConfig
    pool: ThreadPoolExecutor

    def place(self, node: int, **limits: float) -> NodePlace:
        return NodePlace(node=node, nodes=4, **{"closed_s": 0.3, "silent_s": 300.0, **limits})

    def follow(self, *nodes: int) -> list[Future[int | Leadership]]:
        path = self.config.directory.config
        return [self.pool.submit(follow, self.config, path, self.place(node)) for node in nodes]

    def lead(self) -> Leader:
        """Start as node 0, and return once all nodes follow."""
        made = Leader(self.config, self.place(0))
        made.start(NodeOrder(port=1))
        return made


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.02)


@pytest.fixture
def job(make: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(follower, "Follower", Rehearsal)
    monkeypatch.setattr(follower, "on_stop", lambda note: None)  # these are threads
    patience = Supervision(backoff_s=0.1, hang_s=300.0)
    config = make(launch=Launch(kind="slurm", ranks=2, nodes=2, spares=2), supervision=patience)
    configuration.write(config)
    with ThreadPoolExecutor(4) as pool:
        yield Job(config, pool)


def end(*roles: Follower) -> None:
    for role in roles:
        role._link.ended.set()
        role._thread.join()


def lose(first: Leader) -> None:
    """Close the connections of a node 0."""
    first.close()
    for node in first._nodes.values():
        known = first.known(node.number)
        if known is not None and known.connection is not None:
            with socket.socket(fileno=os.dup(known.connection.fileno())) as opened:
                opened.shutdown(socket.SHUT_RDWR)


def test_one_spare_leads_and_the_other_nodes_follow_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Callable[[int], None]] = []
    monkeypatch.setattr(follower, "on_stop", notes.append)
    lock, first = hold(job.config.directory.lock), job.lead()
    jobs = dict(zip((1, *SPARES), job.follow(1, *SPARES), strict=True))
    until(lambda: all(node.follows for node in first._nodes.values()))
    lose(first)
    os.close(lock)
    until(lambda: any(jobs[node].done() for node in SPARES))
    (number,) = [node for node in SPARES if jobs[node].done()]
    right = jobs.pop(number).result()
    assert isinstance(right, Leadership)
    assert right.succession is not None
    assert right.succession == (first.secret, (0, 1), "127.0.0.1")
    assert atomic.held(job.config.directory.lock)
    second = Leader(job.config, job.place(number), right.succession)
    (rank,) = second.start(NodeOrder(port=1))
    assert rank.wait() == 1
    assert second._order.seats == (number, 1)
    assert second.known(0) is None
    until(lambda: all(second._nodes[node].follows for node in jobs))
    second.end(4)
    assert [one.result() for one in jobs.values()] == [4, 4]
    assert right.asked_to_stop() == 0
    for note in notes:  # a signal that arrives before the supervisor has handlers of its own
        note(signal.SIGTERM)
    assert right.asked_to_stop() == signal.SIGTERM
    os.close(right.lock)


def test_of_two_spares_at_once_one_wins(job: Job) -> None:
    roles = []
    for node in SPARES:
        before = Rehearsal(job.config, job.config.directory.config, job.place(node))
        before._seats = (0, 1)
        roles.append(Rehearsal(job.config, job.config.directory.config, job.place(node), before=before))
    assert all(role._may_lead for role in roles)
    found = list(job.pool.map(lambda role: role._acquired(), roles))
    (right,) = [one for one in found if one is not None]
    assert isinstance(right, Leadership)
    os.close(right.lock)
    end(*roles, *[role._before for role in roles if role._before is not None])


def test_a_stop_signal_between_two_roles_of_a_node_is_not_lost(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Rehearsal(job.config, job.config.directory.config, job.place(2))
    monkeypatch.setattr(follower, "on_stop", lambda note: before._stop(signal.SIGTERM))
    role = Rehearsal(job.config, job.config.directory.config, job.place(2), before=before)
    assert role.asked_to_stop == signal.SIGTERM
    assert not role._may_lead
    end(before, role)


def test_a_node_0_that_is_alive_is_not_succeeded(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be reached, but has the lock."""
    monkeypatch.setattr(follower, "SUCCESSION_S", 0.5)
    lock, first = hold(job.config.directory.lock), job.lead()
    jobs = job.follow(1, *SPARES)
    until(lambda: all(node.follows for node in first._nodes.values()))
    lose(first)
    assert [one.result() for one in jobs] == [EXIT_PREEMPTED] * 3
    os.close(lock)


def ended(status: Ending, reason: str) -> str:
    return JobResult(status=status, step=1, restarts=0, lost_steps=0, lost_s=0.0, reason=reason).model_dump_json()


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (ended("finished", ""), 0),
        (ended("stopped", "SIGTERM was received"), EXIT_PREEMPTED),
        (ended("failed", "loss"), EXIT_PREEMPTED),
        (ended("stopped", describe_exit(1, NODE_LOST)), None),
        ('{"status": "finished"}', None),  # no supervisor wrote it
        ("[]", None),
        ("", None),
    ],
)
def test_a_job_that_has_ended_has_no_successor(job: Job, result: str, status: int | None) -> None:
    """The spare may have lost node 0 before its last order. A node 0 that is cut off does not end the job."""
    before = Rehearsal(job.config, job.config.directory.config, job.place(2))
    before._link.met, before._seats = True, (0, 1)
    assert before.exit_status() is None
    job.config.directory.result.write_text(result)
    assert before.exit_status() == status
    role = Rehearsal(job.config, job.config.directory.config, job.place(2), before=before)
    found = role._acquired()
    assert isinstance(found, Leadership) == (status is None)
    assert atomic.held(job.config.directory.lock) == (status is None)
    if isinstance(found, Leadership):
        os.close(found.lock)
    else:
        assert found == status
    end(before, role)


def test_a_node_0_that_returns_follows_the_node_that_leads(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "acquire", partial(leadership.acquire, wait_s=0.0))
    lock, path = hold(job.config.directory.lock), job.config.directory.config
    succession = leadership.Succession("s" * 64, (0, 1), "127.0.0.1")
    second = Leader(job.config, job.place(2), succession)
    returned = job.pool.submit(supervisor._leadership, job.config, path, job.place(0), None)
    until(lambda: second.known(0) is not None)
    second.start(NodeOrder(port=1))
    until(lambda: second._nodes[0].follows)
    assert [node.number for node in second._spares()] == [0]
    second._order_all(status=4)
    assert returned.result() == 4
    second.close()
    os.close(lock)


def test_a_second_job_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node 0 is not taken for a spare of the first one."""
    monkeypatch.setattr(supervisor, "acquire", partial(leadership.acquire, wait_s=0.0))
    monkeypatch.setattr(follower, "SUCCESSION_S", 0.5)
    lock, first = hold(job.config.directory.lock), job.lead()
    with pytest.raises(LaunchError, match="another supervisor is active"):
        supervisor._leadership(job.config, job.config.directory.config, job.place(0), None)
    assert first.known(0) is None
    first.close()
    os.close(lock)
