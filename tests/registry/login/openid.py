"""An OpenID Connect provider on loopback, at which the test chooses the user, and an Apache that uses it.

The provider does what a client needs of one: discovery, keys, codes that are used once, ID tokens (RS256).
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import requests
from cryptography.hazmat.primitives.asymmetric import rsa

ROOT = Path(__file__).resolve().parents[3]
MODULES = Path("/usr/lib/apache2/modules")
LOADED = ("mpm_event", "authn_core", "authz_core", "authz_user", "headers", "proxy", "proxy_http", "auth_openidc")
CLIENT = "plinth"


class Provider:
    """Signs people in without asking. `person` is who signs in next; `key` signs the tokens."""

    def __init__(self) -> None:
        self.published = rsa.generate_private_key(65537, 2048)
        self.key, self.person = self.published, ""
        self.codes: dict[str, dict[str, Any]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def metadata(self) -> dict[str, Any]:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        kinds = {"response_types_supported": ["code"], "id_token_signing_alg_values_supported": ["RS256"]}
        methods = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
        found = {name: f"{self.url}/{path}" for name, path in places.items()}
        return {"issuer": self.url, "subject_types_supported": ["public"]} | found | kinds | methods

    def keys(self) -> dict[str, Any]:
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self.published.public_key(), as_dict=True)
        return {"keys": [key | {"kid": "1", "use": "sig", "alg": "RS256"}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser goes next, with a code."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = {"nonce": asked["nonce"], "email": self.person, "sub": self.person}
        return f"{asked['redirect_uri']}?{urllib.parse.urlencode({'code': code, 'state': asked['state']})}"

    def token(self, asked: dict[str, str]) -> dict[str, Any]:
        """The ID token of a code."""
        now = int(time.time())
        claims = self.codes.pop(asked["code"]) | {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300}
        signed = jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "1"})
        return {"access_token": secrets.token_urlsafe(8), "token_type": "Bearer", "id_token": signed}


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.authorize(dict(urllib.parse.parse_qsl(query))))
                self.end_headers()
            else:
                self._json(provider.keys() if path == "/keys" else provider.metadata())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._json(provider.token(dict(urllib.parse.parse_qsl(body))))

        def _json(self, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def running() -> Iterator[Provider]:
    """A provider that answers."""
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        thread.join()
        provider.server.server_close()


@contextmanager
def apache(folder: Path, provider: Provider, mlflow: str, secret: str) -> Iterator[str]:
    """Apache with the settings of infra/oidc, in a folder; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    origin = f"http://127.0.0.1:{port}"
    loaded = [f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in LOADED]
    own = [f"ServerRoot {folder}", "ServerName 127.0.0.1", f"Listen 127.0.0.1:{port}", f"PidFile {folder}/pid"]
    own += [f"ErrorLog {folder}/error.log", "LogLevel warn", f"Include {ROOT}/infra/oidc/mlflow.conf"]
    (folder / "apache.conf").write_text("\n".join([*loaded, *own, ""]))
    given = {"PLINTH_ORIGIN": origin, "PLINTH_MLFLOW": mlflow, "PLINTH_PROXY_SECRET": secret}
    given |= {"OIDC_METADATA": f"{provider.url}/.well-known/openid-configuration", "OIDC_CLIENT": CLIENT}
    given |= {"OIDC_CLIENT_SECRET": secrets.token_hex(8), "OIDC_PASSPHRASE": secrets.token_hex(8)}
    program = ["/usr/sbin/apache2", "-f", str(folder / "apache.conf"), "-D", "FOREGROUND"]
    process = subprocess.Popen(program, env=os.environ | given)
    try:
        _await(origin, process, folder / "error.log")
        yield origin
    finally:
        process.terminate()
        process.wait(timeout=60)


def _await(origin: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            requests.get(origin, timeout=60, allow_redirects=False)
        except requests.ConnectionError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"Apache did not start: {log.read_text() if log.exists() else 'no log'}")
