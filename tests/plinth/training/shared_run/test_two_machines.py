"""Runs of a workspace at `s3://` on machines without a common folder equal the run on one disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.storage.workspace import CACHE_VARIABLE, Workspace, folder_of
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints, Recovery
from plinth.training.shared_run import shipping
from plinth.training.telemetry.timeline import timeline
from tests.s3_server import Bucket

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

Make = Callable[..., RunConfig]


class Machine:
    """A machine with a folder of its own, which is nobody else's."""

    def __init__(self, folder: Path, uri: str, make: Make, **changes: Any) -> None:
        self.cache = folder
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CACHE_VARIABLE, str(folder))
            self.workspace = Workspace(folder_of(uri)).ensure()
        self.config = make(workspace=self.workspace.root, **changes)
        self.run, self.place = self.config.directory, f"{self.workspace.uri}/runs/{self.config.run_id}/config.json"
        self.run.root.mkdir(parents=True, exist_ok=True)

    def submit(self) -> None:
        configuration.write(self.config)
        shipping.give(self.run, "config.json")

    def start(self, environment: Callable[..., dict[str, str]], **extra: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "plinth.training.supervise.supervisor", self.place]
        own = environment(**{CACHE_VARIABLE: str(self.cache), **extra})
        with self.run.log.open("ab") as log:
            return subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def losses(config: RunConfig) -> list[tuple[Any, ...]]:
    steps = timeline(config.directory.events).steps.values()
    return [(one["step"], one["loss"], one["grad_norm"], one["batch"]) for one in steps]


def state(config: RunConfig) -> tuple[Any, ...]:
    found = checkpoint.read_state(config.directory, 12)
    return found["parameters_sha256"], found["optimizer_sha256"], found["rng_sha256"]


def test_a_run_in_a_bucket_equals_the_run_on_one_disk(
    bucket: Bucket, make: Make, tmp_path: Path, uninterrupted: RunConfig, job_environment: Callable[..., dict[str, str]]
) -> None:
    uri = bucket.uri("one")
    here, there = (Machine(tmp_path / name, uri, make) for name in ("here", "there"))
    here.submit()
    assert here.start(job_environment).wait() == 0, here.run.log.read_text()
    shipping.refresh(there.run)
    assert losses(there.config) == losses(here.config) == losses(uninterrupted)
    assert there.run.result.read_bytes() == here.run.result.read_bytes()
    assert state(here.config) == state(uninterrupted)


def test_another_machine_continues_a_lost_machines_run(
    bucket: Bucket, make: Make, tmp_path: Path, uninterrupted: RunConfig, job_environment: Callable[..., dict[str, str]]
) -> None:
    """The first machine is lost after step 7: the claim expires, and the second has only what is in the bucket."""
    uri = bucket.uri("lost")
    here, there = (Machine(tmp_path / name, uri, make) for name in ("here", "there"))
    here.submit()
    first = here.start(job_environment)
    while len(timeline(here.run.events).steps) < 7:
        assert first.poll() is None, here.run.log.read_text()
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert there.start(job_environment, PLINTH_LEASE_S="3").wait() == 0, there.run.log.read_text()
    story = timeline(there.run.events)
    assert losses(there.config) == losses(uninterrupted)
    assert state(there.config) == state(uninterrupted)
    assert story.diverged == []
    assert [event["source"] for event in story.of("downloaded")] == [f"{uri}/runs/{there.config.run_id}"]
    shipping.refresh(here.run)
    assert losses(here.config) == losses(uninterrupted)
    assert [path.name for path in here.run.root.glob("*.unshipped-*")] in ([], ["events.jsonl.unshipped-1"])


def pair(make: Make, tmp_path: Path, uri: str, prefix: str = "", **changes: Any) -> tuple[Machine, Machine]:
    """Two machines of one job, one rank each, without a common folder."""
    patience = Supervision(backoff_s=0.1, hang_s=300.0, host_checks=HostChecks(enabled=False))
    asked = {"launch": Launch(kind="slurm", ranks=2, nodes=2), "supervision": patience}
    first, second = (Machine(tmp_path / f"{prefix}{name}", uri, make, **asked, **changes) for name in ("a", "b"))
    return first, second


def start_both(
    machines: tuple[Machine, Machine], environment: Callable[..., dict[str, str]], **extra: str
) -> list[subprocess.Popen[bytes]]:
    own = {"PLINTH_NODES": "2", "PLINTH_ADDRESS": "127.0.0.1", "PLINTH_LEASE_S": "3", "PLINTH_SHIP_S": "0.5", **extra}
    return [one.start(environment, **own, PLINTH_NODE=str(node)) for node, one in enumerate(machines)]


def test_a_spare_continues_the_job_of_a_lost_node_0(
    bucket: Bucket, make: Make, tmp_path: Path, uninterrupted: RunConfig, job_environment: Callable[..., dict[str, str]]
) -> None:
    """The spare takes the expired claim; the state comes from copies in the memory of the other node, or the bucket."""
    asked: dict[str, Any] = {
        "launch": Launch(kind="slurm", ranks=2, nodes=2, spares=1),
        "supervision": Supervision(backoff_s=0.1, hang_s=300.0, host_checks=HostChecks(enabled=False)),
        "recovery": Recovery(copies_every=2, silent_s=900.0),
    }
    machines = [Machine(tmp_path / name, bucket.uri("spare"), make, **asked) for name in "abc"]
    machines[0].submit()
    own = {"PLINTH_NODES": "3", "PLINTH_ADDRESS": "127.0.0.1", "PLINTH_LEASE_S": "3", "PLINTH_SHIP_S": "0.5"}
    first, *jobs = [one.start(job_environment, **own, PLINTH_NODE=str(node)) for node, one in enumerate(machines)]
    while len(timeline(machines[0].run.events).steps) < 7:
        assert first.poll() is None, machines[0].run.log.read_text()
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert [job.wait(timeout=1800) for job in jobs] == [0, 0], [one.run.log.read_text() for one in machines]
    last = machines[2]
    story = timeline(last.run.events)
    assert losses(last.config) == losses(uninterrupted)
    assert state(last.config) == state(uninterrupted)
    assert story.diverged == []
    assert [(event["node"], event["by"]) for event in story.of("node_replaced")] == [(0, 2)]


def ended(jobs: list[subprocess.Popen[bytes]], machines: tuple[Machine, Machine]) -> list[int]:
    codes = [job.wait(timeout=1800) for job in jobs]
    print(*(one.run.log.read_text() for one in machines), sep="\n----\n")
    return codes


def test_two_hosts_with_their_own_disks_equal_one(
    bucket: Bucket, make: Make, tmp_path: Path, uninterrupted: RunConfig, job_environment: Callable[..., dict[str, str]]
) -> None:
    machines = first, second = pair(make, tmp_path, bucket.uri("two"))
    first.submit()
    assert ended(start_both(machines, job_environment), machines) == [0, 0]
    assert losses(first.config) == losses(uninterrupted)
    assert state(first.config) == state(second.config) == state(uninterrupted)
    one, other = (sorted(path.name for path in m.run.checkpoints.glob("*/engine/*")) for m in machines)
    assert set(one) == {"rank-00000.safetensors"}  # each disk has its own rank's files only
    assert set(other) == {"rank-00001.safetensors"}
    assert (
        checkpoint.committed(first.run)
        == checkpoint.committed(second.run)
        == checkpoint.committed(uninterrupted.directory)
    )


def test_any_machine_audits_a_run_of_two_hosts(
    bucket: Bucket, make: Make, tmp_path: Path, job_environment: Callable[..., dict[str, str]]
) -> None:
    """It fetches the replayed checkpoints only, and all machines see the evidence."""
    uri = bucket.uri("audit")
    kept = Checkpoints(every_steps=3, audit_steps=4, keep_last=9)
    machines, other = pair(make, tmp_path, uri, checkpoints=kept), Machine(tmp_path / "other", uri, make)
    machines[0].submit()
    assert ended(start_both(machines, job_environment), machines) == [0, 0]
    command = [sys.executable, "-m", "plinth_jobs.cli", "-w", uri, "run", "audit", "resume", other.config.run_id]
    done = subprocess.run(command, env=job_environment(**{CACHE_VARIABLE: str(other.cache)}), check=False)
    assert done.returncode == 0
    shipping.refresh(machines[1].run)
    evidence = json.loads(machines[1].run.evidence.read_bytes())
    assert evidence["bit_exact"]
    steps = [evidence["from_step"], *(one["step"] for one in evidence["commits"])]
    assert checkpoint.kept(other.run) == steps
    assert len(steps) < len(checkpoint.committed(other.run))
    assert [path.name for path in sorted(machines[1].run.audits.iterdir())] == ["0001.json", "0002.json"]
    assert len(timeline(machines[1].run.events).of("audited")) == 2
    assert json.loads(machines[1].run.result.read_bytes())["status"] == "finished"


def test_other_hosts_continue_when_both_are_lost(
    bucket: Bucket, make: Make, tmp_path: Path, uninterrupted: RunConfig, job_environment: Callable[..., dict[str, str]]
) -> None:
    """The leader is killed, the other node leaves by itself, and two new hosts have nothing but the bucket."""
    uri = bucket.uri("both")
    machines, later = pair(make, tmp_path, uri), pair(make, tmp_path, uri, "new-")
    machines[0].submit()
    jobs = start_both(machines, job_environment)
    while len(timeline(machines[0].run.events).steps) < 7:
        assert jobs[0].poll() is None, machines[0].run.log.read_text()
        time.sleep(0.1)
    os.kill(jobs[0].pid, signal.SIGKILL)
    assert ended(jobs, machines) == [-signal.SIGKILL, 75]
    assert ended(start_both(later, job_environment), later) == [0, 0]
    assert losses(later[0].config) == losses(uninterrupted)
    assert state(later[0].config) == state(later[1].config) == state(uninterrupted)
    story = timeline(later[0].run.events)
    assert story.diverged == []
    assert [event["step"] for event in story.of("downloaded")] == [max(checkpoint.committed(machines[1].run))]
    for node, one in enumerate(later):
        assert {path.name for path in one.run.checkpoints.glob("*/engine/*")} == {f"rank-{node:05d}.safetensors"}
