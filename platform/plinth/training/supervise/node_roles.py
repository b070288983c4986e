"""Roles of several nodes, and the round of checks before their ranks start."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plinth import processes
from plinth.training.attempts import HostFacts, this_host
from plinth.training.checkpoint import writer
from plinth.training.checkpoint.upload import fetch_command
from plinth.training.config import RunConfig
from plinth.training.recovery import wire
from plinth.training.recovery.keeper import KeeperProcess
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.supervise.host_checks import HostCheck, HostReport, of_this_node, with_clocks
from plinth.training.supervise.host_checks import this_host as check_this_host
from plinth.training.supervise.nodes import (
    Heartbeat,
    HeartbeatReader,
    NodeFiles,
    NodeOrder,
    NodePlace,
    NodeReport,
    end_standby,
    keep_standby,
    on_stop,
    read,
    start_checks,
    start_rank,
    write,
)
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED, NODE_LOST, POLL_S, Process, end_process
from plinth.training.supervise.result import hold
from plinth.training.telemetry.timeline import Timeline

# Roles of several nodes: node 0 gives orders and reads the reports of remote ranks like those of local ones; the
# supervisor of any other node starts, signals and ends its ranks on orders of node 0.

# Node 0 gives orders and reads the reports of remote ranks like those of local ones.

#: Seconds that an attempt waits for the machine facts of other nodes; none of them trains until it starts.
HOSTS_S = 15.0


class Leader:
    """Role of node 0, which gives orders to the other nodes and reads their reports."""

    def __init__(self, config: RunConfig, place: NodePlace) -> None:
        self._config, self._place, self._files = config, place, NodeFiles(config.directory)
        self._order = NodeOrder(id="", session=uuid.uuid4().hex, secret=secrets.token_hex(32))
        if place.nodes > 1:
            self._publish(id=self._order.session)
            self._beat = Heartbeat(self._files.beat(0), self._order.session)
            self._nodes = [RemoteNode(self, self._files, node, self._silence_limit_s) for node in range(1, place.nodes)]

    def start(
        self, port: int, attempt: int, audit: bool, resume: int = 0, recovery: RecoveryLink | None = None
    ) -> list[RemoteRank]:
        """Order the other nodes to start their ranks for a new attempt. Return these ranks."""
        if self._place.nodes == 1:
            return []
        self._publish(
            id=uuid.uuid4().hex,
            attempt=attempt,
            audit=audit,
            resume=resume,
            address=self._place.address,
            port=port,
            signals=(),
            fetch=None,
            check=0,
            recovery=recovery,
            replaced=(),
        )
        for node in self._nodes:
            node.follow(self._order.id)
        count = self._config.launch.ranks_per_node
        return [RemoteRank(node, index) for node in self._nodes for index in range(count)]

    def replace(self, ranks: Sequence[int], recovery: RecoveryLink) -> None:
        """Order the other nodes to start some of their ranks again, while the others continue."""
        if self._away:
            self._publish(replaced=tuple(ranks), recovery=recovery)

    @property
    def secret(self) -> str:
        """Secret of this job. The nodes get it in their orders, a file that only this user can read."""
        return self._order.secret

    def keepers(self) -> list[str]:
        """Wait until every other node has reported the address of its copies, and return them in order; empty for a
        node that has not reported in time."""
        until = time.monotonic() + min(HOSTS_S, self._place.lease_s)
        while self._away:
            found = [node.keeper(self._order.session) for node in self._nodes]
            if all(found) or time.monotonic() > until:
                return found
            time.sleep(POLL_S)
        return []

    @property
    def count(self) -> int:
        """Number of nodes of the job, including node 0."""
        return self._place.nodes

    def begin(self, step: int) -> None:
        """Order the other nodes to fetch their parts of a checkpoint from the bucket."""
        if self._away:
            self._publish(id=uuid.uuid4().hex, fetch=step, check=0, port=0, signals=())
            for node in self._nodes:
                node.follow(self._order.id)

    def check(self, port: int) -> list[RemoteRank]:
        """Order the other nodes to check themselves and their connection to node 0's port."""
        self._publish(id=uuid.uuid4().hex, check=port, address=self._place.address, port=0, signals=(), fetch=None)
        for node in self._nodes:
            node.follow(self._order.id)
        return [RemoteRank(node, 0) for node in self._nodes]

    def failed(self) -> list[int]:
        """Wait until each node has fetched its part of the checkpoint or is lost. Return the nodes whose part is
        missing."""
        nodes = self._nodes if self._away else []
        codes = {node.node: RemoteRank(node, 0).wait() for node in nodes}
        return [number for number, code in codes.items() if code != 0]

    def hosts(self) -> tuple[HostFacts, ...]:
        """Return the facts about their machines that the other nodes have reported, in order. Nodes without a report
        are left out."""
        until = time.monotonic() + min(HOSTS_S, self._place.lease_s)
        while self._away:
            found = [node.host(self._order.session) for node in self._nodes]
            if None not in found or time.monotonic() > until:
                return tuple(host for host in found if host is not None)
            time.sleep(POLL_S)
        return ()

    def asked_to_stop(self) -> int:
        """Return the stop signal that another node has received, or 0."""
        return next((node.asked_to_stop for node in self._nodes if node.asked_to_stop), 0) if self._away else 0

    @property
    def epoch(self) -> int:
        """Number of losses of this attempt after which ranks were started again."""
        return self._order.recovery.first.epoch if self._order.recovery else 0

    def signal(self, number: int) -> None:
        """Forward a stop signal to the ranks of all other nodes, once per attempt."""
        if number not in self._order.signals:
            self._publish(signals=(*self._order.signals, number))

    def end(self, status: int) -> None:
        """Order the other nodes to exit with a status, and wait until each has read the order or is lost."""
        if not self._away:
            return
        self._publish(id=uuid.uuid4().hex, status=status, fetch=None, check=0)
        for node in self._nodes:
            node.follow(self._order.id)
        while not all(node.acknowledged for node in self._nodes):
            time.sleep(POLL_S)

    def _silence_limit_s(self, heard: HeartbeatReader) -> float:
        return self._place.silence_limit_s(self._config, heard)

    @property
    def _away(self) -> bool:
        return self._place.nodes > 1

    def _publish(self, **changes: Any) -> None:
        self._order = self._order.model_copy(update=changes)
        write(self._files.order, self._order, mode=0o600)  # it has the secret


class RemoteNode:
    """Node 0's view of another node."""

    def __init__(
        self, leader: Leader, files: NodeFiles, node: int, patience: Callable[[HeartbeatReader], float]
    ) -> None:
        self._leader, self._path, self._silence_limit_s = leader, files.report(node), patience
        self._heard, self.node = HeartbeatReader(files.beat(node)), node
        self.follow("")

    def follow(self, order: str) -> None:
        """Ignore reports on other orders from now on."""
        self._order, self._report, self._read_at = order, NodeReport(order=""), 0.0

    @property
    def acknowledged(self) -> bool:
        """True if the node has reported on the order, or is lost."""
        return self._latest().order == self._order or self._lost

    @property
    def asked_to_stop(self) -> int:
        """Stop signal that the node has received, or 0."""
        return self._latest().asked_to_stop

    def code(self, index: int) -> int | None:
        """Return the exit status of one of the node's ranks, or None while the rank runs."""
        report = self._latest()
        code = report.codes[index] if index < len(report.codes) and report.epoch == self._leader.epoch else None
        return NODE_LOST if code is None and self._lost else code

    def signal(self, number: int) -> None:
        self._leader.signal(number)

    def host(self, session: str) -> HostFacts | None:
        """Return the facts about the node's machine, or None if the node does not follow the orders of this session
        yet."""
        report = read(self._path, NodeReport)
        return report.host if report is not None and report.session == session else None

    def keeper(self, session: str) -> str:
        """Return the address of the node's copies, or an empty text if it has not reported it yet."""
        report = read(self._path, NodeReport)
        return report.keeper if report is not None and report.session == session else ""

    @property
    def _lost(self) -> bool:
        return self._heard.age_s() > self._silence_limit_s(self._heard)

    def _latest(self) -> NodeReport:
        now = time.monotonic()
        if now - self._read_at > POLL_S:
            self._read_at, found = now, read(self._path, NodeReport)
            self._report = found if found is not None and found.order == self._order else NodeReport(order="")
        return self._report


class RemoteRank:
    """A rank on another node, with the process interface that `watch` needs."""

    def __init__(self, node: RemoteNode, index: int) -> None:
        self._node, self._index = node, index

    def poll(self) -> int | None:
        """Return the rank's exit status, None while it runs, or `NODE_LOST` if its node is lost."""
        return self._node.code(self._index)

    def wait(self) -> int:
        """Wait for the rank to end and return its exit status."""
        while (code := self.poll()) is None:
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Forward a stop signal to all remote ranks."""
        self._node.signal(sig)


class Follower:
    """Role of a node other than node 0, which supervises its own ranks."""

    def __init__(self, config: RunConfig, config_path: Path, place: NodePlace) -> None:
        self.config, self.place, self.files = config, place, NodeFiles(config.directory)
        self._path, self._lock_fd = config_path, hold(self.files.lock(place.node))
        self._beat = Heartbeat(self.files.beat(place.node), f"node-{place.node}")
        self._leader = HeartbeatReader(self.files.beat(0))
        self._order, self._signals = NodeOrder(id="", session=""), 0
        self._ranks: list[Process] = []
        self._keeper: KeeperProcess | None = None
        self._standby = keep_standby() if config.recovery.enabled else None
        self._epoch = 0
        self._host = this_host()
        self._asked_to_stop, self._asked_at, self._last_report = 0, 0.0, NodeReport(order="")
        on_stop(self._stop)

    def follow(self) -> int:
        """Execute orders until one ends the job, and return the exit status.

        If node 0 is lost, the status is 75, so that the job is tried again.
        """
        try:
            while True:
                silent_s = self._leader.age_s()
                order = read(self.files.order, NodeOrder)
                if order is not None and order.session == self._leader.session:
                    self._execute(order)
                    if order.status is not None:
                        return order.status
                if silent_s > self.place.silence_limit_s(self.config, self._leader) or self._waited_too_long():
                    return self._without_leader()
                self._report()
                time.sleep(POLL_S)
        finally:
            self._end_ranks()
            end_standby(self._standby)
            if self._keeper is not None:
                self._keeper.close()

    def start(self, order: NodeOrder, rank: int) -> Process:
        """Start one rank of this node."""
        return start_rank(self.config, self._path, self.place, order, rank, self._lock_fd)

    def fetch(self, step: int) -> subprocess.Popen[bytes]:
        """Start the process that fetches this node's part of a checkpoint. Its exit status is reported like a rank's
        status."""
        command = fetch_command(self._path, step, self.place.node, self.place.nodes)
        process: subprocess.Popen[bytes] = processes.start(command, *processes.STORES, *processes.KEYS)
        return process

    def _execute(self, order: NodeOrder) -> None:
        if order.id != self._order.id:
            self._end_ranks()
            self._order, self._signals, self._epoch = order, 0, 0
            self._keep(order.secret)
            if order.check:
                self._ranks = [start_checks(self._path, self.place, order.address, order.check)]
            elif order.fetch is not None:
                self._ranks = [self.fetch(order.fetch)]
            elif order.port:
                here = self.place.ranks(self.config)
                for rank in here:
                    writer.end(self.config.directory, rank)  # node 0 no longer waits for it
                self._ranks = [self.start(order, rank) for rank in here] if order.status is None else []
            self._report()
        if order.recovery is not None and order.recovery.first.epoch > self._epoch:
            self._replace(order)
        for number in order.signals[self._signals :]:
            self._send(number)
        self._signals = len(order.signals)

    def _replace(self, order: NodeOrder) -> None:
        """Start some ranks of this node again, while the others continue."""
        here = self.place.ranks(self.config)
        for rank in order.replaced:
            if rank in here:
                index = rank - here.start
                end_process(self._ranks[index])
                self._ranks[index] = self.start(order, rank)
        assert order.recovery is not None
        self._order, self._epoch = order, order.recovery.first.epoch
        self._report()

    def _keep(self, secret: str) -> None:
        """Start the process that stores copies, once the job's secret is known."""
        if self._keeper is None and self.config.recovery.enabled:
            self._keeper = KeeperProcess(secret, wire.own_host(self.place.address))

    def _report(self) -> None:
        codes = tuple(process.poll() for process in self._ranks)
        report = NodeReport(
            order=self._order.id,
            session=self._order.session,
            codes=codes,
            asked_to_stop=self._asked_to_stop,
            host=self._host,
            epoch=self._epoch,
            keeper=self._keeper.address if self._keeper is not None else "",
        )
        if report != self._last_report:
            write(self.files.report(self.place.node), report)
            self._last_report = report

    def _waited_too_long(self) -> bool:
        """Return True if this node has received a stop signal and node 0 has not reacted in time."""
        grace_s = self.config.supervision.grace_s
        return bool(self._asked_to_stop) and time.monotonic() - self._asked_at > 2 * grace_s

    def _without_leader(self) -> int:
        """Return the exit status of this node after node 0 is lost. The job may have finished before this node
        started."""
        try:
            status = json.loads(self.config.directory.result.read_bytes())["status"]
        except FileNotFoundError:
            return EXIT_PREEMPTED
        return 0 if status == "finished" else EXIT_PREEMPTED

    def _end_ranks(self) -> None:
        self._send(signal.SIGKILL)
        for process in self._ranks:
            process.wait()
        self._ranks = []

    def _send(self, number: int) -> None:
        for process in self._ranks:
            if process.poll() is None:
                process.send_signal(number)

    def _stop(self, number: int) -> None:
        if not self._asked_to_stop:
            self._asked_to_stop, self._asked_at = number, time.monotonic()


def follow(config: RunConfig, config_path: Path, place: NodePlace) -> int:
    """Supervise one of the other nodes until the job ends, and return the exit status."""
    return Follower(config, config_path, place).follow()


# One round of host checks, led by node 0: all nodes check themselves and each other, and report in time or fail.

#: Seconds beyond the limit for process start, the torch import, and visibility of reports on other nodes.
SLACK_S = 90.0


def checked_hosts(
    config: RunConfig, config_path: Path, place: NodePlace, leader: Leader, stop: Callable[[], bool]
) -> list[HostReport]:
    """Return the reports of all nodes, in order, and log them on the timeline as `hosts_checked`.

    Args:
        stop: called while waiting. If it returns True, the wait ends, and reports may be missing.
    """
    wanted = config.supervision.host_checks
    begun = time.monotonic()
    if place.nodes == 1:
        reports = [HostReport(node=0, host=check_this_host(), checks=tuple(of_this_node(config)))]
    else:
        reports = _together(config, config_path, place, leader, stop)
    reports = with_clocks(reports, wanted.clock_s)
    hosts = [
        {"node": one.node, "host": one.host, **{check.name: check.outcome for check in one.checks}} for one in reports
    ]
    Timeline(config.directory.events).append("hosts_checked", hosts=hosts, seconds=round(time.monotonic() - begun, 3))
    return reports


def _together(
    config: RunConfig, config_path: Path, place: NodePlace, leader: Leader, stop: Callable[[], bool]
) -> list[HostReport]:
    from plinth.processes import free_port

    files, port = NodeFiles(config.directory), free_port()
    for node in range(place.nodes):
        files.host_checks(node).unlink(missing_ok=True)
    own = start_checks(config_path, place, place.address, port)
    processes: list[Process] = [own, *leader.check(port)]
    until = time.monotonic() + config.supervision.host_checks.bound_s + SLACK_S
    while any(process.poll() is None for process in processes) and time.monotonic() < until and not stop():
        time.sleep(POLL_S)
    if own.poll() is None:
        own.kill()
        own.wait()
    return [_report(files, node) for node in range(place.nodes)]


def _report(files: NodeFiles, node: int) -> HostReport:
    """Return the check report of a node.

    If a node has started but reported no check in time, it has failed, because its disk or a GPU hangs. If a node has
    not started, nothing is known about it, not even its name. Its heartbeat shows if it is lost.
    """
    found = read(files.host_checks(node), HostReport)
    if found is None:
        never = HostCheck(name="report", outcome="undetermined", evidence="the node has not started its checks")
        return HostReport(node=node, host="", checks=(never,))
    if not found.checks:
        return found.also(HostCheck(name="report", outcome="fail", evidence="no check ended within the time limit"))
    return found
