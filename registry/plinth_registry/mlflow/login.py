"""Authentication in the process of an MLflow server, and decisions by logged-in people.

MLflow's own login app checks passwords and permissions. Two hooks run after this check. Before an approval tag is
written, a tag that would be ignored is refused with the reason. After a tag was written, the server signs a statement
about its author. Behind a reverse proxy, the proxy's header names the person. The header counts only with the shared
secret: a client that sends the header itself is not authenticated.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from plinth.compute.context import Context
from plinth.errors import GateError, PlinthError, SignatureError, TrustError
from plinth.storage.workspace import Workspace
from plinth_registry import approval, audit_log, candidate, policy
from plinth_registry.audit_log import AuditedAction
from plinth_registry.candidate import Candidate
from plinth_registry.gates.facts import Approval
from plinth_registry.mlflow import settings
from plinth_registry.mlflow.settings import LoginSettings

CONFIGURED = "PLINTH_LOGIN"
SET, DELETE = "/mlflow/model-versions/set-tag", "/mlflow/model-versions/delete-tag"
FORBIDDEN, FAILED = 403, 500


class TagChange(NamedTuple):
    """Request to write a tag that is part of a decision. `value` is empty if the tag is removed."""

    model: str
    version: str
    tag: str
    value: str


def create_app(root: Path) -> Any:
    """Create MLflow's app with its login for the workspace at `root`. The database and the environment must be prepared
    before the call.

    Raises:
        SignatureError: the settings are damaged.
    """
    workspace = Workspace(root)
    login = settings.load(workspace)
    assert login is not None, "started without login settings"
    os.environ["MLFLOW_FLASK_SERVER_SECRET_KEY"] = secrets.token_hex(32)
    from mlflow.server import app, auth

    app.config[CONFIGURED] = (login, settings.proxy_secret(workspace))
    made = auth.create_app(app)
    app.before_request(partial(_refuse, Context(workspace), login))
    app.after_request(partial(_vouch, Context(workspace), login))
    return made


def authenticate() -> Any:
    """Return the person who sent a request through a reverse proxy, or an error response. MLflow calls this function as
    its `authorization_function`.

    A request without the proxy's secret is checked by its password, for Plinth's own account.
    """
    from flask import current_app, request
    from mlflow.server import auth
    from werkzeug.datastructures import Authorization

    login, secret = current_app.config[CONFIGURED]
    shown, person = request.headers.get(settings.SECRET_HEADER, ""), request.headers.get(login.header, "").strip()
    if not shown:
        return auth.authenticate_request_basic_auth()
    # A duplicate header, one of them past the proxy, is joined with a comma, which matches no account.
    if not hmac.compare_digest(shown.encode(), secret) or not auth.store.has_user(person):
        return auth.make_forbidden_response()
    if auth.store.get_user(person).is_admin:
        return auth.make_forbidden_response()
    return Authorization("basic", {"username": person, "password": ""})


def _change() -> TagChange | None:
    """Return the change of a decision's tag in the current request, or None if the request changes no such tag."""
    from flask import request

    given = request.get_json(force=True, silent=True) if request.path.endswith((SET, DELETE)) else None
    if isinstance(given, str):  # MLflow decodes the JSON of older clients twice
        given = _decoded(given)
    if not isinstance(given, dict) or not approval.WRITTEN.fullmatch(str(given.get("key"))):
        return None
    value = given.get("value", "") if request.path.endswith(SET) else ""
    return TagChange(str(given.get("name")), str(given.get("version")), str(given["key"]), str(value))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _person() -> str:
    from flask import g

    return str(g.get("mlflow_authenticated_user", ""))


def _refuse(ctx: Context, login: LoginSettings) -> Any:
    """Return an error response if a tag must not be written. The tag names another person, or it is an approval that
    the policy would ignore."""
    change, person = _change(), _person()
    if change is None or not person or person == settings.ACCOUNT:
        return None
    if change.tag.endswith(".by") and change.value.strip() not in ("", person):
        return _answer(FORBIDDEN, f"{change.tag} is set by the server: you are logged in as {person}")
    if not approval.TAG.fullmatch(change.tag) or change.value.strip().lower() != "approved":
        return None
    asked = AuditedAction("approve", f"{change.model} version {change.version}", person, owner=login.signer)
    try:
        _require_counted(ctx, login, person, change.model)
    except TrustError as error:
        audit_log.record(ctx, asked, error.what)
        return _answer(FORBIDDEN, str(error))
    return None


def _require_counted(ctx: Context, login: LoginSettings, person: str, model: str) -> None:
    release = model.removesuffix(candidate.SUFFIX)
    asked = policy.current(ctx, release).policy.approvals
    if "tag" not in asked.accepted or login.signer not in asked.proxies:
        raise GateError(
            f"the policy of {release} does not accept approvals by tags through {login.signer}",
            expected="`tag` in approvals.accepted, and the signer of the login in approvals.proxies",
            remedy="sign the approval with `plinth approve`",
        )
    if person not in asked.approvers:
        raise GateError(f"{person} may not approve {release}", expected=f"one of {', '.join(asked.approvers)}")


def _vouch(ctx: Context, login: LoginSettings, response: Any) -> Any:
    """Sign a statement about the author of a tag after the tag was written. If signing fails, the response reports it,
    and the tag is only a request."""
    change, person = _change(), _person()
    if response.status_code != 200 or change is None or not person or person == settings.ACCOUNT:
        return response
    try:
        _state(ctx, login, person, change)
    except PlinthError as error:
        return _answer(FAILED, f"the tag was written but is not counted: {error}")
    return response


def _state(ctx: Context, login: LoginSettings, person: str, change: TagChange) -> None:
    from mlflow.server.handlers import _get_model_registry_store

    if change.tag.endswith(".by"):
        return
    store: Any = _get_model_registry_store()
    version = store.get_model_version(change.model, change.version)
    if "candidate" not in version.tags:
        return
    if version.tags.get(change.tag, "") != change.value:
        raise SignatureError(f"another value was written to the tag {change.tag}", found=version.tags.get(change.tag))
    about, release = candidate.read(ctx, version), change.model.removesuffix(candidate.SUFFIX)
    before = _decided(ctx, about, login, person)
    governing = policy.governing(ctx, release)
    approval.write_login(ctx, about, login.signer, person, change.tag, change.value, governing)
    if approval.TAG.fullmatch(change.tag) and change.value:
        _name(store, change, person)
    after = _decided(ctx, about, login, person)
    if after != before:
        _record(ctx, about, login, person, after)


def _name(store: Any, change: TagChange, person: str) -> None:
    """Write the author of a decision as a tag, which MLflow shows on the version's page."""
    from mlflow.entities import model_registry

    tag: Any = model_registry.ModelVersionTag
    store.set_model_version_tag(change.model, change.version, tag(f"{change.tag}.by", person))


def _decided(ctx: Context, about: Candidate, login: LoginSettings, person: str) -> Approval | None:
    mine = (one for one in approval.login_decisions(ctx, about) if (one.by, one.proxy) == (person, login.signer))
    return next(mine, None)


def _record(ctx: Context, about: Candidate, login: LoginSettings, person: str, decided: Approval | None) -> None:
    """Record a decision, or the withdrawal of a decision, in the audit log with the server as actor."""
    actions = {"approved": "approve", "rejected": "reject"}
    action = actions[decided.decision] if decided else "withdraw"
    reason = decided.reason if decided else "the tag was removed or changed"
    audit_log.record(ctx, AuditedAction(action, about.title, person, reason, owner=login.signer))


def _answer(status: int, message: str) -> Any:
    from flask import jsonify

    kind = "PERMISSION_DENIED" if status == FORBIDDEN else "INTERNAL_ERROR"
    response = jsonify({"error_code": kind, "message": message})
    response.status_code = status
    return response
