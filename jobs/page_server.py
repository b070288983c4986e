"""Serves the pages of a workspace on loopback, for people who look through Dagster or MLflow: a browser follows no link
from a served page to a file.

Only files below `reports/` and the Data Docs are given out: no listing, no link that leads elsewhere, no other host
name. The pages need no server: `reports/index.html` opens as a file.
"""

from __future__ import annotations

import mimetypes
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from assets.framework.expectations import docs_index
from jobs import workspace_index
from plinth.storage.workspace import Workspace

#: Pages run their own inline scripts and load nothing from elsewhere.
POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
NAMES = ("127.0.0.1", "localhost", "[::1]")


def serve(workspace: Workspace, host: str, port: int) -> ThreadingHTTPServer:
    """Serve in a thread of this process; the caller ends it with `shutdown` and `server_close`.

    Raises:
        OSError: the port is taken.
    """
    allowed = (workspace.reports.resolve(), docs_index(workspace).parent.resolve())
    root, index = workspace.root.resolve(), workspace_index.path(workspace)

    class PageHandler(BaseHTTPRequestHandler):
        """Answers GET and HEAD."""

        server_version = "plinth"
        sys_version = ""

        def do_GET(self) -> None:
            content = self._head()
            if content:
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            if (self.headers.get("Host") or "").rpartition(":")[0] not in NAMES:  # a name that was bound to loopback
                return self._refused(HTTPStatus.FORBIDDEN)
            place = unquote(urlsplit(self.path).path).lstrip("/")
            if place == "":
                self.send_response(HTTPStatus.FOUND)
                self.send_header("Location", f"/{index.relative_to(workspace.root).as_posix()}")
                self.end_headers()
                return b""
            found = _file(root, place, allowed)
            if found is None:
                return self._refused(HTTPStatus.NOT_FOUND)
            content = found.read_bytes()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", mimetypes.guess_type(found.name)[0] or "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            return content

        def _refused(self, status: HTTPStatus) -> bytes:
            self.send_error(status)
            return b""

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer((host, port), PageHandler)
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    return server


def _file(root: Path, place: str, allowed: tuple[Path, ...]) -> Path | None:
    """The file at a place below the workspace, where pages lie; links are followed before it is compared."""
    try:
        found = (root / place).resolve(strict=True)
    except (OSError, ValueError):
        return None
    inside = any(found.is_relative_to(folder) for folder in allowed)
    return found if inside and found.is_file() else None
