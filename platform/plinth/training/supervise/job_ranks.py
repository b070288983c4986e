"""Ranks of a job, on node 0 and on the other nodes: their start, replacement, attestation and end.

The replacement of lost ranks is ordered by the coordinator of a recovery (recovery.coordinator). The place of a lost
node is taken by a spare.
"""

from __future__ import annotations

from pathlib import Path

from plinth import processes
from plinth.training import attempts
from plinth.training.attempts import ContinuedState, this_host
from plinth.training.checkpoint import writer
from plinth.training.config import RunConfig
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.supervise.job_log import JobLog
from plinth.training.supervise.leader import Leader, NodeMove
from plinth.training.supervise.nodes import NodeOrder, NodePlace, ranks_of, start_rank
from plinth.training.supervise.rank_watch import (
    EXIT_PARTNER_LOST,
    EXIT_PREEMPTED,
    NAMED,
    NODE_LOST,
    Process,
    describe_exit,
    end_process,
)
from plinth.training.upgrade.record import CodeComparison


class JobRanks:
    """Ranks of the current attempt of a job.

    Args:
        lock_fd: the run's lock, which the ranks inherit.
    """

    def __init__(
        self, config: RunConfig, config_path: Path, lock_fd: int, place: NodePlace, leader: Leader, log: JobLog
    ) -> None:
        self.config, self.place, self.leader, self.log = config, place, leader, log
        self._path, self._lock_fd = config_path, lock_fd
        self.processes: list[Process] = []
        self.upgrade: CodeComparison | None = None  # to sign with the next attempt
        self._moves: tuple[str, ...] = ()  # lost nodes since the last attestation of a state
        self._failed: list[int] = []  # those that failed first
        self._order = NodeOrder()

    def start(self, audit: bool, resume: int, other_code: bool, link: RecoveryLink | None) -> None:
        """Start all ranks of an attempt.

        Args:
            resume: step of the checkpoint that an external trainer loads; of an audit: its start, 0 for the default.
            other_code: True to replay steps of the run's code with the code of this job.
            link: what the ranks need to outlive lost ranks, or None if they do not outlive any.
        """
        flags = {"audit": audit, "resume": resume, "other_code": other_code, "recovery": link}
        address, port = self.place.address, processes.free_port()
        self._order, self._failed = NodeOrder(attempt=self.log.attempt, address=address, port=port, **flags), []
        self.processes = [self._start(rank) for rank in ranks_of(self.config, 0)]
        self.processes += self.leader.start(self._order)

    def replace(self, ranks: list[int], link: RecoveryLink) -> None:
        """Start lost ranks again while the others continue, those of a lost node on a spare."""
        self.reseat()
        self.leader.replace(ranks, link)
        self._order = self._order.model_copy(update={"attempt": self.log.attempt + 1, "port": 0, "recovery": link})
        for rank in ranks_of(self.config, 0):
            if rank in ranks:
                end_process(self.processes[rank])
                self.processes[rank] = self._start(rank)

    def reseat(self) -> bool:
        """Give the places of lost nodes to spares, and log it. Return False if there are not enough spares."""
        if self.leader.lacks_spares():
            return False
        for move in self.leader.reseat():
            self.log_move(move)
        return True

    def log_move(self, move: NodeMove) -> None:
        """Log that a spare has taken the place of a lost node, and note it for the next attestation."""
        self.log.events.append("node_replaced", **move.model_dump(), durable=True)
        self._moves += (f"node {move.node} by node {move.by} ({move.host})",)
        writer.give_up(self.config.directory)  # the lost node's part of a save will not arrive

    def attest(self, audit: bool, continuation: ContinuedState | None = None) -> None:
        """Sign the attestation of this attempt before its ranks start, or before they continue. The code on disk may
        have changed since the last attempt."""
        upgrade, self.upgrade = (None, self.upgrade) if audit else (self.upgrade, None)
        made = attempts.state(
            self.config.directory,
            self._path.read_bytes(),
            self.config.key,
            ranks=self.config.ranks,
            nodes=self.leader.count,
            hosts=(this_host(), *self.leader.hosts()),
            audit=audit,
            upgrade=upgrade,
            continuation=continuation,
        )
        self.log.attempt = made.number
        if upgrade is not None:
            self.config.directory.upgrade.unlink(missing_ok=True)

    def attest_state(self, step: int, copies: str, restored: str) -> None:
        """Sign the machines as they are now, and the state with which the ranks continue after a step.

        Args:
            copies: digest of the copies; empty if the state came from a checkpoint.
            restored: digest of the ranks' memory after the restore; empty if the state came from a checkpoint.
        """
        made = ContinuedState(
            lost=self.log.loss,
            replaced=self._moves,
            step=step,
            source="memory" if restored else "checkpoint",
            copies_sha256=copies,
            restored_sha256=restored,
        )
        self.attest(False, made)
        self._moves = ()

    def note_failures(self) -> None:
        """Note which ranks have failed by themselves: their siblings are ended afterward."""
        if not self._failed:
            codes = [process.poll() for process in self.processes]
            in_order = (None, 0, EXIT_PREEMPTED, EXIT_PARTNER_LOST)
            self._failed = [rank for rank, code in enumerate(codes) if code not in in_order]

    def wait(self) -> list[int]:
        """Wait for the end of all ranks, and return their exit statuses."""
        codes = [process.wait() for process in self.processes]
        if NODE_LOST in codes:
            writer.give_up(self.config.directory)
        return codes

    def verdict(self, codes: list[int]) -> tuple[int, str]:
        """Return one exit status and one reason for all ranks.

        If a rank reported a failure, that failure also explains why other ranks lost their connection.
        """
        named = [code for code in codes if code in NAMED]
        if named:
            failure = self.log.failure = self.log.rank_failure or self.leader.failure()
            return named[0], f"{failure.kind}: {failure.what}" if failure else f"a rank ended with status {named[0]}"
        if NODE_LOST in codes:
            return NODE_LOST, describe_exit(codes.index(NODE_LOST), NODE_LOST)
        bad = [(rank, code) for rank, code in enumerate(codes) if code not in (0, EXIT_PREEMPTED)]
        bad = [(rank, code) for rank, code in bad if rank in self._failed] or bad
        bad = [(rank, code) for rank, code in bad if code != EXIT_PARTNER_LOST] or bad
        bad = [(rank, code) for rank, code in bad if code < 0] or bad  # killed: the others lost a partner by it
        if bad:
            return 1, "; ".join(describe_exit(rank, code) for rank, code in bad)
        return (EXIT_PREEMPTED, "") if EXIT_PREEMPTED in codes else (0, "")

    def _start(self, rank: int) -> Process:
        return start_rank(self.config, self._path, self._order, rank, (self._lock_fd,))
