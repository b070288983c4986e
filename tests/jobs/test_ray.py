"""The pipeline on a Ray cluster of two nodes: not one byte differs, and a killed worker costs only its task."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests import tiny_corpus
from tests.jobs.conftest import RECIPE, ROOT, digests, plinth
from tests.ray_patience import patient, two_nodes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as here:
        here.setenv("RAY_AUTH_MODE", "disabled")
        patient(here)
        made = two_nodes()
        yield made.address
        made.shutdown()


@pytest.mark.exhaustive  # two nodes, with a disk each: tests/jobs/test_shared_workspace.py
def test_two_nodes_and_a_killed_worker_make_the_same_data_versions(corpus, tmp_path, address):
    tiny_corpus.write(tmp_path / "input")
    words = ["run", "-r", RECIPE, "--select", "funnel", "--engine", "ray", "--ray-address", address]
    command = [sys.executable, "-m", "plinth_jobs.cli", "-w", tmp_path, *words]
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT)
    killed = _kill_one_at_work(process)
    assert process.wait(timeout=900) == 0
    assert killed
    assert digests(tmp_path) == digests(corpus)
    # What one engine made, the other takes as done: engines are in no identity.
    assert "nothing to do" in plinth(tmp_path, "run", "-r", RECIPE, "--select", "funnel").stdout


def _kill_one_at_work(process: subprocess.Popen[bytes]) -> int | None:
    """Kill a Ray worker while it runs one of our tasks; its process id."""
    while process.poll() is None:
        for found in psutil.Process().children(recursive=True):  # the cluster is this process's own
            with suppress(psutil.Error):
                if " ".join(found.cmdline()).startswith("ray::_run"):
                    found.kill()
                    return found.pid
        time.sleep(0.01)
    return None
