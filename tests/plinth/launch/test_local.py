"""Jobs on this machine: detached, found again, never two, ended with everything they started."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from plinth import launch
from plinth.errors import LaunchError
from plinth.launch.base import Handle, JobStatus
from plinth.launch.local import LocalLauncher

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalLauncher]:
    launcher = LocalLauncher()
    yield launcher
    handle = launcher.find(tmp_path)
    if handle is not None and handle.host != "elsewhere":
        launcher.cancel(handle, 0.0)


def test_submit_poll_find_logs_cancel(local: LocalLauncher, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    assert local.find(tmp_path) is None
    handle = local.submit(SLEEP, tmp_path, log)
    assert local.poll(handle) is JobStatus.RUNNING
    assert LocalLauncher().find(tmp_path) == handle
    wait_for(lambda: local.logs(log, 5) == "up")
    local.cancel(handle, 120.0)
    wait_for(lambda: local.poll(handle) is JobStatus.GONE)
    assert local.find(tmp_path) == handle


def test_never_two_at_once(local: LocalLauncher, tmp_path: Path) -> None:
    first = local.submit(SLEEP, tmp_path, tmp_path / "job.log")
    assert local.submit(SLEEP, tmp_path, tmp_path / "job.log") == first
    local.cancel(first, 120.0)
    wait_for(lambda: local.poll(first) is JobStatus.GONE)
    assert local.submit(SLEEP, tmp_path, tmp_path / "job.log") != first


def test_a_copy_of_the_directory_has_no_job_and_a_moved_one_keeps_its_own(local: LocalLauncher, tmp_path: Path) -> None:
    first, moved = tmp_path / "run", tmp_path / "moved"
    first.mkdir()
    handle = local.submit(SLEEP, first, first / "job.log")
    try:
        copy = shutil.copytree(first, tmp_path / "copy")
        assert local.find(copy) is None
        own = local.submit(SLEEP, copy, copy / "job.log")
        local.cancel(own, 120.0)
        assert local.poll(handle) is JobStatus.RUNNING
        ended = shutil.copytree(first, tmp_path / "ended")
        (ended / "result.json").write_text("{}")
        first.rename(moved)
        assert local.find(moved) == handle
    finally:
        local.cancel(handle, 0.0)
    wait_for(lambda: local.poll(handle) is JobStatus.GONE)
    assert local.find(ended) == handle  # its job has ended: a finished run is not submitted again


def submitted(folder: Path) -> str:
    return LocalLauncher().submit(SLEEP, folder, folder / "job.log").id


def test_submissions_at_the_same_moment_start_one_job(local: LocalLauncher, tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(submitted, [tmp_path] * 4, chunksize=1))) == 1


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


def test_broken_handle_and_missing_program_are_named(local: LocalLauncher, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot start /no/such/program"):
        local.submit(["/no/such/program"], tmp_path, tmp_path / "job.log")
    (tmp_path / "handle.json").write_text("{")
    with pytest.raises(LaunchError, match="is not a handle"):
        local.find(tmp_path)
    (tmp_path / "handle.json").unlink()


def test_cancel_ends_what_ignores_it_with_its_children(local: LocalLauncher, tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    log = tmp_path / "job.log"
    handle = local.submit([sys.executable, "-c", stubborn], tmp_path, log)
    wait_for(lambda: local.logs(log, 1) != "")
    child = psutil.Process(int(local.logs(log, 1)))
    local.cancel(handle, 0.2)
    wait_for(lambda: local.poll(handle) is JobStatus.GONE)
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_signals_ignored_by_the_submitter_reach_the_job(local: LocalLauncher, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        handle = local.submit(SLEEP, tmp_path, tmp_path / "job.log")
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_for(lambda: "up" in local.logs(tmp_path / "job.log", 1))
    os.kill(int(handle.id), signal.SIGTERM)
    wait_for(lambda: local.poll(handle) is JobStatus.GONE)


def test_job_outlives_its_submitter_and_the_submitters_group(local: LocalLauncher, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from plinth.launch.local import LocalLauncher;"
        f"LocalLauncher().submit({SLEEP!r}, Path(sys.argv[1]), Path(sys.argv[1]) / 'job.log'); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(launch.__file__).parents[2])}
    submitter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment, start_new_session=True)
    wait_for(lambda: local.find(tmp_path) is not None)
    os.killpg(submitter.pid, signal.SIGKILL)
    submitter.wait()
    handle = local.find(tmp_path)
    assert handle is not None
    wait_for(lambda: "up" in local.logs(tmp_path / "job.log", 1))
    assert local.poll(handle) is JobStatus.RUNNING


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
