"""`plinth up --full`: trial installation on this machine, which is deleted when the command ends.

It consists of a PostgreSQL server in a folder (TLS only, each database with its own role and password), the S3 server
of `object_store`, and Apache with TLS and a login in front of all parts. Settings for permanent installations are in
`infra/`; the trial uses the same files.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from plinth import processes
from plinth.errors import MissingError, PlinthError, StorageError
from plinth.processes import free_port
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace, folder_of
from plinth_jobs import object_store
from plinth_jobs.object_store import infra
from plinth_registry.mlflow.server import ensure_server, stop_server

# A PostgreSQL server in a folder: TLS only, each database with its own role and password.
#
# If the command runs as root, the server runs as the distribution's PostgreSQL user, since PostgreSQL refuses to run as
# root. The trial's certificates are created here: an authority, and one certificate for `localhost`. Keys stay in its
# folder.

VALID = timedelta(days=30)


class Certificate(NamedTuple):
    """PEM files: the trusted certificate authority, the server's certificate, and its private key (mode 0600)."""

    authority: Path
    chain: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """Create a certificate authority and a `localhost` certificate signed by it, both valid for 30 days. The
    authority's key is discarded."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Plinth trial")])
    authority = (
        _builder(named, named, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), named, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    found = Certificate(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_bytes(found.authority, authority.public_bytes(serialization.Encoding.PEM), mode=0o644)
    write_bytes(found.chain, server.public_bytes(serialization.Encoding.PEM), mode=0o644)
    write_bytes(found.key, key.private_bytes(*plain), mode=0o600)
    return found


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    begins = datetime.now(UTC) - timedelta(hours=1)  # tolerate clock differences
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
    return builder.not_valid_before(begins).not_valid_after(begins + VALID)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


#: Databases, each owned by the role of its name.
DATABASES: Final = ("dagster", "mlflow", "ledger")
ADMINISTRATOR: Final = "plinth"
TIMEOUT_S = 120


def program(name: str) -> str:
    """Return the path of a PostgreSQL server program, which Debian does not put into PATH.

    Raises:
        MissingError: the program is not installed.
    """
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(beside[-1]) if beside else None)
    if found is None:
        raise MissingError(f"no {name} on this machine", remedy="install PostgreSQL (Debian: postgresql)")
    return found


@contextmanager
def postgres(folder: Path, certificate: Certificate) -> Iterator[dict[str, str]]:
    """Run a PostgreSQL server with empty databases, and yield the environment variables with which libpq connects.

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
    """Run a PostgreSQL program as an unprivileged user, because PostgreSQL does not run as root.

    Raises:
        StorageError: the program fails.
    """
    other = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    try:  # the server keeps inherited files open, so no pipes are used
        words = [*other, *command]
        processes.run(words, check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise StorageError("a PostgreSQL program failed", found=error) from error


def _initialised(folder: Path, certificate: Certificate, password: str) -> Path:
    """Create the data folder of a PostgreSQL server that requires TLS and a password."""
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


# `plinth up --full`: trial installation on this machine.
#
# Apache proxies the pages with the settings of `infra/apache`: TLS and a login for both. The file `environment` in its
# folder has the environment variables for other commands.

MODULES: Final = Path("/usr/lib/apache2/modules")
LOADED: Final = (
    *("mpm_event", "authn_core", "authn_file", "auth_basic", "authz_core", "authz_user", "headers", "ssl"),
    *("proxy", "proxy_http", "proxy_wstunnel", "socache_shmcb"),
)
START_S, STOP_S, POLL_S = 60.0, 20.0, 0.1
LOOPBACK: Final = "127.0.0.1"


class Front(NamedTuple):
    """Public addresses of the pages, and the account with which a person logs in."""

    dagster: str
    mlflow: str
    corpus: str
    person: str
    password: str


def planned(person: str) -> Front:
    """Choose free ports of this machine for the proxy, and a new password for the person."""
    dagster, mlflow, corpus = (f"https://localhost:{free_port()}" for _ in range(3))
    return Front(dagster, mlflow, corpus, person, secrets.token_urlsafe(12))


@contextmanager
def apache(
    folder: Path, certificate: Certificate, front: Front, dagster: str, mlflow: str, corpus: str, secret: str
) -> Iterator[None]:
    """Run Apache as a proxy for the addresses `dagster`, `mlflow` and `corpus` until the `with` block ends.

    Args:
        secret: shared secret that Apache sends to MLflow and to the corpus page with the person's name.

    Raises:
        MissingError, PlinthError: Apache is not installed, or does not start.
    """
    program = shutil.which("apache2", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise MissingError("no Apache on this machine", remedy="install Apache (Debian: apache2)")
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
        "PLINTH_CORPUS": corpus,
        "PLINTH_CORPUS_PORT": front.corpus.rpartition(":")[2],
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
    """Return the line of an htpasswd file for the account, with the bcrypt hash of its password."""
    program = shutil.which("htpasswd")
    if program is None:
        raise MissingError("no htpasswd on this machine", remedy="install htpasswd (Debian: apache2-utils)")
    command = [program, "-niB", front.person]
    done: subprocess.CompletedProcess[bytes] = processes.run(
        command, input=front.password.encode(), capture_output=True, check=True
    )
    return done.stdout


def _await(process: subprocess.Popen[bytes], started: Path, log: Path) -> None:
    """Wait until Apache listens, which is when it writes the file with its process ID."""
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
    """Run PostgreSQL and S3 in a folder, and yield the environment variables for commands that use them.

    Raises:
        MissingError, StorageError: a program is not installed, or does not start.
    """
    with ExitStack() as stack:
        certificate = make_certificate(folder)
        databases = stack.enter_context(postgres(folder, certificate))
        stored = stack.enter_context(_object_store(folder, certificate))
        yield {
            **databases,
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
    """Serve a trial installation until interrupted; return Dagster's exit status.

    Raises:
        PlinthError: a part does not start, or the recipe is invalid.
    """
    from plinth_jobs import servers

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # started processes are stopped on these signals
    folder = Path(tempfile.mkdtemp(prefix="plinth-full-"))
    folder.chmod(0o711)  # traversable by the users of PostgreSQL and Apache
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
            certificate = Certificate(folder / "authority.pem", folder / "server.pem", folder / "server.key")
            corpus_port = servers.free_corpus_port()
            corpus = f"http://{servers.HOST}:{corpus_port or servers.CORPUS_PORT}"
            stack.enter_context(apache(folder, certificate, front, dagster, mlflow, corpus, secret))
            os.environ.update(PLINTH_CORPUS_ORIGINS=front.corpus, PLINTH_CORPUS_EDITORS=front.person)
            print(_welcome(folder, front), flush=True)
            return servers.up(workspace.root, recipe_path, dagster_port, pages_port, (front.dagster,), corpus_port)
    finally:
        _end_users(folder)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _end_users(folder: Path) -> None:
    """End the processes that still run with the trial's environment, because they would write into its folder."""
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
    command = processes.python("plinth_jobs.object_store", str(folder), str(port), object_store.BUCKET)
    log = folder / "s3.log"
    with log.open("wb") as stream:
        # boto3 settings are removed, so that the server does not send requests to itself
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
    """Create a demo root of trust, put MLflow behind the proxy's login, and return the secret of the proxy."""
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


def _shell(environment: dict[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))


def _welcome(folder: Path, front: Front) -> str:
    return (
        f"Dagster  {front.dagster}\nMLflow   {front.mlflow}\nCorpus   {front.corpus}\n"
        f"login    {front.person} {front.password}\n"
        f"trust    {folder / 'authority.pem'}\nuse      . {folder / ENVIRONMENT}   # then any plinth command\n"
        "Objects are in memory; everything is deleted when this command ends. Behind the proxy, on loopback:"
    )
