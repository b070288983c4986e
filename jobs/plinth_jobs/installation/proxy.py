"""Apache before the pages of a trial, with the settings of `infra/apache`: TLS and a login for both."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from plinth import processes
from plinth.errors import MissingError, PlinthError
from plinth.processes import free_port
from plinth.storage.atomic import write_bytes
from plinth_jobs.installation.access import infra
from plinth_jobs.installation.certificates import Certificate

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
