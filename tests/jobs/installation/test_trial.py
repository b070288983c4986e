"""A whole installation on this machine: PostgreSQL, S3, TLS and logins, real programs each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from plinth.storage.state import State
from plinth.storage.workspace import Workspace, folder_of
from plinth_jobs import installation, object_store
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE, ROOT, digests, plinth


def services_only(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a command: this one's with that of the services over it."""
    return {**os.environ, **environment}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """PostgreSQL and S3 in a folder, named by this process's environment."""
    pytest.importorskip("moto.server")
    with tempfile.TemporaryDirectory(prefix="plinth-full-") as name:
        Path(name).chmod(0o711)
        with installation.services(Path(name)) as environment:
            for variable, value in environment.items():
                monkeypatch.setenv(variable, value)
            yield environment


def test_certificates_prove_localhost_and_nothing_else(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    made, other = installation.make_certificate(tmp_path), installation.make_certificate(tmp_path / "other")
    server = x509.load_pem_x509_certificate(made.chain.read_bytes())

    def verified(authority: Path, host: str) -> None:
        trusted = Store([x509.load_pem_x509_certificate(authority.read_bytes())])
        builder = PolicyBuilder().store(trusted).time(datetime.now(UTC).replace(tzinfo=None))
        builder.build_server_verifier(x509.DNSName(host)).verify(server, [])

    verified(made.authority, "localhost")
    for authority, host in ((made.authority, "plinth.example"), (other.authority, "localhost")):
        with pytest.raises(VerificationError):
            verified(authority, host)
    assert made.key.stat().st_mode & 0o777 == 0o600


@pytest.mark.exhaustive
@pytest.mark.needs("PostgreSQL")
def test_postgres_speaks_tls_to_each_database_s_own_role(running: dict[str, str]) -> None:
    import psycopg2

    for name in ("dagster", "mlflow", "ledger"):
        with contextlib.closing(psycopg2.connect(f"postgresql://{name}@/{name}")) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            assert cursor.fetchall() == [(True,)]
    for refused, why in {
        "postgresql://mlflow@/ledger": "permission denied",
        "postgresql://mlflow@/mlflow?sslmode=disable": "no encryption",
        "postgresql://mlflow:guessed@/mlflow": "password authentication failed",
        "postgresql://mlflow@/mlflow?host=127.0.0.2": "127.0.0.2",
    }.items():
        with pytest.raises(psycopg2.OperationalError, match=why):
            psycopg2.connect(refused)


@pytest.mark.exhaustive
@pytest.mark.needs("PostgreSQL")
def test_the_same_recipe_makes_the_same_digests_as_on_one_machine(
    running: dict[str, str], trained: Path, tmp_path: Path
) -> None:
    from plinth.storage.objects import client

    sources = tiny_corpus.write(tmp_path / "sources")
    for path in filter(Path.is_file, sources.rglob("*")):
        key = f"{object_store.PREFIX}/input/{path.relative_to(sources).as_posix()}"
        client().put_object(Bucket=object_store.BUCKET, Key=key, Body=path.read_bytes())
    where, environment = running["PLINTH_WORKSPACE"], services_only(running)
    try:
        plinth(where, "keys", "init", "--demo", env=environment)
        plinth(where, "run", "-r", RECIPE, "--select", "evaluation", "--workers", "1", env=environment)
        state = State(Workspace(folder_of(where)))
        expected = digests(trained)
        del expected["funnel"]  # asked for there; the evaluation does not need it
        assert {ref.asset: ref.digest for ref in state.refs.all()} == expected
        _require_used(running)
        _require_restorable(where, tmp_path / "backup", environment)
    finally:
        plinth(where, "down", env=environment, check=False)


def _require_used(environment: dict[str, str]) -> None:
    """Check that Dagster, MLflow and the ledger wrote to PostgreSQL, that artifacts went to S3, and that no file
    replaces them."""
    import psycopg2

    from plinth.storage.objects import client

    for name, table in {"dagster": "runs", "mlflow": "metrics", "ledger": "reservations"}.items():
        with contextlib.closing(psycopg2.connect(f"postgresql://{name}@/{name}")) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
            assert table in {found for (found,) in cursor.fetchall()}
            cursor.execute(f"SELECT count(*) FROM {table}")
            assert cursor.fetchall()[0][0] > 0, name
    found = client().list_objects_v2(Bucket=object_store.BUCKET, Prefix="workspace/refs/")
    assert found["KeyCount"] > 10
    files = {path.name for path in Path(environment["PLINTH_CACHE"]).glob("**/*.sqlite")}
    assert files <= {"source-digests.sqlite"}  # which file had which digest when this machine read it
    assert not list(Path(environment["PLINTH_CACHE"]).glob("**/*.db"))


def _require_restorable(where: str, place: Path, environment: dict[str, str]) -> None:
    """A backup has the three databases, and the drill puts them into another server, row for row."""
    plinth(where, "ops", "backup", "to", place, env=environment)
    found = json.loads(plinth(where, "ops", "backup", "drill", place, "--json", env=environment).stdout)
    assert [one for one in found if not one["passed"]] == []
    rows = {one["what"]: one["found"] for one in found if one["what"].startswith("database ")}
    assert set(rows) == {"database dagster", "database mlflow", "database ledger"}
    assert all(int(text.split()[0]) > 0 for text in rows.values())


@pytest.mark.exhaustive
@pytest.mark.needs("PostgreSQL")
@pytest.mark.needs("Apache")
def test_up_full_asks_for_a_login_over_tls_and_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "plinth_jobs.cli",
        "up",
        "--full",
        "-r",
        str(RECIPE),
        "--dagster-port",
        str(port()),
    ]
    command += ["--pages-port", str(port())]
    environment = {**os.environ, "TMPDIR": "/tmp"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        try:
            found = dict(re.findall(r"^(Dagster|MLflow|Corpus|login|trust) +(.*)$", said.partition("Behind")[0], re.M))
            account, folder = tuple(found["login"].split()), Path(found["trust"]).parent
            search = "/api/2.0/mlflow/experiments/search?max_results=1"
            for name, path in (("Dagster", "/server_info"), ("MLflow", search), ("Corpus", "/static/page.css")):
                address = found[name] + path
                assert requests.get(address, verify=found["trust"], timeout=60).status_code == 401
                wrong = (account[0], "guessed")
                assert requests.get(address, auth=wrong, verify=found["trust"], timeout=60).status_code == 401
                with pytest.raises(requests.exceptions.SSLError):
                    requests.get(address, auth=account, timeout=60)
                assert _answered(address, account, found["trust"])
            plain = found["Dagster"].replace("https", "http")
            assert requests.get(plain, timeout=60).status_code == 400
            assert json.loads((folder / "accounts.json").read_bytes()).keys() >= {"trainer", "backup", "reader"}
            assert (folder / "environment").stat().st_mode & 0o077 == 0
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=300)
    assert not folder.exists()


def _answered(address: str, account: tuple[str, ...], trust: str) -> bool:
    """Return True if the pages answer, which takes Dagster a while."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if requests.get(address, auth=(account[0], account[1]), verify=trust, timeout=60).status_code == 200:
            return True
        time.sleep(1)
    return False


def port() -> int:
    from plinth.processes import free_port

    return free_port()
