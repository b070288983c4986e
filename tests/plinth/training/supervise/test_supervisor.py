"""The supervisor's decisions, with stand-ins for ranks that take no time to start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import CorruptionError, DiskFullError, LaunchError
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.supervise import job_ranks, rank_watch
from plinth.training.supervise import result as locks
from plinth.training.supervise import supervisor as supervise
from plinth.training.supervise.leadership import Leadership
from plinth.training.supervise.result import JobResult
from plinth.training.supervise.supervisor import Supervisor
from plinth.training.telemetry.timeline import RankFailure, Timeline, timeline

Make = Callable[..., RunConfig]

#: Behavior of each stand-in, by name.
SCRIPTS = {
    "ok": "pass",
    "crash": "raise SystemExit(1)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "killed_late": "import os, signal, time; time.sleep(0.4); os.kill(os.getpid(), signal.SIGKILL)",
    "partner_lost": "raise SystemExit(77)",
    "named": "raise SystemExit(7)",
    "full": "full",
    "corrupt": "corrupt",
    "hang": "import time; time.sleep(600)",
    "stubborn": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()",
    "obedient": "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); ready()",
}

#: For those that a signal must find prepared: they say so by a file, and wait.
READY = "import pathlib, sys, time\ndef ready(): pathlib.Path(sys.argv[1]).touch(); time.sleep(600)\n"


known_host = cache(job_ranks.this_host)


@pytest.fixture(autouse=True)
def _no_wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins answer no question, and run no code of this machine."""
    monkeypatch.setattr(rank_watch, "ANSWER_S", 0.2)
    monkeypatch.setattr(job_ranks, "this_host", known_host)


DISK_FULL = RankFailure.of(DiskFullError("no space", found=0))
REPORTED = {"full": DISK_FULL, "corrupt": RankFailure.of(CorruptionError("step 7 was computed wrong"))}


class Rehearsal(Supervisor):
    """Ranks of attempt n behave like the n-th pair of `plan`; the run counts as trained when they end well."""

    plan: list[tuple[str, str]]
    stop_when: Callable[[], bool] = staticmethod(lambda: False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ranks._start = self._stand_in

    def _stand_in(self, rank: int) -> subprocess.Popen[bytes]:
        attempt = self.log.restarts
        script = SCRIPTS[self.plan[attempt][rank] if not self.ranks._order.audit else "ok"]
        if script in REPORTED:
            self.log.events.append("rank_failed", rank=rank, attempt=attempt, **REPORTED[script].model_dump())
            script = SCRIPTS["named"]
        return self._process(script, ready(self.config, rank))

    def _process(self, script: str, ready: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", READY + script, str(ready)])

    def _on_poll(self) -> None:
        super()._on_poll()
        if self.log.restarts:
            self.log.events.append("alive")  # only the first attempt can be found hanging
        if not self.asked_to_stop and self.stop_when():
            os.kill(os.getpid(), signal.SIGTERM)


def ready(config: RunConfig, rank: int) -> Path:
    return config.directory.root / f"ready-{rank}"


def rehearsal(config: RunConfig, *plan: tuple[str, str]) -> Rehearsal:
    supervisor = Rehearsal(config, configuration.write(config), Leadership(-1))
    supervisor.plan = list(plan)
    return supervisor


def rehearse(config: RunConfig, *plan: tuple[str, str]) -> JobResult:
    return rehearsal(config, *plan).supervise()


def stopped_when_ready(config: RunConfig, *plan: tuple[str, str]) -> tuple[JobResult, list[int]]:
    """SIGTERM comes as soon as both ranks wait for it; how it ended, and the ranks."""
    supervisor = rehearsal(config, *plan)
    supervisor.stop_when = lambda: all(ready(config, rank).exists() for rank in range(2))
    return supervisor.supervise(), supervisor.ranks.wait()


def supervision(**changes: float) -> dict[str, Any]:
    times = {"max_restarts": 2, "backoff_s": 0.0, "hang_s": 300.0, "grace_s": 120.0, **changes}
    return {**times, "host_checks": {"disk_bytes": 4096}}


def test_restarts_until_it_ends_well(make: Make) -> None:
    config = make(supervision=supervision())
    result = rehearse(config, ("ok", "killed"), ("crash", "ok"), ("ok", "ok"))
    assert (result.status, result.restarts) == ("finished", 2)
    reasons = [event["reason"] for event in timeline(config.directory.events).of("restart")]
    assert reasons == ["rank 1 was killed by SIGKILL", "rank 0 ended with status 1"]


@pytest.mark.parametrize(
    ("culprit", "blamed"), [("killed_late", "rank 1 was killed by SIGKILL"), ("crash", "rank 1 ended with status 1")]
)
def test_rank_that_lost_its_partner_is_not_blamed(make: Make, culprit: str, blamed: str) -> None:
    """On another node the one that failed may be reported after its partner has ended."""
    result = rehearse(make(supervision=supervision(max_restarts=0)), ("partner_lost", culprit))
    assert (result.status, result.reason) == ("failed", blamed)


def test_lost_connection_between_living_ranks_is_the_reason(make: Make) -> None:
    result = rehearse(make(supervision=supervision(max_restarts=0)), ("partner_lost", "partner_lost"))
    assert result.reason == "; ".join(f"rank {rank} lost its connection to another rank" for rank in range(2))


def test_gives_up_within_bounds(make: Make) -> None:
    result = rehearse(make(supervision=supervision(max_restarts=1)), ("crash", "ok"), ("crash", "ok"))
    assert (result.status, result.restarts, result.reason) == ("failed", 1, "rank 0 ended with status 1")


def test_named_failure_is_not_tried_again(make: Make) -> None:
    config = make(supervision=supervision())
    result = rehearse(config, ("full", "hang"))
    assert (result.status, result.restarts, result.reason) == ("failed", 0, "DiskFullError: no space")
    assert result.failure == DISK_FULL
    assert isinstance(result.failure.error(), DiskFullError)


@pytest.mark.parametrize(("kind", "status"), [("local", "failed"), ("slurm", "stopped")])
def test_a_job_with_a_faulty_machine_goes_on_without_it_where_the_launcher_can(
    kind: str, status: str, make: Make
) -> None:
    config = make(supervision=supervision(), launch={"kind": kind, "ranks": 2})
    result = rehearse(config, ("hang", "corrupt"))
    assert (result.status, result.restarts) == (status, 0)
    assert result.reason == "CorruptionError: step 7 was computed wrong"


def test_failure_of_an_earlier_job_is_not_blamed(make: Make) -> None:
    config = make(supervision=supervision())
    Timeline(config.directory.events).append("rank_failed", rank=0, attempt=0, **DISK_FULL.model_dump())
    time.sleep(0.01)
    result = rehearse(config, ("named", "ok"))
    assert (result.status, result.restarts, result.reason) == ("failed", 0, "a rank ended with status 7")
    assert result.failure is None


def test_siblings_of_a_dead_rank_are_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_watch, "SIBLING_TIMEOUT_S", 0.2)
    result = rehearse(make(supervision=supervision(max_restarts=0)), ("hang", "crash"))
    assert (result.status, result.reason) == ("failed", "rank 1 ended with status 1")


def test_hanging_ranks_are_ended_and_started_again(make: Make) -> None:
    config = make(supervision=supervision(hang_s=0.5))
    result = rehearse(config, ("hang", "hang"), ("ok", "ok"))
    assert (result.status, result.restarts) == ("finished", 1)
    (restart,) = timeline(config.directory.events).of("restart")
    assert restart["reason"] == "no event for 0.5 s: the ranks hang"


def test_sigterm_is_forwarded_and_ends_as_stopped(make: Make) -> None:
    config = make(supervision=supervision())
    result, codes = stopped_when_ready(config, ("obedient", "obedient"))
    assert timeline(config.directory.events).of("lost") == []
    assert (result.status, result.restarts, result.reason) == ("stopped", 0, "SIGTERM was received")
    assert codes == [rank_watch.EXIT_PREEMPTED] * 2


def test_ranks_that_do_not_leave_are_ended_after_the_grace(make: Make) -> None:
    config = make(supervision=supervision(grace_s=0.5))
    for step in (1, 2):  # taken since the last commit, of which there is none
        Timeline(config.directory.events).append("step", step=step)
    Timeline(config.directory.events).append("stopped")
    result, codes = stopped_when_ready(config, ("stubborn", "obedient"))
    assert (result.status, codes[0]) == ("stopped", -signal.SIGKILL)
    assert (result.reason, result.lost_steps) == ("SIGTERM was received", 2)
    (lost,) = timeline(config.directory.events).of("lost")
    assert (lost["reason"], lost["from_step"], lost["lost_steps"]) == ("rank 0 was killed by SIGKILL", 0, 2)


def test_sigterm_between_attempts(make: Make) -> None:
    class Resting(Rehearsal):
        def _back_off(self) -> bool:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            return super()._back_off()

    config = make(supervision=supervision(backoff_s=300.0))
    supervisor = Resting(config, configuration.write(config), Leadership(-1))
    supervisor.plan = [("crash", "ok")]  # there is none for a second attempt
    result = supervisor.supervise()
    assert (result.status, result.restarts) == ("stopped", 1)


def test_a_signal_that_arrives_while_other_nodes_are_read_is_not_lost(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(make(), configuration.write(make()), Leadership(-1))

    def none_asked() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(supervisor.leader, "asked_to_stop", none_asked)
    assert supervisor._on_check()
    assert supervisor.asked_to_stop == signal.SIGTERM


def test_one_supervisor_at_a_time(make: Make) -> None:
    lock = make().directory.lock
    held = locks.hold(lock)
    with pytest.raises(LaunchError, match="another supervisor"):
        locks.hold(lock, 0.2)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held,))
    os.close(held)
    with pytest.raises(LaunchError, match="another supervisor"):  # a rank of the first is still alive
        locks.hold(lock, 0.2)
    child.communicate(b"\n")
    os.close(locks.hold(lock))


def test_the_ranks_of_a_job_with_one_node_are_always_reachable(make: Make) -> None:
    supervisor = Supervisor(make(), configuration.write(make()), Leadership(-1))
    assert supervisor.leader.is_reachable(0)
    assert supervisor.leader.is_reachable(1)


def test_back_off_doubles(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    supervisor = Supervisor(make(supervision=supervision(backoff_s=1.0)), configuration.write(make()), Leadership(-1))
    monkeypatch.setattr(supervise.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(supervise.time, "sleep", sleep)
    for restarts in (1, 2, 3, 20):
        before = now[0]
        supervisor.log.restarts = restarts
        assert supervisor._back_off()
        slept.append(round(now[0] - before))
    assert slept == [1, 2, 4, 300]
