"""A PostgreSQL server in a folder: TLS only, each database with a role of its own that has a password.

Root lends it the distribution's user, since PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from plinth import processes
from plinth.errors import MissingError, StorageError
from plinth.processes import free_port
from plinth.storage.atomic import write_bytes
from plinth_jobs.installation.certificates import Certificate

#: Databases, each owned by the role of its name.
DATABASES: Final = ("dagster", "mlflow", "ledger")
ADMINISTRATOR: Final = "plinth"
TIMEOUT_S = 120


def program(name: str) -> str:
    """A program of PostgreSQL's server; Debian keeps them out of PATH.

    Raises:
        MissingError: it is not installed.
    """
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(beside[-1]) if beside else None)
    if found is None:
        raise MissingError(f"no {name} on this machine", remedy="install PostgreSQL (Debian: postgresql)")
    return found


@contextmanager
def postgres(folder: Path, certificate: Certificate) -> Iterator[dict[str, str]]:
    """A server with empty databases; the environment by which libpq finds it, for as long as the block.

    Raises:
        MissingError, StorageError: PostgreSQL is not installed, or does not start.
    """
    port, passwords = free_port(), {name: secrets.token_urlsafe(24) for name in (ADMINISTRATOR, *DATABASES)}
    passfile = folder / "pgpass"
    lines = [f"*:*:*:{name}:{password}" for name, password in passwords.items()]
    write_bytes(passfile, "\n".join([*lines, ""]).encode(), mode=0o600)
    data = _initialised(folder, certificate, passwords[ADMINISTRATOR])
    options = (
        f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off -c ssl=on "
        f"-c ssl_cert_file={data}/server.pem -c ssl_key_file={data}/server.key"
    )
    run([program("pg_ctl"), "-w", "-D", str(data), "-l", str(data / "log"), "-o", options, "start"])
    try:
        found = {
            "PGHOST": "localhost",
            "PGPORT": str(port),
            "PGPASSFILE": str(passfile),
            "PGSSLMODE": "verify-full",
            "PGSSLROOTCERT": str(certificate.authority),
        }
        _make_databases(found, passwords)
        yield found
    finally:
        run([program("pg_ctl"), "-w", "-D", str(data), "-m", "immediate", "stop"])


def run(command: Sequence[str]) -> None:
    """Run a program of the server as a user who may, which root may not.

    Raises:
        StorageError: it fails.
    """
    other = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    try:  # a server keeps what it inherits open: no pipes
        words = [*other, *command]
        processes.run(words, check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise StorageError("PostgreSQL did not do what it was asked", found=error) from error


def _initialised(folder: Path, certificate: Certificate, password: str) -> Path:
    """The folder of a server that speaks TLS to whoever has a password, and to nobody else."""
    place = folder / "postgres"
    place.mkdir(mode=0o700)
    secret = place / "password"
    write_bytes(secret, password.encode(), mode=0o600)
    data = place / "data"
    if os.geteuid() == 0:
        for path in (place, secret):
            shutil.chown(path, "postgres", "postgres")
    run([
        program("initdb"), "--no-sync", "-A", "scram-sha-256", "-U", ADMINISTRATOR, "-E", "UTF8",
        f"--pwfile={secret}", "-D", str(data),
    ])  # fmt: skip
    write_bytes(data / "pg_hba.conf", b"hostssl all all 127.0.0.1/32 scram-sha-256\n")
    for source in (certificate.chain, certificate.key):
        shutil.copyfile(source, data / source.name)
        (data / source.name).chmod(0o600)
    if os.geteuid() == 0:
        for name in ("pg_hba.conf", certificate.chain.name, certificate.key.name):
            shutil.chown(data / name, "postgres", "postgres")
    return data


def _make_databases(environment: dict[str, str], passwords: dict[str, str]) -> None:
    import psycopg2
    from psycopg2 import sql

    settings = {"host": environment["PGHOST"], "port": environment["PGPORT"], "sslmode": environment["PGSSLMODE"]}
    settings |= {"sslrootcert": environment["PGSSLROOTCERT"], "user": ADMINISTRATOR, "dbname": "postgres"}
    with closing(psycopg2.connect(**settings, password=passwords[ADMINISTRATOR])) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        for name in DATABASES:
            known = sql.Identifier(name)
            cursor.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD %s").format(known), [passwords[name]])
            cursor.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(known))
            cursor.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(known))
