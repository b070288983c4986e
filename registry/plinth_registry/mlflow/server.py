"""Local MLflow server: start it on demand, find it, stop it. The code of the server process is also here.

SQLite and artifacts are in the workspace's `mlflow/`, unless `PLINTH_MLFLOW_DATABASE` and `PLINTH_MLFLOW_ARTIFACTS`
name a database (`postgresql+psycopg2://…`) and a location for artifacts (`s3://…`). Passwords are handled by libpq
(PGPASSFILE) and must not be in URLs. A record in a private folder names the process and its port. The address is
therefore stable across restarts, and writers of the workspace cannot choose a process to kill. The server exits soon
after the last process that uses it. A server with other stores or login settings is replaced. If `MLFLOW_TRACKING_URI`
is set, the server at this address is used instead.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil

from plinth import processes
from plinth.errors import RegistryError, StorageError
from plinth.launch.base import tail
from plinth.storage import running
from plinth.storage.atomic import append_to, locked, write_bytes
from plinth.storage.running import RunningProcess, wait_until_unused
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow import confine, settings, workspaces

HOST, DATABASE, ARTIFACTS = "127.0.0.1", workspaces.DATABASE, "artifacts"
DATABASE_VARIABLE, ARTIFACTS_VARIABLE = "PLINTH_MLFLOW_DATABASE", "PLINTH_MLFLOW_ARTIFACTS"
#: Seconds without users after which the server exits.
LINGER_S = 20.0
#: Response timeout of a live server in seconds; a busy machine may need most of it.
START_TIMEOUT_S = 300.0
HEALTH_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
PORT_TIMEOUT_S = 10.0
POLL_S = 0.2
#: Log lines quoted in an error.
LOG_LINES = 5
#: Variable with the port of the local server, for a proxy.
PORT_VARIABLE = "PLINTH_MLFLOW_SERVER_PORT"

#: Path of MLflow's pages with the model registry in their menu, which MLflow hides by default. Its list of models
#: (`/#/models`) drops the parameter.
MODELS = "/#/experiments?workflowType=machine_learning"

#: Job execution costs 2 GB of memory for features that are not used here.
SERVER_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


#: Variables of MLflow's webhooks that the local server gets, and the one that encrypts their secrets in the database.
WEBHOOKS, WEBHOOK_KEY = "MLFLOW_WEBHOOK_*", "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY"


class ServerState(RunningProcess):
    """Record of the local MLflow server: its process, port, login and stores."""

    port: int
    login: str = ""
    stores: tuple[str, ...] = ()
    workspaces: bool = False

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.port}"


def stores(home: Path) -> tuple[str, str]:
    """Return the database URL and the artifact location of the MLflow server with the folder `home`."""
    database = os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{home / DATABASE}"
    return database, os.environ.get(ARTIFACTS_VARIABLE) or str(home / ARTIFACTS)


def ensure_server(workspace: Workspace) -> str:
    """Return the tracking URI of a running MLflow server. If none is running, start the local server.

    Raises:
        RegistryError: `MLFLOW_TRACKING_URI` does not answer, or the local server cannot be started.
    """
    external = os.environ.get("MLFLOW_TRACKING_URI")
    if external and not is_own(workspace, external):
        return _require_answer(external)
    uri = _ensure_own(workspace)
    workspaces.create(workspace, uri)
    return uri


def _ensure_own(workspace: Workspace) -> str:
    """Return the tracking URI of the local server; start or replace the server if needed."""
    workspaces.require_no_login(workspace)
    with _locked(workspace):
        use(workspace)
        state = _read(workspace)
        wanted = (settings.identity(workspace), stores(workspace.mlflow), workspaces.enabled(workspace))
        current = state is not None and (state.login, state.stores, state.workspaces) == wanted
        if state is not None and current and state.find() and _await_health(state):
            return state.uri
        if state is not None:
            _end(state)
        return _start(workspace, state.port if state else None)


def use(workspace: Workspace) -> None:
    """Keep the local MLflow server alive until this process ends."""
    running.use(_users(workspace))


def find_server(workspace: Workspace) -> ServerState | None:
    """Return the local server if it runs and answers. A server that does not run is not started."""
    state = _read(workspace)
    return state if state is not None and state.find() and healthy(state.uri) else None


@contextmanager
def without_server(workspace: Workspace) -> Iterator[bool]:
    """Prevent the local server from starting while the `with` block runs. Yield False if a server runs, or if another
    server is configured."""
    with _locked(workspace):
        yield not os.environ.get("MLFLOW_TRACKING_URI") and not is_running(workspace)


def is_running(workspace: Workspace) -> bool:
    """Return True if the process of the local server is alive, even if the server does not answer yet."""
    state = _read(workspace)
    return state is not None and state.find() is not None


def stop_server(workspace: Workspace) -> bool:
    """Stop the local server and its workers. Return True if it was running."""
    with _locked(workspace):
        state = _read(workspace)
        return state is not None and _end(state)


def healthy(uri: str) -> bool:
    """Return True if an MLflow server answers at this address."""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_TIMEOUT_S) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):
        return False


def _start(workspace: Workspace, port: int | None) -> str:
    home = workspace.mlflow
    log, login, divided = home / "server.log", settings.identity(workspace), workspaces.enabled(workspace)
    port, extra = _port(port), {workspaces.ENABLE_VARIABLE: "true"} if divided else {}
    with append_to(log) as stream:
        process = processes.start(
            _command(workspace, port),
            *processes.STORES,
            WEBHOOKS,
            *(processes.KEYS if login else ()),  # a server with a login signs the authors of tags
            own=SERVER_ENVIRONMENT | settings.environment(workspace) | _webhook_key(workspace) | extra,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Its own session: the server outlives its starter, and one signal reaches its workers.
            start_new_session=True,
            preexec_fn=_default_signals,
        )
    running = RunningProcess.of(process.pid).model_dump()
    state = ServerState(**running, port=port, login=login, stores=stores(home), workspaces=divided)
    try:
        write_bytes(_path(workspace), state.model_dump_json(indent=1).encode())
    except StorageError:  # an unrecorded server would never be stopped
        _end(state)
        raise
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if healthy(state.uri):
            return state.uri
        time.sleep(POLL_S)
    _end(state)
    raise RegistryError(
        "the local MLflow server did not start",
        found=tail(log, LOG_LINES) or "no log",
        expected=f"a response from {state.uri}/health within {START_TIMEOUT_S:.0f} s",
        remedy=f"read {log}, or set MLFLOW_TRACKING_URI to use your own server",
    )


def _webhook_key(workspace: Workspace) -> dict[str, str]:
    """Return the key that encrypts the secrets of webhooks, as an environment variable. Without it, MLflow creates a
    new key at each start, and cannot read the secrets of webhooks that were registered before.
    """
    path = running.folder(workspace) / "mlflow.webhook-key"
    if not os.environ.get(WEBHOOK_KEY) and not path.exists():
        write_bytes(path, base64.urlsafe_b64encode(secrets.token_bytes(32)), mode=0o600)
    return {WEBHOOK_KEY: os.environ.get(WEBHOOK_KEY) or path.read_text()}


def _port(before: int | None) -> int:
    """Return the port in the environment variable. If it is not set, return the server's last port, or a free port.

    Raises:
        RegistryError: the port in the environment variable is in use.
    """
    named = int(os.environ.get(PORT_VARIABLE) or 0)
    if named and not _becomes_free(named):
        remedy = "stop the program on this port, or choose another port"
        raise RegistryError(f"port {named} in {PORT_VARIABLE} is in use", remedy=remedy)
    return named or (before if before is not None and _becomes_free(before) else processes.free_port(HOST))


def _command(workspace: Workspace, port: int) -> list[str]:
    words = (str(workspace.mlflow), str(port), str(_users(workspace)))
    command = processes.python("plinth_registry.mlflow.server", *words)
    return command if settings.load(workspace) is None else [*command, str(workspace.root)]


def _default_signals() -> None:
    # A shell's background job ignores these, and its children would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_own(workspace: Workspace, uri: str) -> bool:
    """Return True if this address belongs to the workspace's own server. Child processes get this address as an
    environment variable."""
    state = _read(workspace)
    return state is not None and state.uri == uri.rstrip("/")


def _require_answer(uri: str) -> str:
    if uri.startswith(("http://", "https://")) and not healthy(uri):
        raise RegistryError(
            f"no MLflow server responds at {uri}",
            expected=f"a response from {uri}/health",
            remedy="start that server, or unset MLFLOW_TRACKING_URI to use the workspace's own server",
        )
    return uri


def _await_health(state: ServerState) -> bool:
    """Return True if the server's process is alive and the server answers within a timeout. A server on a busy machine
    is therefore not replaced at once."""
    deadline = time.monotonic() + HEALTH_TIMEOUT_S
    while time.monotonic() < deadline and state.find():
        if healthy(state.uri):
            return True
        time.sleep(POLL_S)
    return False


def _end(state: ServerState) -> bool:
    """Stop the server's processes, including workers whose parent was killed. Return True if any was running."""
    found = _members(state)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _members(state):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while _members(state) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    return bool(found)


def _members(state: ServerState) -> list[psutil.Process]:
    """Return the living processes of the server's process group. Processes that reuse a process ID are left out."""
    return [process for process in psutil.process_iter() if _is_member(process, state)]


def _is_member(process: psutil.Process, state: ServerState) -> bool:
    try:
        return (
            os.getpgid(process.pid) == state.pid
            and process.create_time() > state.started_at_s - 1
            and process.status() != psutil.STATUS_ZOMBIE
            and any("mlflow" in word for word in process.cmdline())
        )
    except (psutil.Error, OSError):
        return False


def _read(workspace: Workspace) -> ServerState | None:
    try:
        return ServerState.model_validate(json.loads(_path(workspace).read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


def _path(workspace: Workspace) -> Path:
    return running.folder(workspace) / "mlflow.json"


def _users(workspace: Workspace) -> Path:
    return running.folder(workspace) / "mlflow.users"


def _locked(workspace: Workspace) -> AbstractContextManager[None]:
    """Lock the start of the MLflow server, so that two callers do not start two servers."""
    return locked(running.folder(workspace) / "mlflow.lock")


def _becomes_free(port: int) -> bool:
    """Return True if a port is free, or becomes free as soon as a killed server has released it."""
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)


# The process: `python -m plinth_registry.mlflow.server HOME PORT USERS [WORKSPACE]`.
#
# `mlflow server` loads MLflow in one process to prepare the database, then again in another that answers. This does
# both in one, in half the time. With a workspace it requires a login (`login`). It exits when no process has held
# the lock USERS for `LINGER_S`, so consecutive commands share one server.


def serve(home: Path, port: int, users: Path, root: Path | None = None) -> None:
    """Prepare the MLflow database in a folder, and serve a loopback port until a signal arrives, or until no process
    uses the server.

    Args:
        users: lock file that processes hold while they use the server.
        root: workspace with the login settings, or None if no login is required.
    """
    gc.disable()  # imported objects are never freed
    import uvicorn  # before MLflow, which protects its pages only if a server package is imported
    from mlflow import environment_variables as variables
    from mlflow.server import constants, handlers

    database, destination = stores(home)
    artifacts = "mlflow-artifacts:/"  # through the server
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.REGISTRY_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: artifacts,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: destination,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        variables._MLFLOW_SGI_NAME.name: "uvicorn",
        variables._MLFLOW_SERVER_BOOT_ID.name: uuid.uuid4().hex,
        variables._MLFLOW_IN_JOB_EXECUTOR.name: "false",
    }
    confine(destination)
    handlers.initialize_backend_stores(database, database, artifacts)
    app = _app(root)
    gc.freeze()
    gc.enable()
    threading.Thread(target=_end_unused, args=(users,), daemon=True).start()
    uvicorn.run(app, host=HOST, port=port)


def _end_unused(users: Path) -> None:
    wait_until_unused(users, LINGER_S)  # the lock is held until this process exits, so a new user starts another server
    print(f"the MLflow server stops, because no process has used it for {LINGER_S:g} s", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _app(root: Path | None) -> Any:
    if root is not None:
        from plinth_registry.mlflow.login import create_app

        return create_app(root)
    from mlflow.server.fastapi_app import app

    return app


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:]))
