"""A Ray head of its own on this machine, with the Jobs API: `with ray_head(folder, environment) as address`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.ray_patience import PATIENCE, RAY

PATIENCE_S = 300.0


@contextlib.contextmanager
def ray_head(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Start it, and end it with the block, by the numbers of its processes; gives the address of its dashboard.

    Args:
        folder: with a short path: Ray makes sockets below it.
        environment: of its jobs too; RAY_AUTH_TOKEN is asked of whoever calls.
    """
    port = _free_port()
    command = [
        *(sys.executable, "-c", RAY),
        *("start", "--head", "--block", "--disable-usage-stats", "--port=0", "--num-cpus=2", f"--temp-dir={folder}"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={port}", "--dashboard-agent-listen-port=0"),
        *(f"--ray-client-server-port={_free_port()}", "--object-store-memory=100000000", "--include-dashboard=true"),
        *("--min-worker-port=0", "--max-worker-port=0"),
    ]
    output = folder / "head.out"
    with output.open("wb") as stream:
        head = subprocess.Popen(
            command,
            env={**os.environ, **PATIENCE, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(f"http://127.0.0.1:{port}/api/jobs/", environment["RAY_AUTH_TOKEN"], head, output)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(head)


def _wait(url: str, token: str, head: subprocess.Popen[bytes], output: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60):
            return
        assert head.poll() is None, output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.2)


def _end(head: subprocess.Popen[bytes]) -> None:
    """All at once: a head that is asked to end waits a minute for a part of itself that has ended already."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(head.pid)
        for process in [family, *family.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    head.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
