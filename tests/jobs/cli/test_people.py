"""`plinth ops people`: a login needs the server's own key, and is asked for or not by one command."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from plinth.storage.workspace import Workspace
from plinth_jobs.cli import cli
from plinth_registry.mlflow import settings
from tests.registry.login.conftest import enrol_server


def run(workspace: Workspace, *words: str) -> Result:
    return CliRunner().invoke(cli, ["ops", "people", words[0], "-w", str(workspace.root), *words[1:]])


def authenticator(workspace: Workspace) -> str:
    """Return MLflow's setting for the function that authenticates the user of a request."""
    parser = configparser.ConfigParser()
    parser.read(settings.folder(workspace) / settings.AUTH)
    return parser["mlflow"]["authorization_function"]


@pytest.fixture
def workspace(tmp_path: Path, own_trust: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").ensure()


def test_a_login_is_asked_for_and_not_any_more(workspace: Workspace) -> None:
    refused = run(workspace, "login")
    assert "mlflow-login has no key as approver" in str(refused.exception)
    assert settings.load(workspace) is None
    enrol_server(workspace)
    asked = run(workspace, "login", "--behind-proxy", "--header", "X-Forwarded-User", "--origin", "https://ml.example")
    assert asked.exit_code == 0, asked.output
    found = settings.load(workspace)
    assert found is not None
    assert (found.kind, found.header, found.origin) == ("proxy", "X-Forwarded-User", "https://ml.example")
    password, secret = settings.password(workspace), settings.proxy_secret(workspace)
    assert authenticator(workspace) == "plinth_registry.mlflow.login:authenticate"
    assert run(workspace, "login").exit_code == 0
    assert authenticator(workspace) == "mlflow.server.auth:authenticate_request_basic_auth"  # which reads no header
    assert (settings.password(workspace), settings.proxy_secret(workspace)) == (password, secret)
    assert run(workspace, "list").output == ""
    assert run(workspace, "list", "--json").output == "[]\n"
    assert run(workspace, "login", "--off").output == "MLflow authentication is now disabled\n"
    assert settings.load(workspace) is None


@pytest.mark.parametrize("wrong", [("--header", "X: y"), ("--origin", "javascript:alert(1)"), ("--signer", "")])
def test_settings_that_are_none_are_refused_by_name(workspace: Workspace, wrong: Any) -> None:
    refused = run(workspace, "login", *wrong)
    assert refused.exit_code != 0
    assert wrong[0].strip("-") in refused.output
    assert settings.load(workspace) is None


def test_without_a_login_there_are_no_accounts(workspace: Workspace) -> None:
    assert "authentication is disabled" in str(run(workspace, "remove", "ada@example.org").exception)


def test_damaged_settings_start_no_server_without_a_login(workspace: Workspace) -> None:
    enrol_server(workspace)
    settings.ask(workspace, settings.LoginSettings())
    (settings.folder(workspace) / settings.SETTINGS).write_text("{")
    assert "the login settings are damaged" in str(run(workspace, "remove", "ada@example.org").exception)
