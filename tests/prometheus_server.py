"""A real Prometheus and a real Alertmanager, for tests that ask them."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests import services

#: Seconds in which a server has to do what is waited for, on a machine that is busy.
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(holds: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `holds`."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            if found := holds():
                return found
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


@contextmanager
def prometheus(folder: Path, targets: list[str], rules: str = "", alertmanager: str = "") -> Iterator[str]:
    """A Prometheus that reads targets and evaluates rules every second. Its address."""
    services.demand("Prometheus")
    folder.mkdir()
    made: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "plinth", "static_configs": [{"targets": targets}]}],
    }
    if rules:
        (folder / "rules.yaml").write_text(rules)
        made["rule_files"] = ["rules.yaml"]
    if alertmanager:
        made["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(made))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with _running([*command, f"--web.listen-address={address}", "--log.level=error"], folder):
        wait_for(lambda: _get(f"http://{address}/-/ready"), "Prometheus is ready")
        yield f"http://{address}"


@contextmanager
def alertmanager(folder: Path, configuration: str) -> Iterator[str]:
    """An Alertmanager. Its address, without scheme."""
    services.demand("Alertmanager")
    folder.mkdir()
    (folder / "alertmanager.yaml").write_text(configuration)
    address = f"127.0.0.1:{free_port()}"
    program = services.program("prometheus-alertmanager", "alertmanager")
    command = [str(program), f"--config.file={folder}/alertmanager.yaml", f"--storage.path={folder}/data"]
    command += [f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=error"]
    with _running(command, folder):
        wait_for(lambda: _get(f"http://{address}/-/ready"), "Alertmanager is ready")
        yield address


def query(url: str, expression: str) -> list[dict[str, Any]]:
    """The series that an expression gives now.

    Raises:
        AssertionError: Prometheus refuses it.
    """
    try:
        answer = json.loads(_get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{expression}: {error.read().decode()}") from error
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait()
