"""Servers of a workspace, on loopback: Dagster with its daemon, MLflow, the workspace's pages, its corpus, its metrics.

Each server is a separate process (`plinth_jobs.supervised`), which is restarted on exit without affecting the others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from plinth import processes
from plinth.compute.context import Context
from plinth.compute.progress import Progress, for_command
from plinth.errors import PlinthError, RegistryError, TrustError
from plinth.storage import running
from plinth.storage.atomic import append_to
from plinth.storage.workspace import Workspace
from plinth_jobs import policies, supervised, workspace_index
from plinth_jobs.cli.nouns import installed
from plinth_jobs.instance import home
from plinth_jobs.recipes import load, remember
from plinth_jobs.supervised import PartSupervisor, ServerPart, SharedProcess
from plinth_registry import api
from plinth_registry.mlflow.server import MODELS, ensure_server, find_server

HOST = "127.0.0.1"
#: First of the ten ports that are tried for the exporter.
METRICS_PORT = 9464
#: First of the ten ports that are tried for the corpus page.
CORPUS_PORT = 3011
#: Name of the Dagster code location, which identifies its schedules and sensors.
LOCATION = "plinth_jobs.definitions"


def environment(workspace: Workspace, recipe_path: Path, mlflow_uri: str, pages: str) -> dict[str, str]:
    """Return the environment variables of Dagster's processes: recipe, workspace, MLflow, and the pages' address."""
    # Dagster takes the first entry of the path for the working directory, and imports nothing from there.
    path = [str(processes.elsewhere()), *processes.imports().values()]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "DAGSTER_HOME": str(home(workspace)),
        "PLINTH_WORKSPACE": str(workspace.root),
        "PLINTH_RECIPE": str(recipe_path.absolute()),
        "MLFLOW_TRACKING_URI": mlflow_uri,
        "PLINTH_PAGES": pages,
        "PYTHONWARNINGS": "ignore",
    }


def up(
    workspace: Path,
    recipe_path: Path,
    dagster_port: int = 3000,
    pages_port: int = 3001,
    origins: Sequence[str] = (),
    corpus_port: int | None = None,
) -> int:
    """Serve a workspace until interrupted. Schedules and sensors are active while the servers run.

    Args:
        origins: public addresses of a proxy in front of Dagster.
        corpus_port: port of the corpus page; by default, the first free one of `free_corpus_port`.

    Raises:
        PlinthError: a port is in use, or the recipe is invalid.
    """
    space = Workspace(workspace).ensure()
    recipe_path = remember(space.root, recipe_path)
    _require_free(dagster_port, "Dagster pages", "--dagster-port")
    _require_free(pages_port, "pages of the workspace", "--pages-port")
    corpus_port = corpus_port or free_corpus_port()
    corpus = f"http://{HOST}:{corpus_port}/" if corpus_port else ""
    running.note(space, f"http://{HOST}:{dagster_port}/", f"http://{HOST}:{pages_port}/", corpus)
    metrics_port = _free_from(METRICS_PORT)
    with suppress(TrustError):  # pages can be viewed without a root of trust
        policies.ensure(Context(space), load(recipe_path))
    progress = for_command()
    with progress.meter("starting MLflow", 0):
        mlflow_uri = ensure_server(space)
    pages = f"http://{HOST}:{pages_port}/"
    own, log = environment(space, recipe_path, mlflow_uri, pages), running.folder(space) / "up.log"
    log.write_bytes(b"")
    with progress.meter("writing pages", 0):
        server = _serve_pages(space, recipe_path, pages_port, pages)
    try:
        with tempfile.TemporaryDirectory(prefix="plinth-up-") as folder:
            dagster = _dagster_parts(Path(folder), log, own, dagster_port, origins)
            served = partial(_ring_server, log, space, recipe_path)
            exporter = ServerPart("exporter", lambda: served("ops", "metrics", "serve", "--port", str(metrics_port)))
            looked = ServerPart("corpus page", lambda: served("corpus", "page", "--port", str(corpus_port)))
            mlflow = ServerPart("MLflow server", lambda: _mlflow(space), shared=True)
            exported = "ops metrics" in installed()
            parts = [mlflow, *dagster, *([exporter] if exported else []), *([looked] if corpus else [])]
            with _supervised(space, parts, progress) as supervisor:
                metrics = f"Metrics  http://{HOST}:{metrics_port}/metrics\n" if exported else ""
                print(
                    f"Dagster  http://{HOST}:{dagster_port}\nMLflow   {mlflow_uri.rstrip('/')}{MODELS}\n"
                    f"Pages    {pages}\n"
                    f"{f'Corpus   {corpus}' if corpus else _NO_CORPUS_PAGE}\n"
                    f"{metrics}Log      {log}\n"
                    "Ctrl-C stops the servers; jobs keep running",
                    flush=True,
                )
                supervisor.run()
    finally:
        server.shutdown()
        server.server_close()
    return 0


@contextmanager
def _supervised(space: Workspace, parts: Sequence[ServerPart], progress: Progress) -> Iterator[PartSupervisor]:
    """Start the servers, and stop them when the `with` block ends. A signal ends `run` of the yielded supervisor."""
    supervisor = PartSupervisor(parts, supervised.record_path(space), _say)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: supervisor.request_stop())
    try:
        with progress.meter("starting servers", len(parts)) as meter:
            supervisor.start(meter)
        yield supervisor
    finally:
        with progress.meter("stopping servers", 0):
            supervisor.stop()


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _dagster_parts(folder: Path, log: Path, own: dict[str, str], port: int, origins: Sequence[str]) -> list[ServerPart]:
    """Return Dagster's servers: code location, daemon and pages.

    The code location materializes assets and signs. The daemon and the pages connect to it through a socket in a
    private folder and have no keys.
    """
    place, listed = folder / "code.sock", folder / "workspace.yaml"
    listed.write_text(json.dumps({"load_from": [{"grpc_server": {"socket": str(place), "location_name": LOCATION}}]}))
    code = processes.python("dagster", "code-server", "start", "--socket", str(place), "-m", LOCATION)
    code += ["--location-name", LOCATION, "--use-python-environment-entry-point", "--log-level", "warning"]
    daemon = processes.python("dagster._daemon", "run", "-w", str(listed), "--log-level", "warning")
    pages = processes.python("plinth_jobs.dagster_pages", str(listed), str(port), *origins)

    def start_code() -> subprocess.Popen[bytes]:
        place.unlink(missing_ok=True)  # a killed process left the socket
        return _start(log, code, own, *processes.JOB)

    return [
        ServerPart("Dagster code location", start_code, lambda: _answers(place)),
        ServerPart("Dagster daemon", lambda: _start(log, daemon, own, *processes.STORES)),
        ServerPart("Dagster pages", lambda: _start(log, pages, own, *processes.STORES), lambda: _listens(port)),
    ]


def _start(log: Path, command: Sequence[str], own: dict[str, str], *needs: str) -> subprocess.Popen[bytes]:
    with append_to(log) as stream:
        process: subprocess.Popen[bytes] = processes.start(
            command,
            *needs,
            own=own,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            preexec_fn=supervised.dies_with_parent,
        )
    return process


def _answers(place: Path) -> bool:
    """Return True if a process listens on the Unix socket at this path."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(place))
        return True
    return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _mlflow(space: Workspace) -> SharedProcess:
    """Return the MLflow server of the workspace, after starting it if needed. Other commands also use this server."""
    ensure_server(space)
    found = find_server(space)
    process = found.find() if found else None
    if process is None:
        raise RegistryError("the MLflow server exited at startup", remedy="see mlflow/server.log")
    return SharedProcess(process)


def _serve_pages(space: Workspace, recipe_path: Path, port: int, url: str) -> ThreadingHTTPServer:
    """Write the index of pages, serve the pages, and link them from MLflow."""
    recipe = load(recipe_path)
    workspace_index.refresh(space, lambda sentence: print(sentence, file=sys.stderr))
    with suppress(PlinthError):  # the link is optional
        api.link_pages(Context(space), recipe, url)
    return workspace_index.serve(space, HOST, port)


#: Line of `plinth up` where the corpus page would be.
_NO_CORPUS_PAGE = "Corpus   not served: pip install 'plinth[page]'"


def free_corpus_port() -> int | None:
    """Return a port for the corpus page, or None if the page or the library that it needs is not installed."""
    return _free_from(CORPUS_PORT) if "corpus page" in installed() and find_spec("duckdb") is not None else None


def _ring_server(log: Path, space: Workspace, recipe_path: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a server of the ring by its command. The server ends when this process ends, even if this process is
    killed."""
    command = processes.python("plinth_jobs.cli", "-w", str(space.root), "-r", str(recipe_path.absolute()))
    return _start(log, [*command, *words, "--with-parent"], {}, *processes.JOB)


def _free_from(port: int) -> int:
    """Return the first free port of ten, starting at `port`, because several workspaces may be served on one machine.

    Raises:
        PlinthError: none of the ten ports is free.
    """
    for each in range(port, port + 10):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, each)) != 0:
                return each
    raise PlinthError(f"ports {port} to {port + 9} on {HOST} are in use", remedy="stop the programs on these ports")


def _require_free(port: int, what: str, option: str) -> None:
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise PlinthError(
                f"port {port} on {HOST} is in use",
                expected=f"a free port for the {what}",
                remedy=f"stop the program on this port, or choose another {option}",
            )
