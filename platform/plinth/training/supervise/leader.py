"""Node 0 of a job with several nodes, and the round of checks before the ranks start.

Node 0 gives orders to the other nodes (follower), and reads the reports of remote ranks like those of local ones.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plinth import processes
from plinth.records import Frozen
from plinth.training.attempts import HostFacts
from plinth.training.config import RunConfig
from plinth.training.peers import Peer, Peers
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.supervise.host_checks import HostCheck, HostReport, of_this_node, this_host, with_clocks
from plinth.training.supervise.leadership import Succession
from plinth.training.supervise.nodes import OTHER, CheckProcess, NodeOrder, NodePlace, NodeReport, ranks_of
from plinth.training.supervise.rank_watch import NODE_LOST, POLL_S, Process, end_process, spans
from plinth.training.supervise.rendezvous import RendezvousRecord, rendezvous_of
from plinth.training.telemetry.timeline import RankFailure, Timeline

#: Seconds that an attempt waits for the machine facts of other nodes; none of them trains until it starts.
HOSTS_S = 15.0


class Leader:
    """Role of node 0, which gives orders to the other nodes and reads their reports.

    The ranks of a node are its seat; the first seat is that of the node that leads. Nodes without a seat are spares.

    Args:
        succession: the job of a lost node 0, if a spare leads in its place.
    """

    def __init__(self, config: RunConfig, place: NodePlace, succession: Succession | None = None) -> None:
        self._config, self._place, self._succeeds = config, place, succession is not None
        # of this job; the other nodes get it by the rendezvous
        self.secret = succession.secret if succession else secrets.token_hex(32)
        self._order = NodeOrder()
        self._seats = [place.node, *(succession.seats[1:] if succession else range(1, config.launch.nodes))]
        self._nodes: dict[int, RemoteNode] = {}
        if place.nodes > 1:
            self._nodes = {number: RemoteNode(self, number) for number in range(place.nodes) if number != place.node}
            self._peers = Peers(self.secret, NodeReport(), self._nodes.keys(), everywhere=True)
            self._publish(id=uuid.uuid4().hex)
            where = f"{place.address}:{self._peers.port}"
            record = RendezvousRecord(address=where, secret=self.secret)
            rendezvous_of(config.directory).publish(record)

    def start(self, order: NodeOrder) -> list[RemoteProcess]:
        """Give the order of a new attempt to the other nodes, which start their ranks. Return these ranks."""
        self._order_all(**{**dict(order), "seats": tuple(self._seats)})
        first = self._config.launch.ranks_per_node
        return [RemoteProcess(partial(self._seated, rank), rank) for rank in range(first, self._config.ranks)]

    def replace(self, ranks: Sequence[int], recovery: RecoveryLink) -> None:
        """Order the nodes to start some of their ranks again, while the others continue."""
        replaced = {**self._order.replaced, **dict.fromkeys(ranks, recovery.first.epoch)}
        if self._nodes:
            self._publish(seats=tuple(self._seats), replaced=replaced, recovery=recovery)

    def lacks_spares(self) -> bool:
        """Return True if there are more lost nodes than spares."""
        return len(self._lost_seats()) > len(self._spares())

    def reseat(self) -> list[NodeMove]:
        """Give the seats of lost nodes to spares, as of the next order. A lost node may return as a spare."""
        moves = []
        for seat, spare in zip(self._lost_seats(), self._spares(), strict=False):
            lost, self._seats[seat] = self._seats[seat], spare.number
            host = spare.report.host.host if spare.report.host else ""
            moves.append(NodeMove(node=lost, by=spare.number, host=host, ranks=spans(ranks_of(self._config, seat))))
            self._peers.forget(lost)
        return moves

    def lost_spares(self) -> list[int]:
        """Return the spares that were lost since the last call. Each may return."""
        known = [node for number, node in self._nodes.items() if number not in self._seats and self.known(number)]
        lost = [node.number for node in known if node.is_lost]
        for number in lost:
            self._peers.forget(number)
        return lost

    def is_reachable(self, rank: int) -> bool:
        """Return True if the node of a rank is connected. Otherwise silence of the rank means nothing yet."""
        number = self._seats[rank // self._config.launch.ranks_per_node]
        if number == self._place.node:
            return True
        peer = self.known(number)
        return peer is not None and peer.connection is not None

    def keepers(self) -> list[str]:
        """Wait until every other node with a seat has reported the address of its copies, and return them in order;
        empty for a node that has not reported in time."""
        return [report.keeper for report in self._reports(lambda report: report.keeper)]

    @property
    def count(self) -> int:
        """Number of nodes with a seat, including node 0."""
        return len(self._seats)

    def begin(self, step: int) -> None:
        """Order the other nodes to fetch their parts of a checkpoint from the bucket."""
        self._order_all(seats=tuple(self._seats), fetch=step)

    def failed(self) -> list[int]:
        """Wait until each node has fetched its part of the checkpoint or is lost. Return the nodes whose part is
        missing."""
        return [node.number for node in self._others() if node.process(OTHER).wait() != 0]

    def check(self, port: int) -> list[RemoteProcess]:
        """Order the other nodes to check themselves and their connection to node 0's port. Return the checks of those
        with a seat."""
        self._order_all(check=port, address=self._place.address)
        return [node.process(OTHER) for node in self._others()]

    def checks(self) -> dict[int, HostReport | None]:
        """Return the newest result of the checks of each other node; None if it has not started them. Spares without a
        result are left out."""
        found = {number: node.report.checks for number, node in self._nodes.items()}
        return {number: report for number, report in found.items() if report is not None or number in self._seats}

    def hosts(self) -> tuple[HostFacts, ...]:
        """Return the facts about their machines that the other nodes have reported, in the order of seats. Nodes
        without a report are left out."""
        reports = self._reports(lambda report: report.host)
        return tuple(report.host for report in reports if report.host is not None)

    def failure(self) -> RankFailure | None:
        """Return the error that a rank of another node has reported there, or None."""
        return next((node.report.failure for node in self._others() if node.report.failure is not None), None)

    def asked_to_stop(self) -> int:
        """Return the stop signal that another node has received, or 0."""
        return next((node.report.asked_to_stop for node in self._others() if node.report.asked_to_stop), 0)

    @property
    def epoch(self) -> int:
        """Number of losses of this attempt after which ranks were started again."""
        return self._order.epoch

    @property
    def order(self) -> str:
        """Identifier of the current order."""
        return self._order.id

    def signal(self, number: int) -> None:
        """Forward a stop signal to the ranks of all other nodes, once per attempt."""
        if number not in self._order.signals:
            self._publish(signals=(*self._order.signals, number))

    def end(self, status: int) -> None:
        """Order the other nodes to exit with a status, and wait until each follows the order or is lost. A spare that
        has never connected is not waited for."""
        self._order_all(status=status)
        waited = [node for node in self._nodes.values() if node.number in self._seats or self.known(node.number)]
        while not all(node.follows or node.is_lost for node in waited):
            time.sleep(POLL_S)
        self.close()

    def close(self) -> None:
        """Accept no more connections."""
        if self._nodes:
            self._peers.close()

    def known(self, number: int) -> Peer[NodeReport] | None:
        """Return what is known about another node, or None if it has not connected yet."""
        return self._peers.known(number)

    def is_lost(self, node: RemoteNode) -> bool:
        """Return True if another node is lost. After a succession the nodes are running, and need not start first."""
        known, place = self.known(node.number), self._place
        if known is None:
            return time.monotonic() - node.since > (place.silent_s if self._succeeds else place.start_s(self._config))
        return place.is_lost(known)

    def _others(self) -> list[RemoteNode]:
        """Return the other nodes with a seat, in order."""
        return [self._nodes[number] for number in self._seats if number in self._nodes]

    def _seated(self, rank: int) -> RemoteNode:
        return self._nodes[self._seats[rank // self._config.launch.ranks_per_node]]

    def _lost_seats(self) -> list[int]:
        return [
            seat for seat, number in enumerate(self._seats) if number in self._nodes and self._nodes[number].is_lost
        ]

    def _spares(self) -> list[RemoteNode]:
        """Return the spares that follow the current order and were not asked to stop."""
        spares = [node for number, node in self._nodes.items() if number not in self._seats and self.known(number)]
        return [node for node in spares if node.follows and not (node.is_lost or node.report.asked_to_stop)]

    def _reports(self, wanted: Callable[[NodeReport], object]) -> list[NodeReport]:
        """Wait a limited time until every other node with a seat has reported a fact. Return the reports in order."""
        until = time.monotonic() + min(HOSTS_S, self._place.silent_s)
        while time.monotonic() < until and not all(wanted(node.report) or node.is_lost for node in self._others()):
            time.sleep(POLL_S)
        return [node.report for node in self._others()]

    def _order_all(self, **fields: Any) -> None:
        """Give a new order to the other nodes."""
        self._order = NodeOrder()
        if self._nodes:
            self._publish(**{**fields, "id": uuid.uuid4().hex})

    def _publish(self, **changes: Any) -> None:
        self._order = self._order.model_copy(update=changes)
        # messages are not encrypted; each node has the secret from the rendezvous
        self._peers.tell({"order": self._order.model_dump(mode="json", exclude={"recovery": {"secret"}})})


class NodeMove(Frozen):
    """A spare that took the seat of a lost node: its number and its host, and the ranks of the seat."""

    node: int
    by: int
    host: str
    ranks: str


class RemoteNode:
    """Node 0's view of another node."""

    def __init__(self, leader: Leader, number: int) -> None:
        self._leader, self.number, self.since = leader, number, time.monotonic()

    @property
    def report(self) -> NodeReport:
        """Newest report of the node, which may be on an earlier order."""
        peer = self._leader.known(self.number)
        return NodeReport() if peer is None else peer.state

    @property
    def follows(self) -> bool:
        """True if the node has reported on the current order."""
        return self.report.order == self._leader.order

    @property
    def is_lost(self) -> bool:
        return self._leader.is_lost(self)

    def process(self, number: int) -> RemoteProcess:
        """Return one of the node's processes."""
        return RemoteProcess(lambda: self, number)

    def code(self, number: int) -> int | None:
        """Return the exit status of one of the node's processes, or None while it runs."""
        current = self.follows and self.report.epoch == self._leader.epoch
        code = self.report.codes.get(number) if current else None
        return NODE_LOST if code is None and self.is_lost else code

    def signal(self, number: int) -> None:
        self._leader.signal(number)


class RemoteProcess:
    """A rank on another node, or the check or download of a node, with the process interface that `watch` needs.

    Args:
        node: returns the current node of the process.
    """

    def __init__(self, node: Callable[[], RemoteNode], number: int) -> None:
        self._node, self._number = node, number

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs, or `NODE_LOST` if its node is lost."""
        return self._node().code(self._number)

    def wait(self) -> int:
        """Wait for the process to end and return its exit status."""
        while (code := self.poll()) is None:
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Forward a stop signal to all remote ranks."""
        self._node().signal(sig)


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
        reports = [HostReport(node=0, host=this_host(), checks=tuple(of_this_node(config)))]
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
    own = CheckProcess(config, config_path, 0, place.address, port := processes.free_port())
    running: list[Process] = [own, *leader.check(port)]
    until = time.monotonic() + config.supervision.host_checks.bound_s + SLACK_S
    while any(process.poll() is None for process in running) and time.monotonic() < until and not stop():
        time.sleep(POLL_S)
    end_process(own)
    return [completed(node, found) for node, found in {0: own.report, **leader.checks()}.items()]


def completed(node: int, found: HostReport | None) -> HostReport:
    """Return the check report of a node.

    If a node has started but reported no check in time, it has failed, because its disk or a GPU hangs. If a node has
    not started, nothing is known about it, not even its name. Its heartbeat shows if it is lost.
    """
    if found is None:
        never = HostCheck(name="report", outcome="undetermined", evidence="the node has not started its checks")
        return HostReport(node=node, host="", checks=(never,))
    if not found.checks:
        return found.also(HostCheck(name="report", outcome="fail", evidence="no check ended within the time limit"))
    return found
