"""Supervisor of a node other than node 0: it starts, signals and ends the ranks of this node on orders of node 0."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from plinth import processes
from plinth.errors import PlinthError
from plinth.training.attempts import this_host
from plinth.training.checkpoint import writer
from plinth.training.checkpoint.shares import prepare_machine
from plinth.training.checkpoint.upload import fetch_command
from plinth.training.config import RunConfig
from plinth.training.peers import AGAIN_S, PeerLink
from plinth.training.recovery.keeper import KeeperProcess
from plinth.training.shared_run.shipping import is_shared, refresh
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
from plinth.training.telemetry.timeline import RankFailure, last_event
from plinth.training.wire import Message, own_host


class Follower:
    """Role of a node other than node 0, which supervises its own ranks.

    Args:
        locks: descriptors of locks that the ranks inherit.
    """

    def __init__(self, config: RunConfig, config_path: Path, place: NodePlace, locks: tuple[int, ...] = ()) -> None:
        self.config, self.place, self._path, self._locks = config, place, config_path, locks
        self._newest = self._order = NodeOrder()
        self._signals = 0
        self._processes: dict[int, Process] = {}  # by rank, or `OTHER`
        self._started: dict[int, int] = {}  # rank -> loss after which it was started
        self._keeper: KeeperProcess | None = None
        self._standby = keep_standby() if config.recovery.enabled else None
        self._asked_to_stop, self._asked_at = 0, 0.0
        self._report = NodeReport(host=this_host())
        self._link, self._since = PeerLink(place.node, lambda: self._report.model_dump(), self._take), time.monotonic()
        threading.Thread(target=self._connect, name="plinth-node", daemon=True).start()
        on_stop(self._stop)

    def follow(self) -> int:
        """Execute orders until one ends the job, and return the exit status.

        If node 0 is lost, the status is 75, so that the job is tried again.
        """
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
                    return self._exit_status()
                time.sleep(POLL_S)
        finally:
            self._link.ended.set()
            self._end_ranks()
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
        self._order = order
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
        if self._keeper is None and self.config.recovery.enabled:
            self._keeper = KeeperProcess(self._secret, own_host(self.place.address))

    def _send_report(self) -> None:
        """Report changes at once. The link repeats the newest report each second."""
        checking = self._processes.get(OTHER)
        changes = {
            "order": self._order.id,
            "codes": {number: process.poll() for number, process in self._processes.items()},
            "asked_to_stop": self._asked_to_stop,
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
            self._secret = record.secret
            self._link.hold(record.address, record.secret)

    def _take(self, message: Message) -> None:
        order = message["order"]
        if order["recovery"] is not None:
            order["recovery"]["secret"] = self._secret
        self._newest = NodeOrder.model_validate(order)

    @property
    def _without_leader(self) -> bool:
        """True if node 0 is lost, or will soon count this node as lost."""
        known = self._link if self._link.met else None
        return self.place.is_lost(self.config, known, self._since, LEAVES_AT)

    def _waited_too_long(self) -> bool:
        """Return True if this node has received a stop signal, and node 0 has not reacted in time or needs no reaction,
        because this node is a spare."""
        is_spare = bool(self._order.seats) and self._order.seat(self.place.node) is None
        patience_s = 0.0 if is_spare else 2 * self.config.supervision.grace_s
        return bool(self._asked_to_stop) and time.monotonic() - self._asked_at > patience_s

    def _exit_status(self) -> int:
        """Return the exit status of this node after node 0 is lost. The job may have finished before this node
        started."""
        with suppress(PlinthError):
            refresh(self.config.directory, own=True)
        try:
            status = json.loads(self.config.directory.result.read_bytes())["status"]
        except FileNotFoundError:
            return EXIT_PREEMPTED
        return 0 if status == "finished" else EXIT_PREEMPTED

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
        if not self._asked_to_stop:
            self._asked_to_stop, self._asked_at = number, time.monotonic()


def follow(config: RunConfig, config_path: Path, place: NodePlace, locks: tuple[int, ...] = ()) -> int:
    """Supervise one of the other nodes until the job ends, and return the exit status."""
    return Follower(config, config_path, place, locks).follow()
