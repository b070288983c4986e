"""A tag counts as a person's decision when the server saw their login, and only as theirs: a real MLflow server."""

from __future__ import annotations

import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from werkzeug.security import check_password_hash

from plinth.compute.context import Context
from plinth.errors import RegistryError, SignatureError
from plinth.storage import atomic, running
from plinth.storage.workspace import Workspace
from plinth_registry import api, approval, audit_log, decisions
from plinth_registry.audit_log import LOGINS
from plinth_registry.mlflow import connection, server, settings
from plinth_registry.mlflow import database as account_database
from plinth_registry.mlflow.settings import SIGNER
from tests.registry.login.conftest import ADA, BEN, EVE, Served, registered

pytestmark = pytest.mark.slow


def decide(served: Served, candidate: Any, how: dict[str, Any], value: str = "approved", tag: str = "approval") -> None:
    for key, given in ((tag, value), (f"{tag}.reason", "read the evidence")):
        answer = served.write(candidate, key, given, **how)
        assert answer.status_code == 200, answer.text


def gate(served: Served, line: Any) -> Any:
    (status,) = decisions.pending(served.ctx, line.recipe)
    return next(one for one in status.gates if one.name == "approvals")


def tags(served: Served, candidate: Any) -> dict[str, str]:
    return dict(connection.connect(served.ctx.workspace).get_model_version(candidate.model, candidate.version).tags)


def test_two_people_with_two_logins_release_and_one_does_not(served: Served, make_line: Any) -> None:
    line = make_line(people=2, two_person=True)
    candidate = registered(served, line, requested_by="carl@example.org")
    decide(served, candidate, served.by(ADA))
    decide(served, candidate, served.through(ADA), tag="approval.2")
    assert api.promote_if_approved(served.ctx, line.recipe) == ()
    assert gate(served, line).reason == f"1 of 2 approvals ({ADA})"
    decide(served, candidate, served.through(BEN), tag="approval.2")
    (record,) = api.promote_if_approved(served.ctx, line.recipe)
    assert [(one.by, one.how, one.proxy, one.key) for one in record.approvals] == [
        (ADA, "tag", SIGNER, ""),
        (BEN, "tag", SIGNER, ""),
    ]
    assert tags(served, candidate)["approval.by"] == ADA
    entries = [one for one in audit_log.entries(served.ctx) if candidate.key[:12] in one.subject]
    assert [(one.action, one.actor, one.by) for one in entries if one.action == "approve"] == [
        ("approve", SIGNER, ADA),
        ("approve", SIGNER, BEN),
    ]


@pytest.mark.exhaustive
def test_a_login_and_a_statement_are_two_people(served: Served, make_line: Any) -> None:
    line = make_line(people=2, two_person=True)
    candidate = registered(served, line, requested_by="carl@example.org")
    decisions.approve(served.ctx, line.recipe, None, BEN, "looked at it")
    decide(served, candidate, served.by(BEN))
    assert not gate(served, line).passed
    decide(served, candidate, served.by(ADA))
    assert gate(served, line).passed


def test_a_tag_written_into_the_database_or_by_the_administrator_is_a_request(
    served: Served, line: Any, candidate: Any
) -> None:
    written = {"approval": "approved", "approval.by": ADA, "approval.reason": "trust me"}
    with closing(sqlite3.connect(served.ctx.workspace.mlflow / "mlflow.db")) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(model_version_tags)")]
        for key, value in written.items():
            row = {"name": candidate.model, "version": int(candidate.version), "key": key, "value": value}
            row |= {"workspace": "default"} if "workspace" in columns else {}
            places = ", ".join("?" for _ in row)
            database.execute(f"INSERT INTO model_version_tags ({', '.join(row)}) VALUES ({places})", [*row.values()])
        database.commit()
    assert tags(served, candidate).items() >= written.items()
    client = connection.connect(served.ctx.workspace)
    for key, value in {"approval.2": "approved", "approval.2.by": BEN, "approval.2.reason": "I administer"}.items():
        client.set_model_version_tag(candidate.model, candidate.version, key, value)
    found = gate(served, line)
    assert not found.passed
    for person in (ADA, BEN):
        assert f"approval not counted: {person} (tag, without a signed login" in found.reason


#: A request that a browser sends from another site's page.
EVIL = {"Origin": "https://evil.example.org"}
#: Requests that a client without a login may send, and the answers.
NOBODY: list[tuple[dict[str, str], int]] = [
    ({}, 401),
    ({"X-Forwarded-Email": ADA}, 401),
    ({"X_Forwarded_Email": ADA}, 401),
    ({"X-Forwarded-Email": ADA, settings.SECRET_HEADER: "guessed"}, 403),
    ({"X-Forwarded-Email": ADA, settings.SECRET_HEADER: ""}, 401),
    ({"X-Forwarded-Email": ADA, "X_Forwarded_Email": BEN, settings.SECRET_HEADER: "right"}, 403),
    ({"X_Forwarded_Email": ADA, "X-Forwarded-Email": "stranger@example.org", settings.SECRET_HEADER: "right"}, 403),
    ({"X-Forwarded-Email": "stranger@example.org", settings.SECRET_HEADER: "right"}, 403),
    ({"X-Forwarded-Email": settings.ACCOUNT, settings.SECRET_HEADER: "right"}, 403),
    ({settings.SECRET_HEADER: "right"}, 403),
    ({"Authorization": "Basic YWRtaW46cGFzc3dvcmQxMjM0"}, 401),  # admin, with the password that MLflow once had
]


def test_nobody_is_somebody_by_saying_so(served: Served, candidate: Any) -> None:
    secret = settings.proxy_secret(served.ctx.workspace).decode()
    before = len(LOGINS.records(served.ctx))
    found = []
    for headers, _ in NOBODY:
        sent = {name: secret if value == "right" else value for name, value in headers.items()}
        found.append((headers, served.write(candidate, "approval", "approved", headers=sent).status_code))
    assert found == NOBODY
    elsewhere = served.write(candidate, "approval", "approved", auth=served.by(ADA)["auth"], headers=EVIL)
    assert elsewhere.status_code == 403
    assert "approval" not in tags(served, candidate)
    assert len(LOGINS.records(served.ctx)) == before
    proxied = {"headers": {"Origin": "https://mlflow.example.org"}} | served.by(ADA)
    assert served.write(candidate, "approval.reason", "seen", **proxied).status_code == 200


def test_a_person_speaks_for_nobody_else(served: Served, line: Any, candidate: Any) -> None:
    refused = served.write(candidate, "approval.by", BEN, **served.by(ADA))
    assert (refused.status_code, refused.json()["message"]) == (
        403,
        f"approval.by is set by the server: you are logged in as {ADA}",
    )
    decide(served, candidate, served.by(BEN), "rejected")
    decide(served, candidate, served.by(ADA))
    removal = {"name": candidate.model, "version": candidate.version, "key": "approval"}
    url = f"{served.uri}/api/2.0/mlflow/model-versions/delete-tag"
    assert requests.delete(url, json=removal, timeout=60, **served.by(ADA)).status_code == 403
    assert served.write(candidate, "approval", "withdrawn", **served.by(ADA)).status_code == 200
    assert f"rejected by {BEN}: read the evidence" in gate(served, line).reason
    (bens,) = approval.login_decisions(served.ctx, candidate)
    assert (bens.by, bens.decision) == (BEN, "rejected")
    for other in ({"version": "2"}, {"key": "0" * 64}):
        assert approval.login_decisions(served.ctx, candidate.model_copy(update=other)) == ()
    decide(served, candidate, served.by(BEN))
    assert gate(served, line).passed
    actions = [one.action for one in audit_log.entries(served.ctx) if candidate.key[:12] in one.subject]
    assert actions[-4:] == ["reject", "approve", "withdraw", "approve"]


def test_who_is_not_listed_is_refused_an_approval_and_rejects_in_vain(
    served: Served, line: Any, candidate: Any
) -> None:
    refused = served.write(candidate, "approval", "approved", **served.by(EVE))
    assert refused.status_code == 403
    assert f"{EVE} may not approve {line.recipe.release.name}" in refused.json()["message"]
    assert "approval" not in tags(served, candidate)
    last = audit_log.entries(served.ctx)[-1]
    assert (last.action, last.outcome, last.actor, last.by) == ("approve", "refused", SIGNER, EVE)
    decide(served, candidate, served.by(EVE), "rejected")
    decide(served, candidate, served.by(ADA), tag="approval.2")
    found = gate(served, line)
    assert found.passed
    said = f"rejection not counted: {EVE}: read the evidence (tag, who is not an approver of the policy)"
    assert said in found.reason


def test_a_policy_that_names_no_server_takes_no_tag(served: Served, make_line: Any) -> None:
    line = make_line(proxies=[])
    candidate = registered(served, line)
    refused = served.write(candidate, "approval", "approved", **served.by(ADA))
    assert refused.status_code == 403
    assert "does not accept approvals by tags through mlflow-login" in refused.json()["message"]


def test_a_removed_or_edited_statement_is_noticed(served: Served, line: Any, candidate: Any) -> None:
    decide(served, candidate, served.by(BEN), "rejected")
    newest = LOGINS.path(served.ctx, len(LOGINS.records(served.ctx)))
    content = newest.read_bytes()
    for torn in (None, content.replace(b"payload", b"payloaf", 1)):
        newest.unlink() if torn is None else newest.write_bytes(torn)
        with pytest.raises(SignatureError):
            approval.login_decisions(served.ctx, candidate)
        (status,) = decisions.pending(served.ctx, line.recipe)
        assert not status.ready
        assert status.error
        newest.write_bytes(content)
    assert not gate(served, line).passed


def test_secrets_stay_out_of_the_workspace_and_of_processes(served: Served) -> None:
    password = settings.password(served.ctx.workspace)
    place = settings.folder(served.ctx.workspace)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for name in (settings.SETTINGS, settings.AUTH, settings.SECRET, settings.PEOPLE):
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
    state = server.find_server(served.ctx.workspace)
    assert state is not None
    process = psutil.Process(state.pid)
    for text in (*process.environ().values(), *process.cmdline()):
        assert password not in text
    assert len(password) >= 32
    kept = [path for path in served.ctx.workspace.mlflow.rglob("*") if path.is_file()]
    assert not any(password.encode() in path.read_bytes() for path in kept)


def test_an_account_is_made_renewed_and_ended(served: Served, candidate: Any) -> None:
    workspace, dora = served.ctx.workspace, "dora@example.org"
    first = connection.add_person(workspace, dora, candidate.model)
    assert connection.add_person(workspace, dora, candidate.model) == ""
    second = connection.add_person(workspace, dora, candidate.model, renew=True)
    for password, status in ((first, 401), (second, 200)):
        assert served.write(candidate, "note", "read", auth=(dora, password)).status_code == status
    assert dora in connection.people(workspace)
    connection.remove_person(workspace, dora)
    assert served.write(candidate, "note", "again", auth=(dora, second)).status_code == 401
    with pytest.raises(RegistryError, match=f"refused 2.0/mlflow/users/delete for {dora}"):
        connection.remove_person(workspace, dora)
    with pytest.raises(RegistryError, match="the account of Plinth itself"):
        connection.add_person(workspace, settings.ACCOUNT, candidate.model)


def test_an_account_has_the_same_rows_with_and_without_a_server(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / settings.PEOPLE
    place.touch(mode=0o600)
    given, passwords = (served.ctx.workspace, "fay@example.org", "words-candidate"), {"served": "", "alone": ""}
    made = [connection.add_person(*given), connection.add_person(*given), connection.add_person(*given, renew=True)]
    passwords["served"] = made[2]
    assert [bool(password) for password in made] == [True, False, True]
    found = account(settings.folder(served.ctx.workspace) / settings.PEOPLE, given[1], passwords["served"])
    monkeypatch.setattr(connection, "_database", lambda _: place)
    monkeypatch.setattr(connection, "ensure_server", lambda _: pytest.fail("a server was started"))
    monkeypatch.setattr(connection, "without_server", lambda _: nullcontext(True))
    made = [connection.add_person(*given), connection.add_person(*given), connection.add_person(*given, renew=True)]
    assert [bool(password) for password in made] == [True, False, True]
    assert account(place, given[1], made[2]) == found
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert len(found["rows"]) == 1


def account(database: Path, person: str, password: str) -> dict[str, Any]:
    """The tables of accounts, and the rows of a person with this password."""
    asked = (
        "SELECT username, is_admin, password_hash, r.name = '__user_' || u.id || '__', workspace, description, "
        "resource_type, resource_pattern, permission FROM users u JOIN user_role_assignments a ON a.user_id = u.id "
        "JOIN roles r ON r.id = a.role_id JOIN role_permissions p ON p.role_id = r.id WHERE username = ?"
    )
    with closing(sqlite3.connect(database)) as opened:
        rows = opened.execute(asked, (person,)).fetchall()
        schema = sorted(opened.execute("SELECT type, name, sql FROM sqlite_master").fetchall())
        version = opened.execute("SELECT * FROM alembic_version_auth").fetchall()
    checked = [(*row[:2], check_password_hash(row[2], password), *row[3:]) for row in rows]
    return {"rows": checked, "schema": schema, "version": version}


def test_the_tables_of_another_mlflow_are_left_to_its_server(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "people.db")) as database:
        database.execute("CREATE TABLE alembic_version_auth (version_num)")
        database.execute("INSERT INTO alembic_version_auth VALUES ('newer')")
        database.commit()
    before = (tmp_path / "people.db").read_bytes()
    assert not account_database.write_account(
        tmp_path / "people.db", ADA, "secret", ("registered_model", "words"), "EDIT"
    )
    assert (tmp_path / "people.db").read_bytes() == before


def test_accounts_that_are_made_at_once_are_all_there(tmp_path: Path) -> None:
    """By two workspaces with one trust folder: the first makes the tables, and nothing takes the place of its file."""
    path, people = tmp_path / "people.db", [f"person-{number}" for number in range(3)]
    path.touch(mode=0o600)
    place = path.stat().st_ino
    with ThreadPoolExecutor() as pool:
        given = ("secret", ("registered_model", "words"), "EDIT")
        assert all(pool.map(lambda person: account_database.write_account(path, person, *given), people))
    with closing(sqlite3.connect(path)) as opened:
        assert sorted(opened.execute("SELECT username FROM users")) == [(person,) for person in people]
    assert path.stat().st_ino == place


def test_no_account_is_sent_to_another_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other.example.org")
    monkeypatch.setattr(server, "healthy", lambda _: True)
    monkeypatch.setattr(connection.Server, "request", lambda *_: pytest.fail("a password was sent"))
    with pytest.raises(RegistryError, match="accounts exist only on the workspace's own MLflow server"):
        connection.add_person(served.ctx.workspace, ADA, "words-candidate", renew=True)


def test_an_account_is_made_without_a_server_only_while_none_can_start(served: Served, tmp_path: Path) -> None:
    with server.without_server(served.ctx.workspace) as alone:
        assert not alone
    other = Workspace(tmp_path / "workspace").ensure()
    with server.without_server(other) as alone:
        assert alone
        assert atomic.held(running.folder(other) / "mlflow.lock")


def test_the_password_goes_to_the_own_server_only(served: Served, ctx: Context) -> None:
    connection.connect(ctx.workspace)
    host = served.uri.removeprefix("http://")
    urls = {f"{served.uri}/api": True, f"http://example.org/{host}/": False}
    for url, known in urls.items():
        prepared = requests.Request("GET", url).prepare()
        assert ("Authorization" in connection._authenticated(prepared).headers) is known
