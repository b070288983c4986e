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

from plinth import private
from plinth.errors import CorruptionError, LaunchError, PlinthError
from plinth.storage.atomic import append_to, write_bytes
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.commit_record import trainer_of
from plinth.training.checkpoint.selection import select_checkpoint
from plinth.training.checkpoint.upload import Uploader
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.forensics.order_proof import evidence as order_evidence
from plinth.training.forensics.proof import store_order
from plinth.training.parameters.trainer import require_submitted
from plinth.training.recovery.coordinator import RecoveryCoordinator
from plinth.training.shared_run.head import patiently
from plinth.training.shared_run.shipping import fetch_config, is_shared
from plinth.training.sinks import relay as sinks
from plinth.training.stopping import last_step
from plinth.training.supervise import rank_watch, takeover
from plinth.training.supervise.follower import follow
from plinth.training.supervise.host_checks import exclude, judged, replaces
from plinth.training.supervise.job_log import JobLog
from plinth.training.supervise.job_ranks import JobRanks
from plinth.training.supervise.leader import Leader, checked_hosts
from plinth.training.supervise.leadership import Leadership, acquire, own_lock
from plinth.training.supervise.nodes import NodePlace, keep_standby
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED, NAMED, NODE_LOST, POLL_S, watch
from plinth.training.supervise.result import AllowanceWatch, Ending, JobResult, SubmittedNumbers, hold
from plinth.training.telemetry import devices
from plinth.training.telemetry.timeline import RankFailure
from plinth.training.upgrade import record as upgrades
from plinth.training.upgrade.comparison import compared, is_new_code

MAX_BACKOFF_S = 300.0


@dataclass
class Supervisor:
    """Supervisor of one job from start to end."""

    config: RunConfig
    config_path: Path
    right: Leadership
    place: NodePlace = field(default_factory=NodePlace)
    granted: int = 0  # number of the grant with which the job was submitted

    def __post_init__(self) -> None:
        self.run, self.asked_to_stop = self.config.directory, 0
        self.leader, self.log = Leader(self.config, self.place, self.right.succession), JobLog(self.run)
        self.ranks = JobRanks(self.config, self.config_path, self.right.lock, self.place, self.leader, self.log)
        self.coordinator: RecoveryCoordinator | None = None
        self.allowance: AllowanceWatch | None = None
        self.uploader = Uploader(self.config, self.config_path) if self.config.checkpoints.upload else None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: self._ask_to_stop(received))
        self._ask_to_stop(self.right.asked_to_stop())  # a spare may have received it before it led

    def supervise(self) -> JobResult:
        """Train the run, then audit it, with restarts within limits. Return the result of the job."""
        try:
            trainer_of(self.run)  # without a key, fail now rather than at the first checkpoint
            if self.config.recovery.enabled:
                self.coordinator = RecoveryCoordinator(self.ranks)
            takeover.begin(self.ranks, self.right, self.coordinator)
            self.allowance = AllowanceWatch.of(self.config, self.granted)
            self._watch_allowance()
            takeover.download(self.ranks)
            return self._excluded() or self._refused() or self._phases()
        except PlinthError as error:
            self.log.failure = failure = RankFailure.of(error)
            return self.log.result("failed", f"{failure.kind}: {error.what}")
        finally:
            if self.coordinator is not None:
                self.coordinator.close()
            if self.uploader is not None:
                self.uploader.finish(lambda: bool(self.asked_to_stop))

    def _excluded(self) -> JobResult | None:
        """Check the machines. Return the result of the job if a machine is unfit for training, or None if all are
        fit."""
        if not self.config.supervision.host_checks.enabled or self.asked_to_stop or self.right.succession is not None:
            return None
        reports = checked_hosts(self.config, self.config_path, self.place, self.leader, self._on_check)
        bad, common = judged(reports)
        if self.asked_to_stop or not (bad or common):
            return None
        if common:
            return self.log.result("failed", f"no rank was started: {common}")
        reason = exclude(self.run, bad)
        return self.log.result("stopped" if replaces(self.config.launch) else "failed", f"not fit: {reason}")

    def _refused(self) -> JobResult | None:
        """Compare the code of this job with the code of the run, if that was requested. Return the result of the job if
        the code is refused, or None if it may train."""
        request = upgrades.requested(self.run)
        if request is None or not is_new_code(self.run):
            self.run.upgrade.unlink(missing_ok=True)
            return None
        ended, reason = self._until_done(audit=True, start=request.from_step, other_code=True)
        if ended != "finished":
            return self.log.result(ended, reason)
        found = compared(self.config, request)
        event = upgrades.UPGRADED if found.accepted else upgrades.REFUSED
        self.log.events.append(event, durable=True, **found.model_dump())
        if not found.accepted:
            self.run.upgrade.unlink(missing_ok=True)
            return self.log.result("failed", f"the new code was refused: {found.in_words}")
        self.ranks.upgrade = found
        return None

    def _on_check(self) -> bool:
        """Return True if the checks must end because the job was asked to stop."""
        self._watch_allowance()
        self._ask_to_stop(self.leader.asked_to_stop())
        return bool(self.asked_to_stop)

    def _phases(self) -> JobResult:
        for audit in (False, True):
            if self._is_audited() if audit else self._is_committed(last_step(self.config)):
                continue
            ended, reason = self._until_done(audit)
            if ended == "failed" and audit and self.config.trainer:  # it trained; what was not replayed is not proved
                self.log.failure = None
                store_order(self.config, order_evidence((), "", reason))
            elif ended != "finished":
                return self.log.result(ended, reason)
            elif self.config.trainer and not checkpoint.is_valid(self.run, last_step(self.config)):
                return self.log.result("failed", "the trainer ended with status 0 and did not commit the last step")
        return self.log.result("finished", "")

    def _is_committed(self, step: int) -> bool:
        """Return True if a checkpoint is committed and matches its record. If other machines have files of it, their
        ranks compare those when they load."""
        if self.right.shipper is not None and self.place.nodes > 1:
            return step in checkpoint.committed(self.run)
        return checkpoint.is_valid(self.run, step)

    def _is_audited(self) -> bool:
        """Return True if there is evidence about the last checkpoint, and not about one that was the newest when a user
        audited the stopped run. Evidence that the processes of an external trainer may have written does not count."""
        if self.config.trainer is not None or not self.run.evidence.exists():
            return False
        last = last_step(self.config)
        return bool(json.loads(self.run.evidence.read_bytes()).get("to_step", last) == last)

    def _until_done(self, audit: bool, start: int = 0, other_code: bool = False) -> tuple[Ending, str]:
        while True:
            code, reason = (EXIT_PREEMPTED, "") if self.asked_to_stop else self._attempt(audit, start, other_code)
            if code == 0:
                return "finished", ""
            asked = self.overspent or f"{signal.Signals(self.asked_to_stop or signal.SIGTERM).name} was received"
            if code == EXIT_PREEMPTED:
                return "stopped", asked
            if self.asked_to_stop:  # not all ranks stopped in time
                self.log.record_loss("lost", reason, audit)
                return "stopped", asked
            if code == NODE_LOST and not self.ranks.reseat():  # only the scheduler can provide another node
                self.log.record_loss("lost", reason, audit)
                return "stopped", reason
            if code in NAMED or self.log.restarts >= self.config.supervision.max_restarts:
                self.log.record_loss("lost", reason, audit)
                excluded = self.log.failure is not None and self.log.failure.kind == CorruptionError.__name__
                return "stopped" if excluded and replaces(self.config.launch) else "failed", reason
            self.log.restarts += 1
            step = self.coordinator.newest() if self.coordinator is not None and not audit else None
            self.log.restarted(reason, audit, step, self._backoff_s)
            if not self._back_off():
                return "stopped", self.overspent or "a signal arrived between two attempts"

    def _attempt(self, audit: bool, start: int, other_code: bool) -> tuple[int, str]:
        """Start all ranks and wait for them. Return the exit status that decides the next action, and the reason as
        text."""
        resume = start if audit else self._verified_step()
        if not audit and resume == last_step(self.config):  # the trainer was killed after its last commit
            return 0, ""
        if self.right.shipper is not None and self.place.nodes > 1:
            patiently(self.right.shipper.flush)  # other machines read the timeline
        self.log.begin()
        rank_watch.prepare(self.run)
        self.ranks.attest(audit)
        link = self.coordinator.begin() if self.coordinator is not None and not audit else None
        self.ranks.start(audit, resume, other_code, link)
        hung = watch(
            self.ranks.processes,
            self.run.events,
            self.config.supervision,
            lambda: self.asked_to_stop,
            self._on_poll,
            self._on_hang,
        )
        codes = self.ranks.wait()
        takeover.clean(self.config)
        return (1, hung) if hung else self.ranks.verdict(codes)

    @property
    def overspent(self) -> str:
        """Reason to stop the job because its allowance is spent, or an empty text."""
        return self.allowance.reason if self.allowance is not None else ""

    def _watch_allowance(self) -> None:
        if self.allowance is not None and self.allowance.spent():
            self._ask_to_stop(signal.SIGTERM)

    def _on_poll(self) -> None:
        self.log.update()
        self._watch_allowance()
        if self.right.shipper is not None and self.right.shipper.lost is not None:
            raise self.right.shipper.lost
        if self.coordinator is not None:
            self.coordinator.tend(self.ranks.processes)
        self.ranks.note_failures()
        self._ask_to_stop(self.leader.asked_to_stop())
        for number in self.leader.lost_spares():
            self.log.events.append("spare_lost", node=number, durable=True)
        if self.uploader is not None:
            self.uploader.keep_alive()

    def _on_hang(self) -> None:
        """Log on the timeline which ranks wait for which. If logging fails, continue, because hanging ranks must still
        be killed."""
        try:
            self.log.events.append("hang", **rank_watch.collect(self.run, self.config.ranks), durable=True)
        except (OSError, PlinthError) as error:
            print(f"the ranks hang, and the hang analysis failed: {error}", file=sys.stderr, flush=True)

    def _verified_step(self) -> int:
        """Return the step of the checkpoint from which an external trainer continues, or 0. Plinth's own ranks select
        and verify theirs together."""
        return 0 if self.config.trainer is None else select_checkpoint(self.config, self.log.events)[0] or 0

    @property
    def _backoff_s(self) -> float:
        """Seconds to wait before the next attempt."""
        return min(MAX_BACKOFF_S, self.config.supervision.backoff_s * 2.0 ** (self.log.restarts - 1))

    def _back_off(self) -> bool:
        """Wait before the next attempt, longer after each restart. Return False if a stop was requested during the
        wait."""
        until = time.monotonic() + self._backoff_s
        while time.monotonic() < until and not self.asked_to_stop:
            self._watch_allowance()
            time.sleep(POLL_S)
        return not self.asked_to_stop

    def _ask_to_stop(self, number: int) -> None:
        """Note the first stop signal; 0 is none. A signal may arrive during any statement, so 0 is never stored."""
        if number:
            self.asked_to_stop = self.asked_to_stop or number


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
    arguments, submitted = SubmittedNumbers.split(sys.argv[2:])
    path = fetch_config(sys.argv[1], submitted.head)
    config = configuration.load(path)
    if is_shared(config.directory):
        _keep_log(config.directory)
    require_submitted(config.trainer, arguments)
    place = NodePlace.of(os.environ, config)
    devices.start(config.directory, place.node, config.telemetry.devices_s)
    if config.trainer is None:
        keep_standby()  # ends with this process
    own = own_lock(config, place)
    right = _leadership(config, path, place, own)
    if isinstance(right, int):
        return right
    return _lead(config, path, place, right, submitted.granted)


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
    supervisor = Supervisor(config, path, right, place, granted)
    config.directory.reopen()  # for a job restarted by the scheduler
    relaying = sinks.start(config, path)
    result = supervisor.supervise()
    supervisor.log.events.append(result.status, durable=True, **result.model_dump(exclude={"status", "failure"}))
    sinks.end(relaying)
    write_bytes(config.directory.result, json.dumps(result.model_dump(), indent=1).encode() + b"\n")
    print(f"{config.run_id}: {result.status} at step {result.step} {result.reason}".rstrip(), flush=True)
    if right.shipper is not None:
        right.shipper.end()
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
