"""One real MLflow server that asks for a login, by password and behind a proxy, with a root of trust of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from plinth.compute.context import Context
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import enrolment
from plinth.trust.dsse import APPROVER
from plinth_registry import api
from plinth_registry.candidate import Candidate
from plinth_registry.mlflow import connection, server, settings
from plinth_registry.mlflow.settings import SIGNER, LoginSettings
from tests.registry.conftest import Line

ADA, BEN, EVE = "ada@example.org", "ben@example.org", "eve@example.org"


class Served(NamedTuple):
    """The workspace, its server's address, and everybody's password."""

    ctx: Context
    uri: str
    passwords: dict[str, str]
    trust: Path

    def write(self, version: Any, tag: str, value: str, /, **how: Any) -> requests.Response:
        """Set a tag of a model version; `how` holds the credentials."""
        body = {"name": version.model, "version": version.version, "key": tag, "value": value}
        return requests.post(f"{self.uri}/api/2.0/mlflow/model-versions/set-tag", json=body, timeout=60, **how)

    def by(self, person: str) -> dict[str, Any]:
        """A login by password."""
        return {"auth": (person, self.passwords[person])}

    def through(self, person: str, secret: str | None = None) -> dict[str, Any]:
        """A request that a reverse proxy passes on."""
        shown = settings.proxy_secret(self.ctx.workspace).decode() if secret is None else secret
        return {"headers": {"X-Forwarded-Email": person, settings.SECRET_HEADER: shown}}


def enrol_server(workspace: Workspace) -> None:
    """Make and enroll the key of the server."""
    enrolment.enrol(workspace, APPROVER, SIGNER, enrolment.new_key(workspace.trust_folder, APPROVER, SIGNER))


@contextmanager
def own_environment(trust: Path) -> Iterator[None]:
    """The root of trust of this server, and no other server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(trust))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("MLFLOW_TRACKING_AUTH", "")
        yield


@pytest.fixture(scope="session")
def login_server(trust_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("login")
    trust = shutil.copytree(trust_folder, folder / "trust", ignore=shutil.ignore_patterns("seen.json", ".*"))
    workspace = Workspace(folder / "workspace").ensure()
    with own_environment(trust):
        enrol_server(workspace)
        settings.ask(workspace, LoginSettings(kind="proxy", origin="https://mlflow.example.org"))
        uri = server.ensure_server(workspace)
    yield Served(Context(workspace), uri, {}, trust)
    with own_environment(trust):
        server.stop_server(workspace)


@pytest.fixture
def served(login_server: Served) -> Iterator[Served]:
    with own_environment(login_server.trust):
        yield login_server


@pytest.fixture
def candidate(served: Served, line: Line) -> Candidate:
    return registered(served, line)


def registered(served: Served, line: Line, **facts: object) -> Candidate:
    """A candidate, registered with Plinth's own account, whose tags everyone with an account may set."""
    given = line.recipe, line.checkpoint, line.evaluation, line.run, line.facts(**facts)
    found, _ = api.register_candidate(served.ctx, *given, materials=line.materials)
    for person in (ADA, BEN, EVE):
        served.passwords[person] = (
            connection.add_person(served.ctx.workspace, person, found.model) or served.passwords[person]
        )
    return found


@pytest.fixture
def ctx(served: Served) -> Context:
    return served.ctx


@pytest.fixture
def make_line(make_line: Callable[..., Any]) -> Callable[..., Any]:
    """Lines whose policy names the server and two people."""

    def make(seed: int = 1, **approvals: object) -> Any:
        return make_line(seed, **{"proxies": [SIGNER], "approvers": [ADA, BEN], **approvals})

    return make
