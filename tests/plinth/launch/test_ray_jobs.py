"""Runs on a real Ray cluster of two nodes that asks for a token: submitted once, found again, stopped, refused."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from plinth.compute.context import Context
from plinth.errors import LaunchError, TrainingError
from plinth.launch import ray_nodes
from plinth.launch.base import EXCLUDED, LEFT, Handle, JobStatus
from plinth.launch.conformance import SeveralNodes
from plinth.launch.parameters import Launch, Ray, Supervision
from plinth.launch.ray_jobs import RayLauncher, base_name
from plinth.storage.workspace import Workspace
from plinth.training import job
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of
from plinth.training.telemetry.timeline import timeline
from tests.plinth.training import held_ranks
from tests.plinth.training.conftest import environment, tiny
from tests.ray_head import ray_head

TOKEN = "0123456789abcdef0123456789abcdef"

SLEEP = ["bash", "-c", "echo up; sleep 600"]


def wait_for(condition: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture
def address(head: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head)
    return head


@pytest.fixture(scope="module")
def head(marks: Path) -> Iterator[str]:
    faults = json.dumps({"marks": str(marks), "faults": []})
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ray_head(Path(folder), environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN, FAULTS=faults), 2) as found,
    ):
        yield found


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


def test_a_head_that_hangs_or_is_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plinth.launch.ray_jobs.TIMEOUT_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        launch = Launch(kind="ray", ray=Ray(address=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with pytest.raises(LaunchError, match="no response from the Ray cluster"):
            RayLauncher(launch, 1.0).submit(SLEEP, tmp_path, tmp_path / "job.log")
    with pytest.raises(LaunchError, match="no response from the Ray cluster"):
        RayLauncher(launch, 1.0).submit(SLEEP, tmp_path, tmp_path / "job.log")
    assert not (tmp_path / "handle.json").exists()


def test_the_token_is_sent_only_to_the_address_that_the_operator_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str | None]()

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        handle = Handle(launcher="ray", id="a-0001", started="mark", host=address)
        for named in ("http://127.0.0.1:8265", f"{address}/"):
            monkeypatch.setenv("RAY_API_SERVER_ADDRESS", named)
            assert RayLauncher(Launch(kind="ray"), 1.0, every_s=0.0).poll(handle) is JobStatus.GONE
        server.shutdown()
        thread.join()
    assert seen == [None, f"Bearer {TOKEN}"]


def test_names_tell_workspaces_apart(tmp_path: Path) -> None:
    assert base_name(tmp_path / "a" / "run") != base_name(tmp_path / "b" / "run")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("known", "cluster")
class TestConformance(SeveralNodes):
    kind = "ray"
    address = ""

    @pytest.fixture(autouse=True)
    def cluster(self, address: str) -> None:
        type(self).address = address

    def launcher(self, nodes: int = 1) -> RayLauncher:
        ray = Ray(address=self.address)
        return RayLauncher(Launch(kind="ray", ranks=nodes, nodes=nodes, ray=ray), 1.0, every_s=0.0)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_names_queue_stored_output_and_token(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = RayLauncher(Launch(kind="ray", ranks=1, ray=Ray(address=address)), 1.0, every_s=0.0)
    log = tmp_path / "job.log"
    handle = launcher.submit(SLEEP, tmp_path, log)
    assert (handle.launcher, handle.id, handle.host) == ("ray", f"{base_name(tmp_path)}-0001", address)
    wait_for(lambda: log.exists() and "up" in launcher.logs(log, 5), "the job writes to its log")
    log.unlink()
    assert "up" in launcher.logs(log, 5)  # what the cluster has kept

    greedy = Launch(kind="ray", ranks=1, ray=Ray(address=address, resources={"unheard_of": 1}))
    waiting = RayLauncher(greedy, 1.0, every_s=0.0).submit(SLEEP, tmp_path / "greedy", tmp_path / "greedy.log")
    assert launcher.poll(waiting) is JobStatus.PENDING
    launcher.cancel(waiting, 0.0)
    launcher.cancel(handle, 30.0)
    second = launcher.submit(SLEEP, tmp_path, log)
    assert second.id == f"{base_name(tmp_path)}-0002"
    launcher.cancel(second, 30.0)

    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong" * 8)
    with pytest.raises(LaunchError, match="Ray refused GET"):
        launcher.poll(second.model_copy(update={"id": "unknown"}))


def over_two_nodes(ctx: Context, address: str) -> RunConfig:
    return tiny(
        ctx.workspace.root,
        launch=Launch(kind="ray", ranks=2, nodes=2, python=sys.executable, ray=Ray(address=address)),
        supervision=Supervision(backoff_s=0.1, grace_s=300.0, hang_s=1800.0),
        batches="faulty_ranks:open_batches",
    )


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_a_run_of_two_nodes_is_stopped_in_order(address: str, marks: Path, tmp_path: Path) -> None:
    held_ranks.hold(marks, 3)
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    config = over_two_nodes(ctx, address)
    run = config.directory
    first = job.submit_or_find(ctx, config)
    assert job.submit_or_find(ctx, config) == first
    try:
        wait_for(lambda: held_ranks.waiting(marks, 2), "step 3")
    except AssertionError as error:
        written = [path for path in sorted(run.root.rglob("*.log")) if path.is_file()]
        error.add_note("\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in written))
        raise
    job.cancel(ctx, config)
    with pytest.raises(TrainingError, match="stopped at step"):
        job.follow(ctx, config)
    assert max(checkpoint.committed(run)) == 4
    assert [event["signal"] for event in timeline(run.events).of("signal")] == [signal.SIGTERM.name]
    assert max(timeline(run.events).steps) == 4  # nothing was lost
    assert "stopped at step 4" in launcher_of(config).logs(run.log, 20)
    second = job.submit_or_find(ctx, config)
    assert second.id.endswith("-0002")
    job.cancel(ctx, config)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("known")
def test_a_run_outlives_a_node_that_is_lost(tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes, a run on two: one that is not the head dies before step 5; the third takes its place."""
    faults = json.dumps({"marks": str(marks), "faults": []})
    surroundings = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN, FAULTS=faults)
    held_ranks.hold(marks, 5)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ray_head(Path(folder), surroundings, 3) as found,
    ):
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", found)
        ctx = Context(Workspace(tmp_path / "workspace").ensure())
        config = over_two_nodes(ctx, found)
        job.submit_or_find(ctx, config)
        wait_for(lambda: held_ranks.waiting(marks, 2), "step 5")
        gone = lose_a_node(config.directory.root)
        held_ranks.let_go(marks)
        job.follow(ctx, config)
    history = timeline(config.directory.events)
    assert max(history.steps) == config.total_steps
    (lost,) = history.of("lost")
    assert (lost["reason"], lost["from_step"]) == ("the node of rank 1 sends no heartbeat", 3)
    assert [event["nodes"] for event in history.of("job_started")] == [2, 2]
    assert not psutil.pid_exists(gone)


def lose_a_node(run: Path) -> int:
    """Kill a node's daemon and all that runs below it, where it has a rank of this run and is not the head."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "start" in line and any(word.startswith("--address=") for word in line):
            family = [process, *process.children(recursive=True)]
            if any(str(run) in " ".join(one.cmdline()) for one in family if one.is_running()):
                for one in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
                return process.pid
    raise AssertionError("no node but the head runs a rank")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("known")
def test_an_excluded_node_is_left_out_of_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes, a job on two: node 1 is written down as one that is not fit; the third takes its place."""
    seen, excluded = tmp_path / "seen", tmp_path / EXCLUDED
    words = (
        f'echo "$PLINTH_NODE $PLINTH_HOST" >> {seen}; [ "$(wc -l < {seen})" -gt 2 ] && exit 0; '
        f'if [ "$PLINTH_NODE" = 1 ]; then echo "$PLINTH_HOST" > {excluded}; exit 75; fi; '
        f"while [ ! -s {excluded} ]; do sleep 0.2; done; exit 75"
    )
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ray_head(Path(folder), environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN), 3) as found,
    ):
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", found)
        launch = Launch(kind="ray", ranks=2, nodes=2, ray=Ray(address=found))
        launcher = RayLauncher(launch, 20.0, every_s=0.0)
        handle = launcher.submit(["bash", "-c", words], tmp_path, tmp_path / "job.log")
        wait_for(lambda: not launcher.poll(handle).alive, "the job ends")
    hosts = [line.split()[1] for line in seen.read_text().splitlines()]
    unfit = excluded.read_text().strip()
    assert len(hosts) == 4, (tmp_path / "job.log").read_text()
    assert unfit in hosts[:2]
    assert unfit not in hosts[2:]
    assert len(set(hosts[2:])) == 2


def test_a_lost_node_whose_place_a_spare_took_restarts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [(LEFT, [1]), (0, [2])]
    monkeypatch.setattr(ray_nodes, "_run_once", lambda *_: ended.pop(0))
    assert ray_nodes.run(3, {}, ["it"], threading.Event()) == 0
    assert ended == []
