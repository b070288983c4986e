"""The servers of a workspace, on loopback: Dagster with its daemon, MLflow, the pages of the workspace, its metrics."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

from jobs import page_server, policies, workspace_index
from jobs.instance import home
from jobs.last_recipe import remember
from jobs.recipes import load
from jobs.running import STOP_GRACE_S, note_pages
from plinth import processes
from plinth.compute.context import Context
from plinth.errors import PlinthError, TrustError
from plinth.storage import addresses
from plinth.storage.workspace import Workspace
from registry import api
from registry.server import ensure_server

HOST = "127.0.0.1"
#: Of the exporter; the next free one of ten.
METRICS_PORT = 9464
#: Seconds between two looks at the exporter, and until one that has ended is started again.
POLL_S, RESTART_S = 0.5, 10.0


def environment(workspace: Workspace, recipe_path: Path, mlflow_uri: str, pages: str) -> dict[str, str]:
    """Variables of Dagster's processes: recipe, workspace, MLflow and where the pages are served."""
    return {
        "DAGSTER_HOME": str(home(workspace)),
        "PLINTH_WORKSPACE": str(workspace.root),
        "PLINTH_RECIPE": str(recipe_path.absolute()),
        "MLFLOW_TRACKING_URI": mlflow_uri,
        "PLINTH_PAGES": pages,
        "PYTHONWARNINGS": "ignore",
    }


def up(workspace: Path, recipe_path: Path, dagster_port: int = 3000, pages_port: int = 3001) -> int:
    """Serve until interrupted; schedules and sensors run meanwhile. Returns Dagster's exit status.

    Raises:
        PlinthError: a port is taken, or the recipe is wrong.
    """
    space = Workspace(workspace).ensure()
    recipe_path = remember(space.root, recipe_path)
    _require_free(dagster_port, "Dagster pages", "--dagster-port")
    _require_free(pages_port, "pages of the workspace", "--pages-port")
    addresses.note(space, f"http://{HOST}:{dagster_port}/", f"http://{HOST}:{pages_port}/")
    metrics_port = _free_from(METRICS_PORT)
    with suppress(TrustError):  # without a root of trust the pages can be looked at
        policies.ensure(Context(space), load(recipe_path))
    mlflow_uri = ensure_server(space)
    pages = f"http://{HOST}:{pages_port}/"
    server = _serve_pages(space, recipe_path, pages_port, pages)
    command = processes.python("dagster", "dev", "-m", "jobs.definitions", "-h", HOST, "-p", str(dagster_port))
    process = processes.start(
        [*command, "--log-level", "warning"],
        *processes.JOB,  # its runs make every asset, and sign
        own=environment(space, recipe_path, mlflow_uri, pages),
        preexec_fn=_default_signals,
    )
    ended = Event()
    exporter = Thread(target=_keep, args=(lambda: _export(space, recipe_path, metrics_port), ended), daemon=True)
    exporter.start()
    print(
        f"Dagster  http://{HOST}:{dagster_port}\nMLflow   {mlflow_uri}\nPages    {pages}\n"
        f"Metrics  http://{HOST}:{metrics_port}/metrics\nCtrl-C ends the views; no run is lost",
        flush=True,
    )
    noted = note_pages(space, process.pid)
    try:
        return _wait(process)
    finally:
        noted.unlink(missing_ok=True)
        ended.set()
        server.shutdown()
        server.server_close()
        exporter.join()


def _serve_pages(space: Workspace, recipe_path: Path, port: int, url: str) -> ThreadingHTTPServer:
    """Write the index, serve the pages, and link them from MLflow."""
    recipe = load(recipe_path)
    workspace_index.refresh(space, lambda sentence: print(sentence, file=sys.stderr))
    with suppress(PlinthError):  # without the link the pages are there all the same
        api.link_pages(Context(space), recipe, url)
    return page_server.serve(space, HOST, port)


def _export(space: Workspace, recipe_path: Path, port: int) -> subprocess.Popen[bytes]:
    """The exporter, which ends with this process however that ends."""
    command = processes.python("jobs.cli", "-w", str(space.root), "-r", str(recipe_path.absolute()))
    command += ["metrics", "serve", "--port", str(port), "--with-parent"]
    process: subprocess.Popen[bytes] = processes.start(command, *processes.JOB, preexec_fn=_default_signals)
    return process


def _keep(start: Callable[[], subprocess.Popen[bytes]], ended: Event) -> None:
    """Run the exporter until `ended`, and again where it was killed: without it no alert fires."""
    while not ended.is_set():
        process = start()
        while process.poll() is None and not ended.wait(POLL_S):
            pass
        if process.returncode is not None and not ended.wait(RESTART_S):
            print(f"the exporter ended with {process.returncode} and is started again", file=sys.stderr, flush=True)
        process.terminate()
        process.wait()


def _free_from(port: int) -> int:
    """The first free port of ten: several workspaces may be looked at on one machine.

    Raises:
        PlinthError: none is free.
    """
    for each in range(port, port + 10):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, each)) != 0:
                return each
    raise PlinthError(f"ports {port} to {port + 9} on {HOST} are taken", remedy="end the programs that listen there")


def _wait(process: subprocess.Popen[bytes]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGINT))
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(timeout=STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _default_signals() -> None:
    # A shell ignores these signals for background jobs and children inherit that: Dagster could not be stopped.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _require_free(port: int, what: str, option: str) -> None:
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise PlinthError(
                f"port {port} on {HOST} is taken",
                expected=f"a free port for the {what}",
                remedy=f"end the program that listens there, or give another {option}",
            )
