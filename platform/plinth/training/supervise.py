"""Inside the allocation: start the ranks, restart them within bounds, watch, and say how it ended.

`python -m plinth.training.supervise CONFIG` starts one process per rank with the environment DeepSpeed
expects (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). DeepSpeed's own launcher does the same
on one machine, but takes ten seconds before it does, kills ranks on SIGTERM before they can save,
and tells one exit status for all; a supervisor needs each.

Every attempt gets a port of its own. The run's lock is inherited by the ranks: a second supervisor
cannot start while anything of the first is alive, and ranks die with their supervisor.

Exit status: 0 finished, 75 stopped by a signal with the state committed, 7 failed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from plinth.errors import LaunchError, PlinthError
from plinth.records import Frozen
from plinth.storage.atomic import named_failures, write_bytes
from plinth.training import checkpoint
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.failure import Failure
from plinth.training.telemetry import Event, Timeline, read_events, timeline

#: Exit status (EX_TEMPFAIL) of a rank or a job that left after a signal, with the state committed.
LEFT = 75

#: Exit statuses of named failures: another try would meet the same.
NAMED = range(2, 9)

POLL_S = 0.1

#: How long to wait for the ranks of a supervisor that was killed to be gone.
LOCK_PATIENCE_S = 30.0

#: After one rank has failed, its siblings wait in a collective and will not leave by themselves.
SIBLING_PATIENCE_S = 2.0

MAX_BACKOFF_S = 300.0


class Result(Frozen):
    """How a job ended, in `result.json`."""

    status: Literal["finished", "stopped", "failed"]
    step: int
    restarts: int
    lost_steps: int
    lost_s: float
    reason: str = ""
    failure: Failure | None = None  # what a rank named


@dataclass
class Supervisor:
    """The life of one job."""

    config: RunConfig
    config_path: Path
    lock_fd: int
    asked_to_stop: int = 0
    restarts: int = 0
    lost_steps: int = 0
    lost_s: float = 0.0
    begun: float = 0.0  # when the present attempt began
    failure: Failure | None = None
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = self.config.directory
        self.events = Timeline(self.run.events)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def supervise(self) -> Result:
        """Train, then audit, restarting within bounds; returns how it ended."""
        reason = ""
        for audit in (False, True):
            done = self.run.evidence.exists() if audit else self._trained()
            if done:
                continue
            ended, reason = self._until_done(audit)
            if ended != "finished":
                return self._result(ended, reason)
        return self._result("finished", "")

    def _trained(self) -> bool:
        """Whether the last step is committed and can be trusted, so that no rank has to be started for it."""
        try:
            checkpoint.verify(self.run, self.config.total_steps)
        except PlinthError:
            return False
        return True

    def _until_done(self, audit: bool) -> tuple[Literal["finished", "stopped", "failed"], str]:
        while True:
            code, reason = self._attempt(audit)
            if code == 0:
                return "finished", ""
            if code == LEFT or self.asked_to_stop:
                return "stopped", f"{signal.Signals(self.asked_to_stop or signal.SIGTERM).name} was received"
            if code in NAMED or self.restarts >= self.config.supervision.max_restarts:
                return "failed", reason
            self._record_restart(reason, audit)
            if not self._back_off():
                return "stopped", "a signal was received between two attempts"

    def _attempt(self, audit: bool) -> tuple[int, str]:
        """Start all ranks and wait for them; returns the status to act on and the reason in words."""
        self.begun, port = round(time.time(), 3), free_port()  # rounded as the times of events are
        self.ranks = [self._start(rank, port, audit) for rank in range(self.config.ranks)]
        reason = self._watch()
        codes = [process.wait() for process in self.ranks]
        checkpoint.clean(self.run)  # what a rank left half-written may be what fills the disk
        if reason:
            return 1, reason
        return self._verdict(codes)

    def _start(self, rank: int, port: int, audit: bool) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.config.ranks),
            "LOCAL_WORLD_SIZE": str(self.config.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PLINTH_SUPERVISOR": str(os.getpid()),
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.config.ranks)),
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-m", "plinth.training", str(self.config_path), "--attempt", str(self.restarts)]
        return subprocess.Popen(
            command + ["--audit"] * audit, env=environment, stdin=subprocess.DEVNULL, pass_fds=(self.lock_fd,)
        )

    def _watch(self) -> str:
        """Wait until every rank has ended; returns why they had to be ended, or nothing."""
        deadline = float("inf")  # when patience with the remaining ranks ends
        signalled = False
        while any(process.poll() is None for process in self.ranks):
            now = time.time()
            if self.asked_to_stop and not signalled:
                self._send(signal.SIGTERM)
                signalled, deadline = True, now + self.config.supervision.grace_s
            if any(process.poll() not in (None, 0, LEFT) for process in self.ranks):
                deadline = min(deadline, now + SIBLING_PATIENCE_S)
            if now > deadline:
                self._send(signal.SIGKILL)
            elif self._silent_s() > self.config.supervision.hang_s:
                return self._end_hanging()
            time.sleep(POLL_S)
        return ""

    def _silent_s(self) -> float:
        """Seconds since the last event, or since the ranks were started."""
        try:
            spoke = self.run.events.stat().st_mtime
        except FileNotFoundError:
            spoke = self.begun
        return time.time() - max(self.begun, spoke)

    def _end_hanging(self) -> str:
        self._send(signal.SIGUSR1)  # each rank writes its stack to the log
        time.sleep(1.0)
        self._send(signal.SIGKILL)
        return f"no event for {self.config.supervision.hang_s:g} s: the ranks hang"

    def _send(self, number: int) -> None:
        for process in self.ranks:
            if process.poll() is None:
                process.send_signal(number)

    def _verdict(self, codes: list[int]) -> tuple[int, str]:
        """One status for all ranks: a named failure explains the others, which lost a partner."""
        named = [code for code in codes if code in NAMED]
        if named:
            self.failure = self._last_failure()
            said = self.failure and f"{self.failure.kind}: {self.failure.what}"
            return named[0], said or f"a rank ended with status {named[0]}"
        bad = [(rank, code) for rank, code in enumerate(codes) if code not in (0, LEFT)]
        if bad:
            return 1, "; ".join(f"rank {rank} {_in_words(code)}" for rank, code in bad)
        return (LEFT, "") if LEFT in codes else (0, "")

    def _last_failure(self) -> Failure | None:
        """What a rank of this attempt named, when it could still write it down."""
        failures = [event for event in read_events(self.run.events) if event["event"] == "rank_failed"]
        if not failures or failures[-1]["time"] < self.begun:
            return None
        return Failure.model_validate({name: failures[-1][name] for name in Failure.model_fields})

    def _record_restart(self, reason: str, audit: bool) -> None:
        """Tell the timeline what the failure cost: steps since the last commit, and seconds spent on them."""
        self.restarts += 1
        story = timeline(self.run.events)
        committed = max(checkpoint.committed(self.run), default=0)
        lost = [] if audit else [event for step, event in story.steps.items() if step > committed]
        useful_until = max([self.begun, *(_time_of_commit(story.of("checkpoint"), committed))])
        seconds = round(time.time() - useful_until, 3)
        self.lost_steps += len(lost)
        self.lost_s = round(self.lost_s + seconds, 3)
        self.events.append(
            "restart",
            attempt=self.restarts,
            reason=reason,
            phase="audit" if audit else "train",
            from_step=committed,
            lost_steps=len(lost),
            lost_s=seconds,
            durable=True,
        )

    def _back_off(self) -> bool:
        """Wait, longer after each restart; returns False when asked to stop meanwhile."""
        until = time.time() + min(MAX_BACKOFF_S, self.config.supervision.backoff_s * 2 ** (self.restarts - 1))
        while time.time() < until and not self.asked_to_stop:
            time.sleep(POLL_S)
        return not self.asked_to_stop

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = number

    def _result(self, status: Literal["finished", "stopped", "failed"], reason: str) -> Result:
        step = max(checkpoint.committed(self.run), default=0)
        return Result(
            status=status,
            step=step,
            restarts=self.restarts,
            lost_steps=self.lost_steps,
            lost_s=self.lost_s,
            reason=reason,
            failure=self.failure if status == "failed" else None,
        )


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def hold(path: Path) -> int:
    """Take the run's lock; returns its descriptor, inheritable and held until every holder has ended.

    Raises:
        LaunchError: another supervisor, or a rank of one, is alive.
    """
    with named_failures(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError as error:
            if time.monotonic() > until:
                os.close(fd)
                raise LaunchError(
                    f"another supervisor works on the run in {path.parent}",
                    expected="one at a time",
                    remedy="follow that one, or cancel it first",
                ) from error
            time.sleep(POLL_S)


def main() -> int:
    """Supervise the run named on the command line; returns the exit status."""
    path = Path(sys.argv[1])
    config = configuration.load(path)
    supervisor = Supervisor(config, path, hold(config.directory.lock))
    result = supervisor.supervise()
    supervisor.events.append(result.status, durable=True, **result.model_dump(exclude={"status", "failure"}))
    write_bytes(config.directory.result, json.dumps(result.model_dump(), indent=1).encode() + b"\n")
    print(f"{config.run_id}: {result.status} at step {result.step} {result.reason}".rstrip(), flush=True)
    return {"finished": 0, "stopped": LEFT, "failed": 7}[result.status]


def _time_of_commit(commits: list[Event], step: int) -> list[float]:
    return [float(event["time"]) for event in commits if event["step"] == step]


def _in_words(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlinthError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
