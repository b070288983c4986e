"""A Ray head of its own on this machine, with the Jobs API: `with ray_head(folder, environment) as address`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.ray_patience import PATIENCE, TRIES, agent_ports, free_port, started

PATIENCE_S = 300.0


@contextlib.contextmanager
def ray_head(folder: Path, environment: Mapping[str, str], nodes: int = 1) -> Iterator[str]:
    """Start it, and end it with the block, by the numbers of its processes; gives the address of its dashboard.

    Args:
        folder: with a short path: Ray makes sockets below it.
        environment: of its jobs too; callers must send its RAY_AUTH_TOKEN.
        nodes: with the head's; each has a daemon and an object store of its own.
    """
    further: list[subprocess.Popen[bytes]] = []
    head, port, address = started(lambda: _head(folder, environment))
    try:
        for number in range(1, nodes):
            said = folder / f"node-{number}.out"
            for left in reversed(range(TRIES)):
                further.append(_start(said, environment, f"--address={address}", "--num-cpus=1"))
                if _joined(port, environment["RAY_AUTH_TOKEN"], number + 1, further[-1], said, left):
                    break
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in (*further, head):
            _end(process)


def _head(folder: Path, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int, str]:
    """A head that is up, the port of its dashboard, and the address where further nodes find it."""
    port, output = free_port(), folder / "head.out"
    head = _start(
        output,
        environment,
        *("--head", "--port=0", "--num-cpus=2", f"--temp-dir={folder}", "--include-dashboard=true"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={port}"),
    )
    try:
        _wait(f"http://127.0.0.1:{port}/api/jobs/", environment["RAY_AUTH_TOKEN"], head, output)
        return head, port, _address(head, output)
    except BaseException:
        _end(head)
        raise


def _start(output: Path, environment: Mapping[str, str], *options: str) -> subprocess.Popen[bytes]:
    grpc, http, metrics, runtime = agent_ports()
    command = [
        *(sys.executable, "-c", "from tests.ray_patience import ray_command; ray_command()"),
        *("start", "--block", "--disable-usage-stats"),
        *(f"--dashboard-agent-grpc-port={grpc}", f"--dashboard-agent-listen-port={http}"),
        *(f"--metrics-export-port={metrics}", f"--runtime-env-agent-port={runtime}"),
        *("--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0", *options),
    ]
    with output.open("wb") as stream:
        return subprocess.Popen(
            command,
            env={**os.environ, **PATIENCE, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(url: str, token: str, head: subprocess.Popen[bytes], output: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60):
            return
        assert head.poll() is None, output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.2)


def _joined(port: int, token: str, nodes: int, process: subprocess.Popen[bytes], output: Path, left: int) -> bool:
    """Wait until `nodes` nodes are alive; return False if this one has ended instead and may be restarted."""
    until = time.monotonic() + PATIENCE_S
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/nodes?view=summary", headers=headers)
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)["data"]["summary"]
            if sum(node["raylet"].get("state") == "ALIVE" for node in found) >= nodes:
                return True
        if process.poll() is not None:
            assert left, output.read_text()
            return False
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.2)


def _address(head: subprocess.Popen[bytes], output: Path) -> str:
    """Where further nodes find the head; it prints that once it is up itself."""
    until = time.monotonic() + PATIENCE_S
    while (where := re.search(r"--address='([^']+)'", output.read_text())) is None:
        assert head.poll() is None, output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.2)
    return where[1]


def _end(head: subprocess.Popen[bytes]) -> None:
    """All at once: a head that is asked to end waits a minute for a part of itself that has ended already."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(head.pid)
        for process in [family, *family.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    head.wait()
