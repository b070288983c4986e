"""A web server with a folder's files, at Common Crawl's paths, that answers ranges and fails as servers do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class CrawlServer:
    """Args of its behavior may be changed while it runs.

    Attributes:
        index: lines of the index, which `…-index?url=` answers, `page_lines` at a time.
        busy: number of requests answered with 503 and `Retry-After: 0`.
        cut_after: number of bytes after which a body breaks off, `cuts` times.
        ranges: whether ranges are served.
        lengths: whether it sends the length of a file.
        moved: paths and where they redirect to.
        requests: method, path and range of every request.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.index = root, list[dict[str, Any]]()
        self.busy = self.cuts = self.cut_after = 0
        self.page_lines, self.ranges, self.lengths, self.tag = 2, True, True, '"1"'
        self.moved = dict[str, str]()
        self.requests: list[tuple[str, str, str]] = []
        self.lock = threading.Lock()

    def count_down(self, name: str) -> bool:
        with self.lock:
            left = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return bool(left)


@contextmanager
def crawl_server(root: Path) -> Iterator[tuple[CrawlServer, str]]:
    """The server and its address, for as long as the block."""
    state = CrawlServer(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            return

        def do_HEAD(self) -> None:
            self._serve(body=False)

        def do_GET(self) -> None:
            self._serve(body=True)

        def _serve(self, body: bool) -> None:
            parts = urlsplit(self.path)
            state.requests.append((self.command, unquote(parts.path), self.headers.get("Range", "")))
            if state.count_down("busy"):
                return self._answer(503, b"", {"Retry-After": "0"})
            if (target := state.moved.get(unquote(parts.path))) is not None:
                return self._answer(302, b"", {"Location": target})
            if parts.path.endswith("-index"):
                return self._index(parse_qs(parts.query))
            file = root / unquote(parts.path).lstrip("/")
            if not file.is_file():
                return self._answer(404, b"")
            data, status = file.read_bytes(), 200
            wanted = self.headers.get("Range", "")
            if body and wanted and state.ranges:
                first, last = (int(one) for one in wanted.removeprefix("bytes=").split("-"))
                data, status = data[first : last + 1], 206
            return self._answer(status, data, {"ETag": state.tag}, body)

        def _index(self, query: dict[str, list[str]]) -> None:
            host = query["url"][0].removeprefix("*.")
            lines = [one for one in state.index if host in one["url"] and f"=status:{one['status']}" in query["filter"]]
            if not lines:
                return self._answer(404, b'{"message": "No Captures found"}')
            if "showNumPages" in query:
                pages = -(-len(lines) // state.page_lines)
                return self._answer(200, json.dumps({"pages": pages}).encode())
            at = int(query["page"][0]) * state.page_lines
            page = "".join(json.dumps(one) + "\n" for one in lines[at : at + state.page_lines])
            return self._answer(200, page.encode())

        def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None, body: bool = True) -> None:
            self.send_response(status)
            length = {"Content-Length": str(len(data))} if state.lengths else {"Connection": "close"}
            for name, value in {**length, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if body and state.cut_after and len(data) > state.cut_after and state.count_down("cuts"):
                self.wfile.write(data[: state.cut_after])
                self.close_connection = True
            elif body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
