"""Machines that share only a bucket, and processes that know only their index, make the data versions of one run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.storage.state import State
from plinth.storage.workspace import Workspace, folder_of
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE, ROOT, digests, plinth
from tests.ray_patience import patient, two_nodes
from tests.s3_server import serving
from tests.slurm_cluster import slurm_cluster

pytestmark = pytest.mark.slow

WORDS = ("run", "-r", RECIPE, "--select", "funnel", "--workers", "1")


@pytest.fixture(params=["s3", pytest.param("folder", marks=pytest.mark.exhaustive)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A workspace with the sources in its input, in a bucket or a folder that all processes see."""
    if request.param == "folder":
        tiny_corpus.write(tmp_path / "workspace" / "input")
        yield str(tmp_path / "workspace")
        return
    with serving() as bucket:
        sources = tiny_corpus.write(tmp_path / "sources")
        for path in sources.rglob("*"):
            if path.is_file():
                bucket.put(f"corpus/input/{path.relative_to(sources).as_posix()}", path.read_bytes())
        yield bucket.uri("corpus")


def machine(folder: Path) -> dict[str, str]:
    """The environment of a machine with a disk of its own."""
    return {**os.environ, "PLINTH_CACHE": str(folder)}


@pytest.mark.exhaustive
def test_parts_that_are_killed_repeated_and_run_twice_make_what_one_run_makes(corpus, location, tmp_path, monkeypatch):
    def start(part: str, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "plinth_jobs.cli", "-w", location, *WORDS, "--part", part]
        return subprocess.Popen(list(map(str, command)), cwd=ROOT, env=machine(tmp_path / name))

    monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / "here"))
    state = State(Workspace(folder_of(location)))
    killed, twice = start("1/3", "a"), [start("0/3", "b"), start("0/3", "c")]
    while sum(1 for _ in state.workspace.objects("records").names()) < 20:
        assert [one.poll() for one in (killed, *twice)] == [None] * 3
        time.sleep(0.2)
    killed.kill()
    assert killed.wait() != 0
    again = start("1/3", "d")  # part 2 never begins: others do its share
    assert [one.wait(timeout=1800) for one in (*twice, again)] == [0, 0, 0]
    assert {ref.asset: ref.digest for ref in state.refs.all()} == digests(corpus)
    after = plinth(location, "run", "-r", RECIPE, "--select", "funnel", env=machine(tmp_path / "e"))
    assert "nothing to do" in after.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("location", ["s3"], indirect=True)
def test_two_ray_nodes_with_disks_of_their_own_make_the_same_data_versions(corpus, location, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    patient(monkeypatch)
    cluster = two_nodes(*({"PLINTH_CACHE": str(tmp_path / name)} for name in ("one", "two")))
    try:
        ray = ("--engine", "ray", "--ray-address", cluster.address)
        plinth(location, *WORDS, *ray, env=machine(tmp_path / "driver"))
    finally:
        cluster.shutdown()
    monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / "reader"))
    state = State(Workspace(folder_of(location)))
    assert {ref.asset: ref.digest for ref in state.refs.all()} == digests(corpus)
    held = {name: len(list((tmp_path / name).glob("*/store/files/md5/*/*"))) for name in ("one", "two", "driver")}
    assert all(held.values()), held  # both nodes worked, each on its own disk


@pytest.mark.exhaustive
@pytest.mark.needs("Slurm")
@pytest.mark.parametrize("location", ["s3"], indirect=True)
def test_a_slurm_array_of_which_a_task_is_cancelled(corpus, location, tmp_path, monkeypatch):
    monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / "reader"))
    state = State(Workspace(folder_of(location)))
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster(folder) as cluster:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**machine(tmp_path / "node"), **cluster, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}

        def ask(*words: str) -> str:
            done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
            return done.stdout.strip()

        options = ("--array=4-6", "--cpus-per-task=1", f"--output={tmp_path}/%a.out", "--parsable")
        script = str(ROOT / "infra" / "slurm" / "corpus.sh")
        job = ask("sbatch", *options, script, location, str(RECIPE), "--select", "funnel")
        while sum(1 for _ in state.workspace.objects("records").names()) < 20:
            assert ask("squeue", "-h", "-j", job), [each.read_text() for each in tmp_path.glob("*.out")]
            time.sleep(0.5)
        ask("scancel", f"{job}_5")
        while ask("squeue", "-h", "-j", job):
            time.sleep(0.5)
    assert {ref.asset: ref.digest for ref in state.refs.all()} == digests(corpus)
