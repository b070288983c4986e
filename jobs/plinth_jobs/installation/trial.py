"""`plinth up --full`: a whole installation on this machine, for as long as the command runs.

Apache is before the pages, with the settings of `infra/apache`: TLS and a login for both. The environment by which
other commands find the installation is in the file `environment` of its folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from plinth import processes
from plinth.errors import MissingError, PlinthError
from plinth.processes import free_port
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace, folder_of
from plinth_jobs.installation import database, object_store
from plinth_jobs.installation.database import Certificate
from plinth_jobs.installation.object_store import infra
from plinth_registry.mlflow.server import ensure_server, stop_server

MODULES: Final = Path("/usr/lib/apache2/modules")
LOADED: Final = (
    *("mpm_event", "authn_core", "authn_file", "auth_basic", "authz_core", "authz_user", "headers", "ssl"),
    *("proxy", "proxy_http", "proxy_wstunnel", "socache_shmcb"),
)
START_S, STOP_S, POLL_S = 60.0, 20.0, 0.1
LOOPBACK: Final = "127.0.0.1"


class Front(NamedTuple):
    """Addresses of the pages as people see them, and the account to log in with."""

    dagster: str
    mlflow: str
    person: str
    password: str


def planned(person: str) -> Front:
    """Free ports of this machine, and a new password."""
    dagster, mlflow = (f"https://localhost:{free_port()}" for _ in range(2))
    return Front(dagster, mlflow, person, secrets.token_urlsafe(12))


@contextmanager
def apache(
    folder: Path, certificate: Certificate, front: Front, dagster: str, mlflow: str, secret: str
) -> Iterator[None]:
    """Apache before the pages at `dagster` and `mlflow`, for as long as the block.

    Args:
        secret: what it shows to MLflow beside the person's name.

    Raises:
        MissingError, PlinthError: it is not installed, or does not start.
    """
    program = shutil.which("apache2", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise MissingError("no Apache on this machine", remedy="install it (Debian: apache2)")
    log, people = folder / "apache.log", folder / "people"
    write_bytes(people, _account(front), mode=0o644)  # hashes only; Apache reads it as another user
    lines = [f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in LOADED]
    lines += [f"ServerRoot {folder}", "ServerName localhost", f"PidFile {folder}/apache.pid", f"ErrorLog {log}"]
    lines += [f"Include {infra('apache')}/plinth.conf", ""]
    settings = folder / "apache.conf"
    write_bytes(settings, "\n".join(lines).encode())
    own = {
        "PLINTH_LISTEN": LOOPBACK,
        "PLINTH_CERTIFICATE": str(certificate.chain),
        "PLINTH_CERTIFICATE_KEY": str(certificate.key),
        "PLINTH_PEOPLE": str(people),
        "PLINTH_DAGSTER": dagster,
        "PLINTH_DAGSTER_PORT": front.dagster.rpartition(":")[2],
        "PLINTH_MLFLOW": mlflow,
        "PLINTH_MLFLOW_PORT": front.mlflow.rpartition(":")[2],
        "PLINTH_PROXY_SECRET": secret,
    }
    process = processes.start([program, "-f", str(settings), "-D", "FOREGROUND"], own=own)
    try:
        _await(process, folder / "apache.pid", log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _account(front: Front) -> bytes:
    """A line of htpasswd's file, with the password's bcrypt hash."""
    program = shutil.which("htpasswd")
    if program is None:
        raise MissingError("no htpasswd on this machine", remedy="install it (Debian: apache2-utils)")
    command = [program, "-niB", front.person]
    done: subprocess.CompletedProcess[bytes] = processes.run(
        command, input=front.password.encode(), capture_output=True, check=True
    )
    return done.stdout


def _await(process: subprocess.Popen[bytes], started: Path, log: Path) -> None:
    """Apache writes its process id when it listens."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if started.exists():
            return
        time.sleep(POLL_S)
    raise PlinthError("Apache did not start", found=log.read_text(errors="replace") if log.exists() else "no log")


ENVIRONMENT: Final = "environment"
PERSON: Final = "demo-approver@example.org"


@contextmanager
def services(folder: Path) -> Iterator[dict[str, str]]:
    """PostgreSQL and S3 in a folder; the environment of commands that use them, for as long as the block.

    Raises:
        MissingError, StorageError: a program is not installed, or does not start.
    """
    with ExitStack() as stack:
        certificate = database.make_certificate(folder)
        postgres = stack.enter_context(database.postgres(folder, certificate))
        stored = stack.enter_context(_object_store(folder, certificate))
        yield {
            **postgres,
            **stored,
            "PLINTH_WORKSPACE": f"s3://{object_store.BUCKET}/{object_store.PREFIX}",
            "PLINTH_CACHE": str(folder / "cache"),
            "PLINTH_TRUST": str(folder / "trust"),
            "PLINTH_DAGSTER_YAML": str(object_store.infra("postgres") / "dagster.yaml"),
            "PLINTH_MLFLOW_DATABASE": "postgresql+psycopg2://mlflow@/mlflow",
            "PLINTH_MLFLOW_ARTIFACTS": f"s3://{object_store.BUCKET}/mlflow",
            "PLINTH_LEDGER": "postgresql://ledger@/ledger",
        }


def up(recipe_path: Path, dagster_port: int, pages_port: int) -> int:
    """Serve a whole installation until interrupted; returns Dagster's exit status.

    Raises:
        PlinthError: something does not start, or the recipe is wrong.
    """
    from plinth_jobs import servers

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # whatever has started ends too
    folder = Path(tempfile.mkdtemp(prefix="plinth-full-"))
    folder.chmod(0o711)  # the database's user and Apache's pass through
    before = dict(os.environ)
    try:
        with ExitStack() as stack:
            environment = stack.enter_context(services(folder))
            os.environ.update(environment)
            write_bytes(folder / ENVIRONMENT, _shell(environment).encode(), mode=0o600)
            workspace = Workspace(folder_of(environment["PLINTH_WORKSPACE"])).ensure()
            front = planned(PERSON)
            secret = _log_in(workspace, recipe_path, front)
            stack.callback(stop_server, workspace)
            dagster, mlflow = f"http://{servers.HOST}:{dagster_port}", ensure_server(workspace)
            certificate = _certificate(folder)
            stack.enter_context(apache(folder, certificate, front, dagster, mlflow, secret))
            print(_welcome(folder, front), flush=True)
            return servers.up(workspace.root, recipe_path, dagster_port, pages_port, (front.dagster,))
    finally:
        _end_users(folder)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _end_users(folder: Path) -> None:
    """End what still runs with this environment: it would write into the folder, and what it needs is gone."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PLINTH_CACHE") == str(folder / "cache"):
                process.terminate()
                found.append(process)
    for process in psutil.wait_procs(found, timeout=STOP_S)[1]:
        with suppress(psutil.Error):
            process.kill()


@contextmanager
def _object_store(folder: Path, certificate: Certificate) -> Iterator[dict[str, str]]:
    port = free_port()
    command = processes.python("plinth_jobs.installation.object_store", str(folder), str(port), object_store.BUCKET)
    log = folder / "s3.log"
    with log.open("wb") as stream:
        # without settings of boto3: it must not ask itself
        process = processes.start(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline, accounts = time.monotonic() + START_S, folder / object_store.ACCOUNTS
        while not accounts.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise PlinthError("the S3 server did not start", found=log.read_text(errors="replace")[-2000:])
            time.sleep(POLL_S)
        yield {
            "AWS_ENDPOINT_URL": f"https://localhost:{port}",
            "AWS_CA_BUNDLE": str(certificate.authority),
            "AWS_DEFAULT_REGION": "us-east-1",
            **json.loads(accounts.read_bytes())[object_store.ADMINISTRATOR],
        }
    finally:
        process.terminate()
        process.wait()


def _log_in(workspace: Workspace, recipe_path: Path, front: Front) -> str:
    """A demo root of trust, and MLflow behind the proxy's login with one account; returns the proxy's secret."""
    from plinth.trust import enrolment
    from plinth_jobs.recipes import load
    from plinth_registry.candidate import model_name
    from plinth_registry.mlflow import connection, settings

    enrolment.initialise(workspace, "full", (PERSON, settings.SIGNER), demo=True)
    settings.ask(workspace, settings.LoginSettings(kind="proxy", origin=front.mlflow))
    recipe = load(recipe_path)
    if recipe.release is not None:
        connection.add_person(workspace, front.person, model_name(recipe))
    return settings.proxy_secret(workspace).decode()


def _certificate(folder: Path) -> Certificate:
    return Certificate(folder / "authority.pem", folder / "server.pem", folder / "server.key")


def _shell(environment: dict[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))


def _welcome(folder: Path, front: Front) -> str:
    return (
        f"Dagster  {front.dagster}\nMLflow   {front.mlflow}\nlogin    {front.person} {front.password}\n"
        f"trust    {folder / 'authority.pem'}\nuse      . {folder / ENVIRONMENT}   # then any command of plinth\n"
        "Objects lie in memory: everything ends with this command. Behind the proxy, on loopback:"
    )
