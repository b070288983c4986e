"""Attack: a page of another site, or a name that was bound to loopback, sends requests to the Dagster pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from plinth_jobs import dagster_pages

PORT = 3000
MUTATION = "mutation { setNuxSeen }"
HERE = {"Host": f"127.0.0.1:{PORT}", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Dagster's own webserver behind the guard, with a proxy's address."""
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import EmptyWorkspaceTarget
    from starlette.testclient import TestClient

    home = tmp_path_factory.mktemp("dagster")
    with (
        dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}}) as instance,
        WorkspaceProcessContext(instance, workspace_load_target=EmptyWorkspaceTarget()) as context,
    ):
        app = dagster_pages.guarded(context, PORT, ["https://dagster.example.org:8443"])
        yield TestClient(app, base_url=f"http://127.0.0.1:{PORT}")


def sent(pages: Any, **headers: str) -> Any:
    return pages.post("/graphql", json={"query": MUTATION}, headers={**HERE, **headers})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"])
def test_its_own_names_are_answered(pages: Any, host: str) -> None:
    answer = sent(pages, Host=f"{host}:{PORT}", Origin=f"http://{host}:{PORT}")
    assert answer.json() == {"data": {"setNuxSeen": True}}
    assert pages.get("/server_info", headers={"Host": f"{host}:{PORT}"}).status_code == 200


def test_the_address_of_a_proxy_is_answered(pages: Any) -> None:
    assert sent(pages, Origin="https://dagster.example.org:8443").status_code == 200
    named = sent(pages, Host="dagster.example.org:8443", Origin="https://dagster.example.org:8443")
    assert named.status_code == 200


@pytest.mark.parametrize(
    "host",
    ["attacker.example:3000", "127.0.0.1", "127.0.0.1:3001", "127.0.0.1.attacker.example:3000", "", "a@127.0.0.1:3000"],
)
def test_a_mutation_under_another_host_is_refused(pages: Any, host: str) -> None:
    answer = sent(pages, Host=host)
    assert (answer.status_code, answer.text) == (403, "refused: the Host header does not name this server\n")


@pytest.mark.parametrize(
    "origin",
    [
        "http://attacker.example",
        "null",
        "http://127.0.0.1:3001",
        "https://127.0.0.1:3000",
        "http://dagster.example.org:8443",
    ],
)
def test_a_mutation_from_another_origin_is_refused(pages: Any, origin: str) -> None:
    answer = sent(pages, Origin=origin)
    assert (answer.status_code, answer.text) == (403, "refused: cross-site request\n")


def test_a_query_in_a_simple_request_is_refused(pages: Any) -> None:
    """An image or a form of another site can send these, without an origin."""
    host = {"Host": HERE["Host"]}
    for accept in ("image/webp", "*/*"):
        answer = pages.get("/graphql", params={"query": MUTATION}, headers={**host, "Accept": accept})
        assert (answer.status_code, answer.text) == (403, "refused: queries must use POST\n")
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        content = {"Content-Type": kind} if kind else {}
        answer = pages.post("/graphql", params={"query": MUTATION}, headers={**host, **content})
        assert answer.status_code == 403
        assert "queries must be sent as application/json" in answer.text
    page = pages.get("/graphql", params={"query": MUTATION}, headers={**host, "Accept": "text/html"})
    assert page.headers["Content-Type"].startswith("text/html")  # a page to write queries in


def test_a_socket_of_another_site_is_closed(pages: Any) -> None:
    from starlette.websockets import WebSocketDisconnect

    for headers in ({"Host": "attacker.example:3000"}, {"Host": HERE["Host"], "Origin": "http://attacker.example"}):
        with pytest.raises(WebSocketDisconnect), pages.websocket_connect("/graphql", headers=headers):
            pass
    with pages.websocket_connect(
        "/graphql", headers={"Host": HERE["Host"], "Origin": "http://localhost:3000"}
    ) as open_:
        open_.send_json({"type": "connection_init"})
        assert open_.receive_json()["type"] == "connection_ack"
