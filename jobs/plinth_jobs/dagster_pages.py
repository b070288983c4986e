"""Process of the Dagster pages: `python -m plinth_jobs.dagster_pages WORKSPACE_FILE PORT [ORIGIN ...]`.

Dagster's web server answers requests for any host name, and executes mutations that are sent as simple requests. A page
of any site could therefore start runs through a browser on this machine. `RequestGuard` prevents this: a request must
name this server.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
#: Content types allowed for a query. Browsers send them to another site only after a preflight request.
QUERIES = ("application/json", "application/graphql")
FORBIDDEN = 403
#: Defaults of Dagster's own command: page update interval (ms), database statement timeout (ms), connection timeout (s)
#: and pool size.
POLL_MS, DATABASE = 2000, (15_000, 3600, 20)


class RequestGuard:
    """ASGI middleware that rejects requests that do not name this server, and queries from pages of other sites.

    Args:
        port: port of this server on loopback.
        origins: public addresses of a proxy in front of this server, such as `https://dagster.example.org`.
    """

    def __init__(self, app: Any, port: int, origins: Sequence[str] = ()) -> None:
        self._app = app
        own = [f"{name}:{port}" for name in NAMES]
        self._hosts = {*own, *(urlsplit(origin).netloc.lower() for origin in origins)}
        self._origins = {*(f"http://{host}" for host in own), *(origin.lower().rstrip("/") for origin in origins)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a valid request to the app, and answer any other request with an error."""
        why = self._refusal(scope) if scope["type"] in ("http", "websocket") else ""
        if not why:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            head = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": FORBIDDEN, "headers": head})
            await send({"type": "http.response.body", "body": f"refused: {why}\n".encode()})

    def _refusal(self, scope: Scope) -> str:
        """Return the reason to reject a request, or an empty string if the request is valid."""
        headers = [(name.lower(), value.decode("latin-1").lower()) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return "the Host header does not name this server"
        if any(origin not in self._origins for origin in origins):
            return "cross-site request"
        if scope["type"] == "http" and scope["path"].rstrip("/").endswith("/graphql"):
            return _query_refusal(scope["method"], dict(headers))
        return ""


def _query_refusal(method: str, headers: dict[bytes, str]) -> str:
    """Return the reason to reject a GraphQL query, or an empty string if the query is valid. Browsers send simple
    requests to any site, and Dagster would execute the mutations in them."""
    if method == "POST":
        kind = headers.get(b"content-type", "").partition(";")[0].strip()
        return "" if kind in QUERIES else f"queries must be sent as {' or '.join(QUERIES)}"
    page = method in ("GET", "HEAD") and "text/html" in headers.get(b"accept", "")
    return "" if page or method == "OPTIONS" else "queries must use POST"


def guarded(context: Any, port: int, origins: Sequence[str] = ()) -> Any:
    """Build an ASGI app that serves Dagster's pages for a workspace context behind the guard."""
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.middleware import Middleware

    class GuardedWebserver(DagsterWebserver[Any, Any]):
        """Dagster's web server behind the guard."""

        def build_middleware(self) -> list[Middleware]:
            return [Middleware(RequestGuard, port=port, origins=origins), *super().build_middleware()]

    return GuardedWebserver(context, "", POLL_MS).create_asgi_app()


def serve(workspace_file: str, port: int, origins: Sequence[str]) -> None:
    """Serve the pages of the Dagster instance in DAGSTER_HOME until a signal arrives."""
    import uvicorn
    from dagster import DagsterInstance
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget

    target = WorkspaceFileTarget([workspace_file])
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(*DATABASE)
        with WorkspaceProcessContext(instance, workspace_load_target=target) as context:
            uvicorn.run(guarded(context, port, origins), host=HOST, port=port, log_level="warning")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
