"""Jobs on this machine: detached, found again, never two, ended with everything they started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plinth import launch
from plinth.errors import LaunchError
from plinth.launch.base import Handle, JobStatus
from plinth.launch.conformance import Conformance
from plinth.launch.local import LocalLauncher

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


class TestConformance(Conformance):
    kind = "local"

    def launcher(self, nodes: int = 1) -> LocalLauncher:
        return LocalLauncher()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalLauncher]:
    launcher = LocalLauncher()
    yield launcher
    handle = launcher.find(tmp_path)
    if handle is not None and handle.host != "elsewhere":
        launcher.cancel(handle, 0.0)


def test_a_moved_directory_keeps_its_job(local: LocalLauncher, tmp_path: Path) -> None:
    first, moved = tmp_path / "run", tmp_path / "moved"
    first.mkdir()
    handle = local.submit(SLEEP, first, first / "job.log")
    try:
        ended = shutil.copytree(first, tmp_path / "ended")
        (ended / "result.json").write_text("{}")
        first.rename(moved)
        assert local.find(moved) == handle
    finally:
        local.cancel(handle, 0.0)
    wait_for(lambda: local.poll(handle) is JobStatus.GONE)
    assert local.find(ended) == handle  # its job has ended: a finished run is not submitted again


def test_recycled_process_id_is_another_process(local: LocalLauncher, tmp_path: Path) -> None:
    handle = local.submit(SLEEP, tmp_path, tmp_path / "job.log")
    impostor = handle.model_copy(update={"id": str(os.getpid())})
    assert local.poll(impostor) is JobStatus.GONE
    local.cancel(impostor, 0.0)  # must not hit this very process
    assert local.poll(handle) is JobStatus.RUNNING


def test_job_of_another_machine_is_refused(local: LocalLauncher, tmp_path: Path) -> None:
    handle = Handle(launcher="local", id="1", started="x", host="elsewhere")
    with pytest.raises(LaunchError, match="another machine"):
        local.poll(handle)


def test_a_missing_program_is_named(local: LocalLauncher, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot start /no/such/program"):
        local.submit(["/no/such/program"], tmp_path, tmp_path / "job.log")


def test_signals_ignored_by_the_submitter_reach_the_job(local: LocalLauncher, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        handle = local.submit(SLEEP, tmp_path, tmp_path / "job.log")
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_for(lambda: "up" in local.logs(tmp_path / "job.log", 1))
    os.kill(int(handle.id), signal.SIGTERM)
    wait_for(lambda: local.poll(handle) is JobStatus.GONE)


@pytest.mark.parametrize("earlier", [False, True])
def test_job_is_found_whose_submitter_died_before_the_handle_was_written(
    local: LocalLauncher, tmp_path: Path, earlier: bool
) -> None:
    if earlier:
        ended = local.submit([sys.executable, "-c", ""], tmp_path, tmp_path / "job.log")
        wait_for(lambda: local.poll(ended) is JobStatus.GONE)
    code = (
        "import os, sys; from pathlib import Path; from plinth.launch import base, local;"
        "base.write_handle = lambda *_: os.kill(os.getpid(), 9);"
        f"local.LocalLauncher().submit({SLEEP!r}, Path(sys.argv[1]), Path(sys.argv[1]) / 'job.log')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(launch.__file__).parents[2])}
    submitter = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False)
    assert submitter.returncode == -signal.SIGKILL
    assert not (tmp_path / "handle.json").exists()
    found = local.find(tmp_path)
    assert found is not None
    assert local.poll(found) is JobStatus.RUNNING
    assert local.submit(SLEEP, tmp_path, tmp_path / "job.log") == found
    assert (tmp_path / "handle.json").exists()
