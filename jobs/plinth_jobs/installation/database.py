"""A PostgreSQL server in a folder: TLS only, each database with a role of its own that has a password.

Root lends it the distribution's user, since PostgreSQL refuses to run as root. The certificates of a trial are made
here: an authority, and one certificate for `localhost`. Keys stay in its folder.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from plinth import processes
from plinth.errors import MissingError, StorageError
from plinth.processes import free_port
from plinth.storage.atomic import write_bytes

VALID = timedelta(days=30)


class Certificate(NamedTuple):
    """Files in PEM: whom to trust, the server's certificate, and its private key (0600)."""

    authority: Path
    chain: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """An authority, whose key is not kept, and a certificate that it signs for `localhost`, valid for 30 days."""
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
    begins = datetime.now(UTC) - timedelta(hours=1)  # clocks differ
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
