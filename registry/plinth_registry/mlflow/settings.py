"""Login settings of a workspace's MLflow server, stored outside the workspace, in the trust folder.

<trust folder>/login/            mode 700, its files 600
    settings.json                kind, key of the server, header, public address
    basic_auth.ini               MLflow's login settings, with the password of Plinth's own account
    people.db                    accounts, with hashes of passwords, written by MLflow
    proxy-secret                 secret with which a reverse proxy authenticates its requests
"""

from __future__ import annotations

import configparser
import hashlib
import io
import secrets
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.trust.dsse import APPROVER
from plinth.trust.root import Trust

#: Administrator account of Plinth itself; no policy should list it.
ACCOUNT: Final = "plinth"
#: Header with the secret of the reverse proxy.
SECRET_HEADER: Final = "X-Plinth-Proxy"
SIGNER: Final = "mlflow-login"
FOLDER, SETTINGS, AUTH, PEOPLE, SECRET = "login", "settings.json", "basic_auth.ini", "people.db", "proxy-secret"


class LoginSettings(Frozen):
    """Login method of an MLflow server, and the owner of the server's signing key."""

    kind: Literal["password", "proxy"] = "password"
    signer: str = Field(SIGNER, min_length=1, description="Owner of the server's key for the role `approver`.")
    header: str = Field(
        "X-Forwarded-Email",
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        description="Header in which the proxy names the person.",
    )
    origin: str = Field("", pattern=r"^(https?://[A-Za-z0-9.:-]+)?$", description="Public address of a proxy.")


def folder(workspace: Workspace) -> Path:
    """Return the folder with all settings, accounts and secrets of the login."""
    return workspace.trust_folder / FOLDER


def load(workspace: Workspace) -> LoginSettings | None:
    """Return the login settings of this workspace's server, or None if the server requires no login.

    Raises:
        SignatureError: the settings file is damaged. A server without a login is not started instead.
    """
    path = folder(workspace) / SETTINGS
    try:
        return LoginSettings.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise SignatureError(
            f"the login settings are damaged: {path}",
            found=error,
            remedy="write new settings with `plinth ops people login`",
        ) from error


def identity(workspace: Workspace) -> str:
    """Return a digest of the login settings, or an empty string if no login is required. If a running server has a
    different digest, it is replaced."""
    try:
        return hashlib.sha256((folder(workspace) / SETTINGS).read_bytes()).hexdigest()[:12]
    except FileNotFoundError:
        return ""


def environment(workspace: Workspace) -> dict[str, str]:
    """Return the environment variables with login settings, which MLflow reads when it is imported. None of them is
    secret.

    MLflow refuses requests to host names other than its own, and requests that a browser sends from another site. The
    public address of a proxy counts as MLflow's own.

    Raises:
        SignatureError: the settings are damaged.
    """
    known = load(workspace)
    if known is None:
        return {}
    found = {"MLFLOW_AUTH_CONFIG_PATH": str(folder(workspace) / AUTH)}
    if known.origin:
        hosts = ("localhost:*", "127.0.0.1:*", known.origin.partition("://")[2])
        found["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = known.origin
        found["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join(hosts)
    return found


def ask(workspace: Workspace, given: LoginSettings) -> Path:
    """Write the settings with which the server requires a login after its next start. Existing accounts and secrets are
    kept.

    Returns:
        The folder with the files of the login.

    Raises:
        SignatureError: the server's signing key (`approver`) is not on this machine.
    """
    Trust.of(workspace).signer(APPROVER, given.signer)
    place = folder(workspace)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(place / AUTH, _auth(place, given).encode(), mode=0o600)
    (place / PEOPLE).touch(mode=0o600)
    if not (place / SECRET).exists():
        write_bytes(place / SECRET, secrets.token_urlsafe(32).encode(), mode=0o600)
    write_bytes(place / SETTINGS, given.model_dump_json(indent=1).encode(), mode=0o600)
    return place


def stop_asking(workspace: Workspace) -> bool:
    """Remove the login settings, so that the server requires no login after its next start. Accounts are kept. Return
    True if a login was required before."""
    path = folder(workspace) / SETTINGS
    asked = path.exists()
    path.unlink(missing_ok=True)
    return asked


def password(workspace: Workspace) -> str:
    """Return the password of Plinth's own account.

    Raises:
        SignatureError: the account has no password on this machine.
    """
    known = _known(folder(workspace))
    if not known:
        raise SignatureError(
            f"the account {ACCOUNT} has no password in {folder(workspace) / AUTH}",
            remedy="restore the file, or move the folder away and run `plinth ops people login`",
        )
    return known


def proxy_secret(workspace: Workspace) -> bytes:
    """Return the secret that a reverse proxy sends in `SECRET_HEADER`."""
    return (folder(workspace) / SECRET).read_bytes().strip()


def _auth(place: Path, given: LoginSettings) -> str:
    """Return the text of MLflow's login settings file. The password has 256 random bits, because MLflow has no default
    password."""
    function = {"password": "mlflow.server.auth:authenticate_request_basic_auth"}
    content = {
        "default_permission": "READ",
        "database_uri": f"sqlite:///{place / PEOPLE}",
        "admin_username": ACCOUNT,
        "admin_password": _known(place) or secrets.token_urlsafe(32),
        # A password is hashed once a minute; this one process forgets it at once when it is changed through it.
        "auth_cache_ttl_seconds": "60",
        "authorization_function": function.get(given.kind, "plinth_registry.mlflow.login:authenticate"),
    }
    parser, text = configparser.ConfigParser(), io.StringIO()
    parser["mlflow"] = {key: value.replace("%", "%%") for key, value in content.items()}
    parser.write(text)
    return text.getvalue()


def _known(place: Path) -> str:
    parser = configparser.ConfigParser()
    parser.read(place / AUTH)
    return parser.get("mlflow", "admin_password", fallback="")
