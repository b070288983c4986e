"""Serves the pages of a workspace on loopback, for people who look through Dagster or MLflow: a browser follows no link
from a served page to a file.

Only files below `reports/` and the Data Docs are given out: no listing, no symbolic link, no file that has another name
(hard link), no other host name. The pages need no server: `reports/index.html` opens as a file.
"""

from __future__ import annotations

import mimetypes
import os
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from plinth.storage.uris import open_unlinked
from plinth.storage.workspace import Workspace
from plinth_assets.framework.expectations import docs_index
from plinth_jobs import workspace_index

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
            content = _content(root, place, allowed)
            if content is None:
                return self._refused(HTTPStatus.NOT_FOUND)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", mimetypes.guess_type(place)[0] or "application/octet-stream")
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


def _content(root: Path, place: str, allowed: tuple[Path, ...]) -> bytes | None:
    """The content of a page, read from the file that was checked: whoever writes the workspace may exchange it.

    Args:
        root: the workspace, resolved.
        place: of the page below it, as a browser asks for it.
        allowed: the folders of pages.
    """
    try:
        path = os.path.normpath(root / place)
        if not any(Path(path).is_relative_to(folder) for folder in allowed):
            return None
        with open_unlinked(path, depth=len(Path(path).relative_to(root).parts) - 1) as stream:
            return stream.read() if os.fstat(stream.fileno()).st_nlink == 1 else None
    except (OSError, ValueError):
        return None
