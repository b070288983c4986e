"""Supervisor of a job. It starts and watches the ranks, restarts them within limits, and records the result.

`python -m plinth.training.supervise.supervisor CONFIG` starts one process per rank with the environment of DeepSpeed
(RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). DeepSpeed's own launcher does the same on one machine, but
takes ten seconds to start, kills ranks on SIGTERM before they can save, and returns one exit status for all ranks.

If there are several nodes, each has a supervisor, and the first supervisor decides (nodes.py). Every attempt gets its
own port and a signed attestation of code and machines (attempts). The ranks inherit the run's lock, so a second
supervisor cannot start while any process of the first one is alive. Ranks die with their supervisor.

Exit status: 0 means finished, or stopped because the allowance is spent, which a restart would not change. 75 means
stopped by a signal after a commit. 7 means failed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from plinth import private, processes
from plinth.errors import CorruptionError, LaunchError, PlinthError, StorageError
from plinth.storage.atomic import append_to, write_bytes
from plinth.training import attempts
from plinth.training import config as configuration
from plinth.training.attempts import ContinuedState, this_host
from plinth.training.checkpoint import checkpoint, writer
from plinth.training.checkpoint.commit_record import trainer_of
from plinth.training.checkpoint.selection import select_checkpoint
from plinth.training.checkpoint.shares import SharedCheckpoints
from plinth.training.checkpoint.upload import Uploader, restore
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.forensics.order_proof import evidence as order_evidence
from plinth.training.forensics.proof import store_order
from plinth.training.parameters.trainer import require_submitted
from plinth.training.recovery.coordinator import RecoveryCoordinator
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.shared_run.head import patiently
from plinth.training.shared_run.shipping import Shipper, fetch_config, is_shared
from plinth.training.sinks import relay as sinks
from plinth.training.stopping import last_step
from plinth.training.supervise import rank_watch
from plinth.training.supervise.follower import follow
from plinth.training.supervise.host_checks import exclude, judged, replaces
from plinth.training.supervise.leader import Leader, NodeMove, checked_hosts
from plinth.training.supervise.leadership import Leadership, Succession, acquire, own_lock
from plinth.training.supervise.nodes import NodeOrder, NodePlace, keep_standby, ranks_of, start_rank
from plinth.training.supervise.rank_watch import (
    EXIT_PARTNER_LOST,
    EXIT_PREEMPTED,
    NAMED,
    NODE_LOST,
    POLL_S,
    Process,
    describe_exit,
    end_process,
    watch,
)
from plinth.training.supervise.result import AllowanceWatch, Ending, JobResult, LostWork, hold, submitted_grant
from plinth.training.telemetry import devices
from plinth.training.telemetry.timeline import RankFailure, Timeline
from plinth.training.upgrade import record as upgrades
from plinth.training.upgrade.comparison import compared, is_new_code
from plinth.training.upgrade.record import CodeComparison

MAX_BACKOFF_S = 300.0


@dataclass
class Supervisor:
    """Supervisor of one job from start to end."""

    config: RunConfig
    config_path: Path
    lock_fd: int
    asked_to_stop: int = 0
    restarts: int = 0
    recoveries: int = 0  # times that lost ranks were started again
    continued: int = 0  # recoveries that are on the timeline: one may replace ranks several times
    failure: RankFailure | None = None
    place: NodePlace = field(default_factory=NodePlace)
    loss: str = ""  # the last loss, in words
    moves: tuple[str, ...] = ()  # lost nodes since the last attestation of a state
    first_failed: list[int] = field(default_factory=list)  # ranks of this attempt that failed first
    compares: bool = False  # while the code of this job replays steps of the run's code
    upgrade: CodeComparison | None = None  # to sign with the next attempt
    granted: int = 0  # number of the grant with which the job was submitted
    resume: int = 0  # step of the checkpoint that an external trainer loads; of an audit: its start, 0 for the default
    shipper: Shipper | None = None  # of a run in a shared workspace
    succession: Succession | None = None  # if this node leads instead of a lost node 0

    def __post_init__(self) -> None:
        self.run = self.config.directory
        self.leader = Leader(self.config, self.place, self.succession)
        self.coordinator: RecoveryCoordinator | None = None
        self.rank_processes: list[Process] = []
        self.link: RecoveryLink | None = None  # of the ranks that start
        self.events, self.lost = Timeline(self.run.events), LostWork(self.run)
        self.allowance: AllowanceWatch | None = None
        self.uploader = Uploader(self.config, self.config_path) if self.config.checkpoints.upload else None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def supervise(self) -> JobResult:
        """Train the run, then audit it, with restarts within limits. Return the result of the job."""
        try:
            trainer_of(self.run)  # without a key, fail now rather than at the first checkpoint
            if self.config.recovery.enabled:
                host = self.place.address if self.place.nodes > 1 else ""
                self.coordinator = RecoveryCoordinator(self.config, self.leader.secret, host, self)
            self._take_over()
            return self._excluded() or self._refused() or self._phases()
        except PlinthError as error:
            self.failure = RankFailure.of(error)
            return self._result("failed", f"{self.failure.kind}: {error.what}")
        finally:
            if self.coordinator is not None:
                self.coordinator.close()
            if self.uploader is not None:
                self.uploader.finish(lambda: bool(self.asked_to_stop))

    def _excluded(self) -> JobResult | None:
        """Check the machines. Return the result of the job if a machine is unfit for training, or None if all are
        fit."""
        if not self.config.supervision.host_checks.enabled or self.asked_to_stop or self.succession is not None:
            return None
        reports = checked_hosts(self.config, self.config_path, self.place, self.leader, self._on_check)
        bad, common = judged(reports)
        if self.asked_to_stop or not (bad or common):
            return None
        if common:
            return self._result("failed", f"no rank was started: {common}")
        reason = exclude(self.run, bad)
        return self._result("stopped" if replaces(self.config.launch) else "failed", f"not fit: {reason}")

    def _refused(self) -> JobResult | None:
        """Compare the code of this job with the code of the run, if that was requested. Return the result of the job if
        the code is refused, or None if it may train."""
        request = upgrades.requested(self.run)
        if request is None or not is_new_code(self.run):
            self.run.upgrade.unlink(missing_ok=True)
            return None
        self.compares = True
        ended, reason = self._until_done(audit=True, start=request.from_step)
        self.compares = False
        if ended != "finished":
            return self._result(ended, reason)
        found = compared(self.config, request)
        self.events.append(
            upgrades.UPGRADED if found.accepted else upgrades.REFUSED, durable=True, **found.model_dump()
        )
        if not found.accepted:
            self.run.upgrade.unlink(missing_ok=True)
            return self._result("failed", f"the new code was refused: {found.in_words}")
        self.upgrade = found
        return None

    def _on_check(self) -> bool:
        """Return True if the checks must end because the job was asked to stop."""
        self._watch_allowance()
        self.asked_to_stop = self.asked_to_stop or self.leader.asked_to_stop()
        return bool(self.asked_to_stop)

    def _phases(self) -> JobResult:
        for audit in (False, True):
            if self._is_audited() if audit else self._is_committed(last_step(self.config)):
                continue
            ended, reason = self._until_done(audit)
            if ended == "failed" and audit and self.config.trainer:  # it trained; what was not replayed is not proved
                self.failure = None
                store_order(self.config, order_evidence((), "", reason))
            elif ended != "finished":
                return self._result(ended, reason)
            elif self.config.trainer and not checkpoint.is_valid(self.run, last_step(self.config)):
                return self._result("failed", "the trainer ended with status 0 and did not commit the last step")
        return self._result("finished", "")

    def _is_committed(self, step: int) -> bool:
        """Return True if a checkpoint is committed and matches its record. If other machines have files of it, their
        ranks compare those when they load."""
        if self.shipper is not None and self.place.nodes > 1:
            return step in checkpoint.committed(self.run)
        return checkpoint.is_valid(self.run, step)

    def _is_audited(self) -> bool:
        """Return True if there is evidence about the last checkpoint, and not about one that was the newest when a user
        audited the stopped run. Evidence that the processes of an external trainer may have written does not count."""
        if self.config.trainer is not None or not self.run.evidence.exists():
            return False
        last = last_step(self.config)
        return bool(json.loads(self.run.evidence.read_bytes()).get("to_step", last) == last)

    def _until_done(self, audit: bool, start: int = 0) -> tuple[Ending, str]:
        while True:
            code, reason = (EXIT_PREEMPTED, "") if self.asked_to_stop else self._attempt(audit, start)
            if code == 0:
                return "finished", ""
            asked = self.overspent or f"{signal.Signals(self.asked_to_stop or signal.SIGTERM).name} was received"
            if code == EXIT_PREEMPTED:
                return "stopped", asked
            if self.asked_to_stop:  # not all ranks stopped in time
                self._record_loss("lost", reason, audit)
                return "stopped", asked
            if code == NODE_LOST and not self._reseat():  # only the scheduler can provide another node
                self._record_loss("lost", reason, audit)
                return "stopped", reason
            if code in NAMED or self.restarts >= self.config.supervision.max_restarts:
                self._record_loss("lost", reason, audit)
                excluded = self.failure is not None and self.failure.kind == CorruptionError.__name__
                return "stopped" if excluded and replaces(self.config.launch) else "failed", reason
            self.restarts, self.loss = self.restarts + 1, reason
            step = self.coordinator.newest() if self.coordinator is not None and not audit else None
            self._record_loss("restart", reason, audit, step, attempt=self.attempt, backoff_s=self._backoff_s)
            if not self._back_off():
                return "stopped", self.overspent or "a signal arrived between two attempts"

    def _attempt(self, audit: bool, start: int) -> tuple[int, str]:
        """Start all ranks and wait for them. Return the exit status that decides the next action, and the reason as
        text."""
        self.resume = start if audit else self._verified_step()
        if not audit and self.resume == last_step(self.config):  # the trainer was killed after its last commit
            return 0, ""
        if self.shipper is not None and self.place.nodes > 1:
            patiently(self.shipper.flush)  # other machines read the timeline
        self.lost.begin()
        rank_watch.prepare(self.run)
        self.first_failed = []
        self._state(audit)
        port, self.link = processes.free_port(), self._link(audit)
        ranks = self.rank_processes = [self._start(rank, port, audit) for rank in ranks_of(self.config, 0)]
        ranks += self.leader.start(port, self.attempt, audit, self.resume, self.link)
        reason = watch(
            ranks,
            self.run.events,
            self.config.supervision,
            lambda: self.asked_to_stop,
            lambda: self._on_poll(ranks),
            self._on_hang,
        )
        codes = [process.wait() for process in ranks]
        if NODE_LOST in codes:
            writer.give_up(self.run)
        self._clean()
        if reason:
            return 1, reason
        return self._verdict(codes)

    def _state(self, audit: bool, continuation: ContinuedState | None = None) -> None:
        """Sign the attestation of this attempt before its ranks start, or before they continue. The code on disk may
        have changed since the last attempt."""
        upgrade, self.upgrade = (None, self.upgrade) if audit else (self.upgrade, None)
        attempts.state(
            self.run,
            self.config_path.read_bytes(),
            self.config.key,
            ranks=self.config.ranks,
            nodes=self.leader.count,
            hosts=(this_host(), *self.leader.hosts()),
            audit=audit,
            upgrade=upgrade,
            continuation=continuation,
        )
        if upgrade is not None:
            self.run.upgrade.unlink(missing_ok=True)

    def _link(self, audit: bool) -> RecoveryLink | None:
        """Return what the ranks of an attempt need to outlive lost ranks, or None if they do not outlive any."""
        if self.coordinator is None or audit:
            return None
        return self.coordinator.begin()

    def replace(self, ranks: list[int], link: RecoveryLink) -> None:
        """Start lost ranks again while the others continue, those of a lost node on a spare."""
        self.recoveries, self.link = self.recoveries + 1, link
        self._reseat()
        self.leader.replace(ranks, link)
        for rank in ranks_of(self.config, 0):
            if rank in ranks:
                end_process(self.rank_processes[rank])
                self.rank_processes[rank] = self._start(rank, 0, False)

    def _reseat(self) -> bool:
        """Give the places of lost nodes to spares, and log it. Return False if there are not enough spares."""
        if self.leader.lacks_spares():
            return False
        for move in self.leader.reseat():
            self._log(move)
        return True

    def _log(self, move: NodeMove) -> None:
        self.events.append("node_replaced", **move.model_dump(), durable=True)
        self.moves += (f"node {move.node} by node {move.by} ({move.host})",)
        writer.give_up(self.run)  # the lost node's part of a save will not arrive

    def lacks_spares(self) -> bool:
        """Return True if the place of a lost node cannot be taken by another one."""
        return self.leader.lacks_spares()

    def is_reachable(self, rank: int) -> bool:
        """Return True if the node of a rank is connected."""
        return self.leader.is_reachable(rank)

    def keepers(self) -> tuple[str, ...]:
        """Return the addresses of the keepers of all nodes but the first, in order."""
        return tuple(self.leader.keepers())

    def attest(self, step: int, copies: str, restored: str) -> None:
        """Sign the machines as they are now, and the state with which the ranks continue."""
        made = ContinuedState(
            attempt=self.attempt,
            lost=self.loss,
            replaced=self.moves,
            step=step,
            source="memory" if restored else "checkpoint",
            copies_sha256=copies,
            restored_sha256=restored,
        )
        self._state(False, made)
        self.moves = ()

    def highest(self) -> int:
        """Return the highest step so far."""
        return self.lost.highest()

    def recovered(self, reason: str, step: int) -> None:
        """Log a recovery. The attempt goes on after `step`."""
        self.continued, self.loss = self.continued + 1, reason
        self._record_loss("restart", reason, False, step, attempt=self.attempt, backoff_s=0.0)
        self.lost.begin()

    @property
    def attempt(self) -> int:
        """Number of times that ranks were started again, all or some of them."""
        return self.restarts + self.recoveries

    @property
    def overspent(self) -> str:
        """Reason to stop the job because its allowance is spent, or an empty text."""
        return self.allowance.reason if self.allowance is not None else ""

    def _watch_allowance(self) -> None:
        if self.allowance is not None and self.allowance.spent() and not self.asked_to_stop:
            self.asked_to_stop = signal.SIGTERM

    def _on_poll(self, ranks: list[Process]) -> None:
        self.lost.update()
        self._watch_allowance()
        if self.shipper is not None and self.shipper.lost is not None:
            raise self.shipper.lost
        if self.coordinator is not None:
            self.coordinator.tend(ranks)
        if not self.first_failed:  # ranks that failed by themselves: their siblings are ended afterward
            self.first_failed = [
                rank
                for rank, process in enumerate(ranks)
                if process.poll() not in (None, 0, EXIT_PREEMPTED, EXIT_PARTNER_LOST)
            ]
        self.asked_to_stop = self.asked_to_stop or self.leader.asked_to_stop()
        for number in self.leader.lost_spares():
            self.events.append("spare_lost", node=number, durable=True)
        if self.uploader is not None:
            self.uploader.keep_alive()

    def _on_hang(self) -> None:
        """Log on the timeline which ranks wait for which. If logging fails, continue, because hanging ranks must still
        be killed."""
        try:
            self.events.append("hang", **rank_watch.collect(self.run, self.config.ranks), durable=True)
        except (OSError, PlinthError) as error:
            print(f"the ranks hang, and the hang analysis failed: {error}", file=sys.stderr, flush=True)

    def _take_over(self) -> None:
        """Clean up after a killed supervisor, report its lost work, and download a checkpoint that exists only in the
        bucket."""
        moves = self._gather(self.succession) if self.succession is not None else []
        self._clean()
        fetched = [] if self.leader.lacks_spares() else self._fetch()
        lost = self.lost.lose_vanished(self._in_memory())
        if lost is not None:
            self.events.append("vanished", from_step=lost.from_step, lost_steps=lost.steps, lost_s=lost.seconds)
        self.events.append("job_started", ranks=self.config.ranks, nodes=self.leader.count)
        for move in moves:
            self._log(move)
        self.allowance = AllowanceWatch.of(self.config, self.granted)
        self._watch_allowance()
        if fetched and self.shipper is not None:
            self.events.append("downloaded", step=max(fetched), source=self.shipper.place, durable=True)
        if self.config.checkpoints.upload and not checkpoint.committed(self.run):
            restored = restore(self.config, self.leader)
            if restored is not None:
                self.events.append("downloaded", step=restored, source=self.config.checkpoints.upload, durable=True)

    def _in_memory(self) -> int | None:
        """Return the step of the copies of a lost node 0's job with which this one continues, or None if there are
        none."""
        return self.coordinator.newest() if self.coordinator is not None and self.succession is not None else None

    def _gather(self, succession: Succession) -> list[NodeMove]:
        """Wait for the nodes that followed a lost node 0, and give the seats of those that are lost too to spares.
        Return the changes, that of node 0 first."""
        self.loss = describe_exit(0, NODE_LOST)
        self.leader.hosts()
        ranks = rank_watch.spans(ranks_of(self.config, 0))
        own = NodeMove(node=succession.seats[0], by=self.place.node, host=this_host().host, ranks=ranks)
        return [own, *self.leader.reseat()]

    def _fetch(self) -> list[int]:
        """Fetch the checkpoints of a shared run that this machine lacks, together with the other machines. Return their
        steps.

        Raises:
            StorageError: the bucket is unreachable from some machine.
        """
        if self.shipper is None or self.config.trainer is not None:
            return []
        bucket = SharedCheckpoints(self.run, self.shipper.session)
        bucket.upload_earlier()
        if bucket.committed():
            self.leader.begin(bucket.committed()[-1])
        fetched = bucket.sync(self.config, ranks_of(self.config, 0))
        if failed := self.leader.failed() if bucket.committed() else []:
            raise StorageError(
                f"some machines could not fetch their files of the last checkpoint of run {self.config.run_id}",
                found=f"node {', '.join(map(str, failed))}",
                remedy="read the log of these nodes, then run the same command again",
            )
        return fetched

    def _clean(self) -> None:
        """Let the writers commit the state that every rank had staged. Then delete half-written files, which may fill
        the disk."""
        self.run.require_no_links()
        for rank in writer.wait_until_gone(self.run, self.config.supervision.hang_s):
            writer.end(self.run, rank)
        checkpoint.clean(self.run)

    def _verified_step(self) -> int:
        """Return the step of the checkpoint from which an external trainer continues, or 0. Plinth's own ranks select
        and verify theirs together."""
        if self.config.trainer is None:
            return 0
        return select_checkpoint(self.config, self.events)[0] or 0

    def _start(self, rank: int, port: int, audit: bool) -> Process:
        fields = {"attempt": self.attempt, "audit": audit, "resume": self.resume, "port": port, "recovery": self.link}
        fields["other_code"] = self.compares  # only the leading rank stores evidence, and it is started here
        order = NodeOrder(address=self.place.address, **fields)
        return start_rank(self.config, self.config_path, order, rank, (self.lock_fd,))

    def _verdict(self, codes: list[int]) -> tuple[int, str]:
        """Return one exit status and one reason for all ranks.

        If a rank reported a failure, that failure also explains why other ranks lost their connection.
        """
        named = [code for code in codes if code in NAMED]
        if named:
            self.failure = self.lost.failure or self.leader.failure()
            said = self.failure and f"{self.failure.kind}: {self.failure.what}"
            return named[0], said or f"a rank ended with status {named[0]}"
        if NODE_LOST in codes:
            return NODE_LOST, describe_exit(codes.index(NODE_LOST), NODE_LOST)
        bad = [(rank, code) for rank, code in enumerate(codes) if code not in (0, EXIT_PREEMPTED)]
        bad = [(rank, code) for rank, code in bad if rank in self.first_failed] or bad
        bad = [(rank, code) for rank, code in bad if code != EXIT_PARTNER_LOST] or bad
        bad = [(rank, code) for rank, code in bad if code < 0] or bad  # killed: the others lost a partner by it
        if bad:
            return 1, "; ".join(describe_exit(rank, code) for rank, code in bad)
        return (EXIT_PREEMPTED, "") if EXIT_PREEMPTED in codes else (0, "")

    def _record_loss(self, event: str, reason: str, audit: bool, step: int | None = None, **more: float) -> None:
        """Log the cost of a failure on the timeline: steps since the last commit, or since `step`, and seconds spent on
        them."""
        lost = self.lost.lose(audit=audit, step=step)
        self.events.append(
            event,
            reason=reason,
            phase="audit" if audit else "train",
            from_step=lost.from_step,
            lost_steps=lost.steps,
            lost_s=lost.seconds,
            **more,
            durable=True,
        )

    @property
    def _backoff_s(self) -> float:
        """Seconds to wait before the next attempt."""
        return min(MAX_BACKOFF_S, self.config.supervision.backoff_s * 2.0 ** (self.restarts - 1))

    def _back_off(self) -> bool:
        """Wait before the next attempt, longer after each restart. Return False if a stop was requested during the
        wait."""
        until = time.monotonic() + self._backoff_s
        while time.monotonic() < until and not self.asked_to_stop:
            self._watch_allowance()
            time.sleep(POLL_S)
        return not self.asked_to_stop

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = number

    def _result(self, status: Ending, reason: str) -> JobResult:
        step = max(checkpoint.committed(self.run), default=0)
        return JobResult(
            status=status,
            step=step,
            restarts=self.restarts + self.continued,
            lost_steps=self.lost.lost_steps,
            lost_s=self.lost.lost_s,
            restart_s=self.lost.restart_s,
            reason=reason,
            failure=self.failure if status == "failed" else None,
        )


def _trainer_lock(config: RunConfig, place: NodePlace) -> tuple[int, ...]:
    """Take the lock that an external trainer's ranks on this node inherit. Plinth's own ranks end with their supervisor
    and need none.

    Raises:
        LaunchError: a rank of an earlier job is alive. It may still write.
    """
    return (hold(config.directory.node_lock(place.node)),) if config.trainer is not None else ()


def _keep_log(run: RunDirectory) -> None:
    """Write the log on this machine if the launcher does not, because it does not know the folder."""
    with append_to(run.log) as stream:
        if os.path.samestat(os.fstat(1), os.stat(os.devnull)):
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)


def main() -> int:
    """Supervise the run named on the command line, and return the exit status."""
    private.apply_mask()
    path = fetch_config(sys.argv[1])
    config = configuration.load(path)
    if is_shared(config.directory):
        _keep_log(config.directory)
    arguments, granted = submitted_grant(sys.argv[2:])
    require_submitted(config.trainer, arguments)
    place = NodePlace.of(os.environ, config)
    devices.start(config.directory, place.node, config.telemetry.devices_s)
    if config.trainer is None:
        keep_standby()  # ends with this process
    own = own_lock(config, place)
    right = _leadership(config, path, place, own)
    if isinstance(right, int):
        return right
    return _lead(config, path, place, right, granted)


def _leadership(config: RunConfig, path: Path, place: NodePlace, own: int | None) -> int | Leadership:
    """Return the right to act for the run, at once or after the loss of node 0, or the exit status of a node that has
    followed others.

    Raises:
        LaunchError: another supervisor is active, and does not accept this node.
    """
    refused: LaunchError | None = None
    if place.node == 0:
        try:
            return acquire(config, own)
        except LaunchError as error:
            if not config.launch.spares:
                raise
            refused = error  # another node may lead instead of an earlier process of this node
    return follow(config, path, place, _trainer_lock(config, place) if own is None else (), own, refused)


def _lead(config: RunConfig, path: Path, place: NodePlace, right: Leadership, granted: int) -> int:
    """Supervise the run as node 0, and return the exit status."""
    if right.succession is not None:
        place = place.model_copy(update={"address": right.succession.address})
    supervisor = Supervisor(
        config,
        path,
        right.lock,
        place=place,
        granted=granted,
        shipper=right.shipper,
        succession=right.succession,
    )
    supervisor.asked_to_stop = supervisor.asked_to_stop or right.asked_to_stop()  # also one that came meanwhile
    config.directory.reopen()  # for a job restarted by the scheduler
    relaying = sinks.start(config, path)
    result = supervisor.supervise()
    supervisor.events.append(result.status, durable=True, **result.model_dump(exclude={"status", "failure"}))
    sinks.end(relaying)
    write_bytes(config.directory.result, json.dumps(result.model_dump(), indent=1).encode() + b"\n")
    print(f"{config.run_id}: {result.status} at step {result.step} {result.reason}".rstrip(), flush=True)
    if supervisor.shipper is not None:
        supervisor.shipper.end()
    stopped = 0 if supervisor.overspent else EXIT_PREEMPTED  # a scheduler restarts a preempted job
    status = {"finished": 0, "stopped": stopped, "failed": 7}[result.status]
    supervisor.leader.end(status)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlinthError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
