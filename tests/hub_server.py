"""A Hugging Face Hub with one data set; it serves only the requests of its client."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "org/name"


class Hub:
    """Commits with their files; a branch moves."""

    def __init__(self) -> None:
        self.commits: dict[str, Mapping[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.requests: list[str] = []

    def push(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A commit of exactly these files."""
        told = json.dumps({name: hashlib.sha1(data).hexdigest() for name, data in files.items()})
        commit = hashlib.sha1(told.encode()).hexdigest()
        self.commits[commit], self.branches[branch] = files, commit
        return commit

    def commit(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


@contextmanager
def hub_server() -> Iterator[tuple[Hub, str]]:
    """The server and its address, for as long as the block."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            return

        def do_HEAD(self) -> None:
            self._serve()

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            revision = unquote(urlsplit(self.path).path).rpartition("/")[2]
            names = wanted["paths"] if isinstance(wanted["paths"], list) else [wanted["paths"]]
            entries = [one for one in self._entries(revision, "", True) if one["path"] in names]
            self._json(entries)

        def _serve(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(path)
            api, files = f"/api/datasets/{REPO}", f"/datasets/{REPO}/resolve/"
            if path.startswith(files):
                revision, _, name = path.removeprefix(files).partition("/")
                return self._file(hub.commits[hub.commit(revision) or ""][name])
            rest = path.removeprefix(api).strip("/").split("/")
            kind, revision = rest[0], rest[1] if len(rest) > 1 else "main"
            commit = hub.commit(revision)
            if not path.startswith(api) or commit is None:
                code = "RepoNotFound" if not path.startswith(api) else "RevisionNotFound"
                return self._json({"error": "not found"}, 404, {"X-Error-Code": code})
            if kind == "tree":
                found = self._entries(revision, "/".join(rest[2:]), "recursive=true" in self.path.lower())
                if not found:
                    return self._json({"error": "no such folder"}, 404, {"X-Error-Code": "EntryNotFound"})
                return self._json(found)
            return self._json({"id": REPO, "_id": "1", "sha": commit, "private": False, "tags": [], "downloads": 0})

        def _entries(self, revision: str, folder: str, recursive: bool) -> list[dict[str, Any]]:
            files, top = hub.commits[hub.commit(revision) or ""], f"{folder}/" if folder else ""
            found: dict[str, dict[str, Any]] = {}
            for name, data in files.items():
                inner = name.removeprefix(top).split("/")
                if not name.startswith(top):
                    continue
                for depth in range(1, len(inner)):
                    path = top + "/".join(inner[:depth])
                    if recursive or depth == 1:
                        found[path] = {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
                if recursive or len(inner) == 1:
                    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
                    found[name] = {"type": "file", "path": name, "oid": oid, "size": len(data)}
            return list(found.values())

        def _file(self, data: bytes) -> None:
            wanted, status = self.headers.get("Range"), 200
            if wanted:
                first, last = wanted.removeprefix("bytes=").split("-")
                data, status = data[int(first) : int(last) + 1 if last else None], 206
            self._answer(status, data, {"ETag": hashlib.sha1(data).hexdigest()})

        def _json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
            self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

        def _answer(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), "Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
