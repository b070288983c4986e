"""Killed anywhere, the same command finishes the work: nothing lost, nothing doubled."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import tiny_corpus
from tests.jobs.conftest import RECIPE, ROOT, digests, plinth

pytestmark = pytest.mark.slow


def _start(workspace: Path, *words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "plinth_jobs.cli", "-w", str(workspace), *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait_for(condition, process, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)


def _records(workspace: Path) -> int:
    return sum(1 for _ in (workspace / "records").rglob("*.json"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("records", "workers"), [(30, 1), (70, 2)])
def test_a_corpus_run_killed_goes_on_where_it_was_and_gives_the_same_with_any_workers(
    corpus, tmp_path, records, workers
):
    tiny_corpus.write(tmp_path / "input")
    command = ("run", "-r", RECIPE, "--select", "funnel", "--workers", workers)
    process = _start(tmp_path, *command)
    _wait_for(lambda: _records(tmp_path) >= records, process)
    process.kill()
    process.wait()
    plinth(tmp_path, *command)
    assert digests(tmp_path) == digests(corpus)


@pytest.mark.exhaustive
def test_a_killed_worker_costs_its_task_only(corpus, tmp_path):
    tiny_corpus.write(tmp_path / "input")
    process = _start(tmp_path, "run", "-r", RECIPE, "--select", "funnel", "--workers", 2)
    _wait_for(lambda: _records(tmp_path) >= 20, process)
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in children if "run_tasks" in _command(child)]
    assert workers
    for worker in workers:
        worker.kill()
    assert process.wait(timeout=1200) == 0
    assert digests(tmp_path) == digests(corpus)


def _command(process: psutil.Process) -> str:
    """Its command line; a process that has just ended has none."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
