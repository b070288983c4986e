"""Pages over HTTP: those of the workspace, and nothing else of the machine."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.storage.workspace import Workspace
from plinth_assets.framework import docs_index
from plinth_jobs import workspace_index


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path / "w").ensure()
    (made.reports / "index.html").write_text("<title>Index</title>")
    docs = docs_index(made)
    docs.parent.mkdir(parents=True)
    docs.write_text("docs")
    (made.root / "alerts.jsonl").write_text("secret")
    (tmp_path / "outside").write_text("secret")
    (made.reports / "link.html").symlink_to(tmp_path / "outside")
    (made.reports / "inside.html").symlink_to(made.reports / "index.html")
    (made.reports / "hard.html").hardlink_to(tmp_path / "outside")
    (made.reports / "folder").symlink_to(tmp_path)
    os.mkfifo(made.reports / "pipe.html")
    return made


@pytest.fixture
def port(workspace: Workspace) -> Iterator[int]:
    server = workspace_index.serve(workspace, "127.0.0.1", 0)
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def asked(port: int, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_the_index_and_what_it_links(port: int, workspace: Workspace) -> None:
    status, _, headers = asked(port, "/")
    assert (status, headers["Location"]) == (302, "/reports/index.html")
    status, body, headers = asked(port, "/reports/index.html?again")
    assert (status, body) == (200, "<title>Index</title>")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert asked(port, "/reports/index.html", "HEAD")[1] == ""
    docs = docs_index(workspace).relative_to(workspace.root).as_posix()
    assert asked(port, f"/reports/../{docs}")[:2] == (200, "docs")


@pytest.mark.parametrize(
    "path",
    ["/alerts.jsonl", "/reports", "/reports/", "/reports/../alerts.jsonl", "/reports/%2e%2e/alerts.jsonl",
     "/reports/../../outside", "/reports/link.html", "/reports/inside.html",
     "/reports/hard.html", "/reports/folder/outside", "/reports/pipe.html",
     "//etc/passwd", "/etc/passwd", "/reports/absent.html", "/%00"],
)  # fmt: skip
def test_nothing_else_is_given_out(port: int, path: str) -> None:
    status, body, _ = asked(port, path)
    assert status == 404
    assert "secret" not in body


def test_another_name_and_another_method_are_refused(port: int) -> None:
    assert asked(port, "/reports/index.html", host="attacker.example")[0] == 403
    assert asked(port, "/reports/index.html", "POST")[0] == 501
