"""`plinth up` as it is: planted packages do not run, foreign requests are refused, what ends is started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from plinth.storage.workspace import Workspace
from plinth_jobs import supervised
from plinth_jobs.cli import doctor

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 900.0
STATE = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename } } } }
             instance { daemonHealth { allDaemonStatuses { daemonType healthy } } } }"""


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


@pytest.fixture
def workspace(tmp_path: Path, own_trust: Path) -> Workspace:
    """A workspace with packages that would say so if they ran."""
    made = Workspace(tmp_path / "workspace").ensure()
    for package in ("dagster", "mlflow", "mlflow/registry", "mlflow/mlflow", "plinth_jobs", "plinth"):
        (made.root / package).mkdir(exist_ok=True)
        for file in ("__init__.py", "__main__.py"):
            (made.root / package / file).write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write({package!r})\n")
    (made.root / "sitecustomize.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write('site')\n")
    (made.root / ".env").write_text("PYTHONPATH=.\n")
    return made


def asked(address: str, query: str = STATE, **headers: str) -> Any:
    """The answer of the Dagster pages to a query, or the status of their refusal."""
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        return error.code


def is_up(address: str) -> bool:
    """True once the code location is loaded and every daemon beats."""
    found = asked(address)
    (location,) = found["workspaceOrError"]["locationEntries"]
    states = found["instance"]["daemonHealth"]["allDaemonStatuses"]
    loaded = (location["locationOrLoadError"] or {}).get("__typename") == "RepositoryLocation"
    return loaded and bool(states) and all(one["healthy"] for one in states)


def pids(workspace: Workspace) -> dict[str, int]:
    return {one.name: one.pid for one in supervised.started(workspace)}


@contextmanager
def plinth_up(workspace: Workspace) -> Iterator[tuple[str, list[str]]]:
    """The address of the Dagster pages, and what was printed. Started in the workspace, as an operator may."""
    given = port()
    command = [
        sys.executable,
        "-P",
        "-m",
        "plinth_jobs.cli",
        "-w",
        ".",
        "up",
        "-r",
        "tiny",
        "--dagster-port",
        str(given),
    ]
    path = os.pathsep.join(str(ROOT / name) for name in ("platform", "registry", "assets", "jobs"))
    process = subprocess.Popen(
        [*command, "--pages-port", str(port())],
        cwd=workspace.root,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    printed = list[str]()
    try:
        for line in process.stdout:
            printed.append(line)
            if line.startswith("Ctrl-C"):
                break
        yield f"http://127.0.0.1:{given}", printed
    finally:
        supervised.down(workspace)
        printed += process.stdout.readlines()
        assert process.wait(300) == 0, printed


@pytest.mark.slow
def test_planted_packages_foreign_requests_and_killed_parts(workspace: Workspace, tmp_path: Path) -> None:
    with plinth_up(workspace) as (address, printed):
        told = [line.split()[0] for line in printed]
        told = [word for word in told if word not in ("starting", "writing")]  # on a slow machine
        assert told == ["Dagster", "MLflow", "Pages", "Corpus", "Metrics", "Log", "Ctrl-C"]
        until(lambda: is_up(address), "Dagster is up")

        mutation = "mutation { setNuxSeen }"
        assert asked(address, mutation, Host="attacker.example:3000") == 403
        assert asked(address, mutation, Origin="http://attacker.example") == 403
        assert asked(address, mutation) == {"setNuxSeen": True}

        before = pids(workspace)
        killed = ("Dagster daemon", "Dagster code location", "MLflow server", "exporter", "corpus page")
        for name in killed:
            os.kill(before[name], signal.SIGKILL)
        until(
            lambda: (
                {*killed} <= {*pids(workspace)} and not {*pids(workspace).values()} & {before[name] for name in killed}
            ),
            "again",
        )
        after = pids(workspace)
        assert {name: after[name] for name in ("plinth up", "Dagster pages")} == {
            name: before[name] for name in ("plinth up", "Dagster pages")
        }
        until(lambda: is_up(address), "Dagster is up again")
        finding = doctor.servers(workspace.root)
        assert finding.state == "warn"
        assert all(f"{name} exited" in finding.found for name in killed)
        family = [psutil.Process(pid) for pid in pids(workspace).values()]
        family += [child for one in family for child in one.children(recursive=True)]
    assert psutil.wait_procs(family, timeout=300)[1] == []
    assert not (tmp_path / "planted").exists()
    assert doctor.servers(workspace.root).found == "none"
