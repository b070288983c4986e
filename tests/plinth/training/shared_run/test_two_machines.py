"""Runs of a workspace at `s3://` on machines without a common folder equal the run on one disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.storage.workspace import CACHE_VARIABLE, Workspace, folder_of
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.shared_run import shipping
from plinth.training.telemetry.timeline import timeline
from tests.s3_server import Bucket, serving

pytestmark = pytest.mark.slow

Make = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with serving() as found:
        yield found


class Machine:
    """A machine with a folder of its own, which is nobody else's."""

    def __init__(self, folder: Path, uri: str, make: Make, **changes: Any) -> None:
        self.cache = folder
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CACHE_VARIABLE, str(folder))
            self.workspace = Workspace(folder_of(uri)).ensure()
        self.config = make(workspace=self.workspace.root, **changes)
        self.run = self.config.directory

    def submit(self) -> None:
        configuration.write(self.config)
        shipping.write_config(self.run)

    def start(self, environment: Callable[..., dict[str, str]], **extra: str) -> subprocess.Popen[bytes]:
        place = f"{self.workspace.uri}/runs/{self.config.run_id}/config.json"
        command = [sys.executable, "-m", "plinth.training.supervise.supervisor", place]
        own = environment(**{CACHE_VARIABLE: str(self.cache), **extra})
        self.run.root.mkdir(parents=True, exist_ok=True)
        with self.run.log.open("ab") as log:
            return subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT)


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


@pytest.mark.exhaustive
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
