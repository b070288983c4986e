"""The supervisor of any node but the first: starts, signals and ends its ranks as node 0 orders, and reports."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from plinth import processes
from plinth.training.attempts.host import this_host
from plinth.training.checkpoint.upload import fetch_command
from plinth.training.checkpoint.writer import writer_process
from plinth.training.config import RunConfig
from plinth.training.supervise.nodes import (
    Heartbeat,
    HeartbeatReader,
    NodeFiles,
    NodeOrder,
    NodePlace,
    NodeReport,
    on_stop,
    read,
    start_checks,
    start_rank,
    write,
)
from plinth.training.supervise.run_lock import hold
from plinth.training.supervise.watch import EXIT_PREEMPTED, POLL_S, Process


class Follower:
    """Supervises the ranks of one node."""

    def __init__(self, config: RunConfig, config_path: Path, place: NodePlace) -> None:
        self.config, self.place, self.files = config, place, NodeFiles(config.directory)
        self._path, self._lock_fd = config_path, hold(self.files.lock(place.node))
        self._beat = Heartbeat(self.files.beat(place.node), f"node-{place.node}")
        self._leader = HeartbeatReader(self.files.beat(0))
        self._order, self._signals = NodeOrder(id="", session=""), 0
        self._ranks: list[Process] = []
        self._host = this_host()
        self._asked_to_stop, self._asked_at, self._last_report = 0, 0.0, NodeReport(order="")
        on_stop(self._stop)

    def follow(self) -> int:
        """Execute orders until one ends the job; returns the exit status. Without node 0: 75, for another try."""
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

    def start(self, order: NodeOrder, rank: int) -> Process:
        """One rank of this node."""
        return start_rank(self.config, self._path, self.place, order, rank, self._lock_fd)

    def fetch(self, step: int) -> subprocess.Popen[bytes]:
        """The process that fetches this node's share of a checkpoint; it is reported on as a rank is."""
        command = fetch_command(self._path, step, self.place.node, self.place.nodes)
        process: subprocess.Popen[bytes] = processes.start(command, *processes.STORES, *processes.KEYS)
        return process

    def _execute(self, order: NodeOrder) -> None:
        if order.id != self._order.id:
            self._end_ranks()
            self._order, self._signals = order, 0
            if order.check:
                self._ranks = [start_checks(self._path, self.place, order.address, order.check)]
            elif order.fetch is not None:
                self._ranks = [self.fetch(order.fetch)]
            elif order.port:
                here = self.place.ranks(self.config)
                for rank in here:
                    writer_process.end(self.config.directory, rank)  # node 0 has stopped waiting for it
                self._ranks = [self.start(order, rank) for rank in here] if order.status is None else []
            self._report()
        for number in order.signals[self._signals :]:
            self._send(number)
        self._signals = len(order.signals)

    def _report(self) -> None:
        codes = tuple(process.poll() for process in self._ranks)
        report = NodeReport(
            order=self._order.id,
            session=self._order.session,
            codes=codes,
            asked_to_stop=self._asked_to_stop,
            host=self._host,
        )
        if report != self._last_report:
            write(self.files.report(self.place.node), report)
            self._last_report = report

    def _waited_too_long(self) -> bool:
        """Whether node 0 has not acted on a request to stop that this node reported."""
        grace_s = self.config.supervision.grace_s
        return bool(self._asked_to_stop) and time.monotonic() - self._asked_at > 2 * grace_s

    def _without_leader(self) -> int:
        """The exit status without node 0, which may have finished before this node started."""
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
    """Supervise one of the further nodes to the end; returns the exit status."""
    return Follower(config, config_path, place).follow()
