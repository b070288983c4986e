"""Access to the corpus page: readers, reviewers who label, and editors who save rules.

On loopback, only the user who runs the server may connect; other users of the machine are refused. Behind a proxy that
`plinth ops people login --behind-proxy` describes, every person whom the proxy names may read and label, and only the
named editors may change the recipe. Requests of other sites are refused (`RequestGuard`), and every write needs the
token of a page of this server.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import os
import secrets
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request

from plinth.errors import RequestError, SignatureError
from plinth.storage.workspace import Workspace
from plinth_extras.corpus_page import HOST
from plinth_registry.mlflow import settings

#: Table of this machine's TCP connections with the user of each; it does not exist outside of Linux.
CONNECTIONS: Final = Path("/proc/net/tcp")
_REMEDY: Final = "the user who runs the server, or a proxy with a login, must send the request"


@dataclass(frozen=True)
class Person:
    """Person who sent a request."""

    name: str
    may_edit: bool


@dataclass(frozen=True)
class Access:
    """Rules of access to one server.

    Args:
        secret, header: secret of the proxy, and the header with the person's name; empty without a proxy.
        editors: people who may save thresholds behind a proxy.
    """

    port: int
    secret: bytes = b""
    header: str = ""
    editors: frozenset[str] = frozenset()
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @classmethod
    def of(cls, workspace: Workspace, port: int, origins: tuple[str, ...], editors: tuple[str, ...]) -> Access:
        """Return the rules of a workspace's login settings.

        Raises:
            RequestError: a public address is given, but no login by a proxy is set up.
            SignatureError: the settings or the proxy's secret are damaged or missing.
        """
        known = settings.load(workspace)
        if known is None or known.kind != "proxy":
            if origins or editors:
                raise RequestError(
                    "the corpus page needs a proxy with a login to be reached from other machines",
                    found="no login by a proxy",
                    remedy="set one up with `plinth ops people login --behind-proxy`",
                )
            return cls(port)
        try:
            secret = (settings.folder(workspace) / settings.SECRET).read_bytes().strip()
        except OSError as error:
            raise SignatureError("the proxy's secret cannot be read", found=error) from error
        return cls(port, secret, known.header, frozenset(editors))

    def person(self, request: Request) -> Person:
        """Return the person who sent a request.

        Raises:
            SignatureError: the request did not come through the proxy, or another user of this machine sent it.
        """
        if self.secret:
            given = request.headers.get(settings.SECRET_HEADER, "").encode()
            name = request.headers.get(self.header, "").strip()
            if not hmac.compare_digest(given, self.secret) or not name:
                raise SignatureError("the request did not come through the proxy", remedy=_REMEDY)
            return Person(name[:200], name in self.editors)
        if request.client is not None and not self._is_own(*request.client):
            raise SignatureError("another user of this machine sent the request", remedy=_REMEDY)
        return Person(getpass.getuser(), True)

    def _is_own(self, host: str, port: int) -> bool:
        """Return True if the connection from an address to this server belongs to this user.

        The kernel lists a closed socket under root, so root counts only if it runs the server. Addresses are compared
        with their hosts, because another user can connect from a port of this user at another address, such as
        127.0.0.2.
        """
        try:
            rows = CONNECTIONS.read_text().splitlines()[1:]
        except FileNotFoundError:
            return True
        ends = _listed(host, port), _listed(HOST, self.port)
        users = (row[7] for row in map(str.split, rows) if (row[1], row[2]) == ends)
        return next(users, None) == str(os.getuid())

    def token(self, person: Person) -> str:
        """Return the token that a person's pages send with every write."""
        return hmac.new(self.key, person.name.encode(), hashlib.sha256).hexdigest()

    def require_token(self, person: Person, given: str) -> None:
        """Check the token of a write.

        Raises:
            RequestError: the token is not from a page of this server.
        """
        if not hmac.compare_digest(given.encode(), self.token(person).encode()):
            raise RequestError(
                "the page is from another server or person", expected="the token of a page of this server",
                remedy="reload the page and try again",
            )  # fmt: skip


def _listed(host: str, port: int) -> str:
    """Return an IPv4 address and a port as the kernel's table of connections writes them."""
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
