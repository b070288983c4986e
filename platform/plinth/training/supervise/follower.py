"""Supervisor of a node other than node 0: it starts, signals and ends the ranks of this node on orders of node 0.

If node 0 is lost, a spare takes its place (leadership), and the other nodes follow it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from plinth import processes
from plinth.errors import LaunchError, PlinthError
from plinth.training.attempts import this_host
from plinth.training.checkpoint import writer
from plinth.training.checkpoint.shares import prepare_machine
from plinth.training.checkpoint.upload import fetch_command
from plinth.training.config import RunConfig
from plinth.training.peers import AGAIN_S, PeerLink
from plinth.training.recovery.keeper import KeeperProcess
from plinth.training.shared_run.shipping import is_shared, refresh
from plinth.training.supervise.leadership import LOST_LEASE_S, SUCCESSION_S, Leadership, Succession, acquire
from plinth.training.supervise.nodes import (
    LEAVES_AT,
    OTHER,
    CheckProcess,
    NodeOrder,
    NodePlace,
    NodeReport,
    end_standby,
    keep_standby,
    on_stop,
    prepare_spare,
    ranks_of,
    start_rank,
)
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED, NAMED, POLL_S, Process, end_process
from plinth.training.supervise.rendezvous import rendezvous_of
from plinth.training.supervise.result import JobResult
from plinth.training.telemetry.timeline import NODE_SILENT, RankFailure, last_event
from plinth.training.wire import Address, Message, own_host


class Follower:
    """Role of a node other than node 0, which supervises its own ranks. A new object follows another node 0.

    Args:
        locks: descriptors of locks that the ranks inherit.
        own: lock of this node's own folder, if the run is shared.
        before: role of this node under a lost node 0.
    """

    def __init__(
        self,
        config: RunConfig,
        config_path: Path,
        place: NodePlace,
        locks: tuple[int, ...] = (),
        own: int | None = None,
        before: Follower | None = None,
    ) -> None:
        self.config, self.place, self._path, self._own, self._locks = config, place, config_path, own, locks
        self._newest = self._order = NodeOrder()
        self._signals = 0
        self._processes: dict[int, Process] = {}  # by rank, or `OTHER`
        self._started: dict[int, int] = {}  # rank -> loss after which it was started
        self._before, self._secret, self._address = before, "", ""
        self._seats: tuple[int, ...] = before._seats if before else ()  # the node of each seat, as of the last order
        self._keeper: KeeperProcess | None = before._keeper if before else None
        self._standby = keep_standby() if config.recovery.enabled else None
        self.asked_to_stop, self._asked_at = 0, 0.0
        self.limit_s = place.start_s(config) if before is None else SUCCESSION_S  # to the first message of node 0
        self._report = NodeReport(host=this_host(), keeper=self._keeper.address if self._keeper else "")
        self._link, self._since = PeerLink(place.node, lambda: self._report.model_dump(), self._take), time.monotonic()
        self._thread = threading.Thread(target=self._connect, name="plinth-node", daemon=True)
        self._thread.start()
        on_stop(self._stop)
        if before is not None and before.asked_to_stop:  # until now a signal was noted there
            self.asked_to_stop, self._asked_at = before.asked_to_stop, before._asked_at

    def follow(self) -> int | Leadership | None:
        """Execute orders until one ends the job, and return the exit status. Return None if node 0 is lost, or the
        right to act for the run if this spare has taken it after a loss."""
        try:
            while True:
                order = self._newest
                self._execute(order)
                if self._keeper is not None:
                    self._keeper.tend()
                self._send_report()
                if order.status is not None:
                    return order.status
                if self._without_leader or self._waited_too_long():
                    self._send_report()
                    return None
                if self._may_lead and (acquired := self._acquired()) is not None:
                    return acquired
                time.sleep(POLL_S)
        finally:
            self._link.ended.set()
            self._end_ranks()

    @property
    def met(self) -> bool:
        """True if this node has received a message of node 0, or of a node 0 that was lost."""
        return self._link.met or self._before is not None

    def close(self, *, keep_standby: bool = False) -> None:
        """End the process that stores copies, and those that wait unless this node leads now."""
        if not keep_standby:
            end_standby(self._standby)
        if self._keeper is not None:
            self._keeper.close()

    def start(self, order: NodeOrder, rank: int) -> Process:
        """Start one rank of this node."""
        return start_rank(self.config, self._path, order, rank, self._locks)

    def fetch(self, step: int, seat: int) -> subprocess.Popen[bytes]:
        """Start the process that fetches this node's part of a checkpoint. Its exit status is reported like a rank's
        status."""
        command = fetch_command(self._path, step, seat, self.config.launch.nodes)
        process: subprocess.Popen[bytes] = processes.start(command, *processes.STORES, *processes.KEYS)
        return process

    def _execute(self, order: NodeOrder) -> None:
        seat = order.seat(self.place.node)
        if order.id != self._order.id:
            self._end_ranks()
            self._signals, self._started = 0, {}
            self._keep()
            if order.check:
                own = self.config, self._path, self.place.node
                self._processes[OTHER] = CheckProcess(*own, order.address, order.check)
            elif order.fetch is not None and seat is not None:
                self._processes[OTHER] = self.fetch(order.fetch, seat)
            elif order.port and seat is not None:
                for rank in ranks_of(self.config, seat):
                    writer.end(self.config.directory, rank)  # node 0 no longer waits for it
            elif order.port and self._standby is not None:
                prepare_spare(self._standby, self.config, self._path, order)
        self._order, self._seats = order, order.seats or self._seats
        if order.port:
            self._start_ranks(order, () if seat is None else ranks_of(self.config, seat))
        for number in order.signals[self._signals :]:
            self._send(number)
        self._signals = len(order.signals)

    def _start_ranks(self, order: NodeOrder, here: Sequence[int]) -> None:
        """Start the ranks of this node that do not run yet, or that node 0 wants started again. End those that were
        given to another node."""
        for rank in [rank for rank in self._processes if rank not in here]:
            end_process(self._processes.pop(rank))
        if set(here) - self._started.keys():
            prepare_machine(self.config, here, checkpoints=order.epoch == 0)
        for rank in here:
            epoch = order.replaced.get(rank, 0)
            if self._started.get(rank, -1) < epoch:
                if rank in self._processes:
                    end_process(self._processes[rank])
                self._processes[rank], self._started[rank] = self.start(order, rank), epoch

    def _keep(self) -> None:
        """Start the process that stores copies, once the job's secret is known."""
        if self._keeper is not None and self._keeper.secret != self._secret:
            self._keeper.close()  # of an earlier job
            self._keeper = None
        if self._keeper is None and self.config.recovery.enabled:
            self._keeper = KeeperProcess(self._secret, self._address)

    def _send_report(self) -> None:
        """Report changes at once. The link repeats the newest report each second."""
        checking = self._processes.get(OTHER)
        changes = {
            "order": self._order.id,
            "codes": {number: process.poll() for number, process in self._processes.items()},
            "asked_to_stop": self.asked_to_stop,
            "epoch": self._order.epoch,
            "keeper": self._keeper.address if self._keeper is not None else "",
            "checks": checking.report if isinstance(checking, CheckProcess) else None,
            "failure": self._failure(),
        }
        report = self._report.model_copy(update=changes)
        if report != self._report:
            self._report = report
            self._link.report()

    def _failure(self) -> RankFailure | None:
        """Return the error that one of the ranks reported, unless node 0 reads the same timeline."""
        named = any(process.poll() in NAMED for process in self._processes.values())
        last = last_event(self.config.directory.events) if named and is_shared(self.config.directory) else None
        if last is None or last["event"] != "rank_failed":
            return None
        return RankFailure.model_validate({name: last[name] for name in RankFailure.model_fields})

    def _connect(self) -> None:
        """Stay connected to node 0: to that of the newest record, until it has answered, and then to no other."""
        rendezvous, record = rendezvous_of(self.config.directory), None
        while not self._link.ended.is_set():
            record = record if self._link.met else rendezvous.read()
            if record is None:
                time.sleep(AGAIN_S)
                continue
            try:
                self._secret, self._address = record.secret, own_host(Address.of(record.address).host)
            except OSError:  # no route, or no such name
                time.sleep(AGAIN_S)
                continue
            self._link.hold(record.address, record.secret)

    def _take(self, message: Message) -> None:
        order = message["order"]
        if order["recovery"] is not None:
            order["recovery"]["secret"] = self._secret
        self._newest = NodeOrder.model_validate(order)

    @property
    def _without_leader(self) -> bool:
        """True if node 0 is lost, or will soon count this node as lost. A spare waits longer than the others, so that
        they have ended their ranks before it leads."""
        if self._link.met:
            return self.place.is_lost(self._link, 1.0 if self._is_spare else LEAVES_AT)
        return time.monotonic() - self._since > self.limit_s

    @property
    def _is_spare(self) -> bool:
        """True if this node had no seat by the last order with seats."""
        return bool(self._seats) and self.place.node not in self._seats

    @property
    def _may_lead(self) -> bool:
        """True if this node is a spare, has lost node 0, and has not met another one."""
        return self._before is not None and not self._link.met and self._is_spare and not self.asked_to_stop

    def _acquired(self) -> int | Leadership | None:
        """Return the right to act for the run, or None if another node has it. If the job has ended, return the exit
        status."""
        try:
            right = acquire(self.config, self._own, wait_s=0.0, lease_s=LOST_LEASE_S, ended=False)
        except LaunchError:
            return None
        except (PlinthError, OSError) as error:
            said = error.brief if isinstance(error, PlinthError) else error
            print(f"node {self.place.node} cannot lead yet: {said}", file=sys.stderr, flush=True)
            return None
        if self._own is None and (ended := self._ended()) is not None:  # meanwhile
            os.close(right.lock)
            return ended
        assert self._before is not None
        return right._replace(succession=Succession(self._before._secret, self._seats, self._before._address))

    def _waited_too_long(self) -> bool:
        """Return True if this node has received a stop signal, and node 0 has not reacted in time or needs no reaction,
        because this node is a spare."""
        patience_s = 0.0 if self._is_spare else 2 * self.config.supervision.grace_s
        return bool(self.asked_to_stop) and time.monotonic() - self._asked_at > patience_s

    def exit_status(self) -> int | None:
        """Return the exit status of this node after the loss of node 0, or None if another node may lead the job."""
        ended = self._ended()
        if ended is None and self._link.met and self._seats and self.config.launch.spares and not self.asked_to_stop:
            return None
        return EXIT_PREEMPTED if ended is None else ended

    def _ended(self) -> int | None:
        """Return the exit status of this node if the job has ended, maybe before this node started, or None. A node 0
        that has lost the other nodes does not end their job."""
        run = self.config.directory
        try:
            found = refresh(run, own=True)
            if found is not None and run.result.name not in found.head.files:
                return None  # the file on this machine is that of an earlier job
            result = JobResult.model_validate_json(run.result.read_bytes())
        except (PlinthError, OSError, ValueError):  # none yet, or it cannot be read now
            return None
        if result.status == "finished":
            return 0
        return None if result.reason.endswith(NODE_SILENT) else EXIT_PREEMPTED

    def _end_ranks(self) -> None:
        self._send(signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        self._processes = {}

    def _send(self, number: int) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def _stop(self, number: int) -> None:
        if not self.asked_to_stop:
            self.asked_to_stop, self._asked_at = number, time.monotonic()


def follow(
    config: RunConfig,
    config_path: Path,
    place: NodePlace,
    locks: tuple[int, ...] = (),
    own: int | None = None,
    refused: LaunchError | None = None,
) -> int | Leadership:
    """Supervise one of the other nodes until the job ends, and return the exit status, or the right to act for the run
    if this node leads it now.

    If no other node leads after the loss of node 0, the status is 75, so that the job is tried again.

    Args:
        refused: why this node does not lead itself. It is raised if no other node leads soon.
    """
    role = Follower(config, config_path, place, locks, own)
    role.limit_s = SUCCESSION_S if refused is not None else role.limit_s
    ended: int | Leadership | None = None
    try:
        while (ended := role.follow()) is None and (ended := role.exit_status()) is None:
            role = Follower(config, config_path, place, locks, own, before=role)
    finally:
        role.close(keep_standby=isinstance(ended, Leadership))
    if refused is not None and not role.met:
        raise refused
    assert ended is not None
    return ended if isinstance(ended, int) else ended._replace(asked_to_stop=lambda: role.asked_to_stop)
