"""Webhooks of MLflow fire for what Plinth registers and releases, signed, also after the server was restarted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth_registry import decisions
from plinth_registry.mlflow import server
from tests.registry.test_api import ADA, BEN, register

SECRET = "known to the receiver"
EVENTS = (
    *("registered_model.created", "model_version.created"),
    *("model_version_alias.created", "model_version_alias.deleted"),
)


class Receiver(ThreadingHTTPServer):
    """Receiver of webhooks, and what it received."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[dict[str, str], bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def signed(headers: dict[str, str], body: bytes) -> bool:
    """Return True if the signature is the one that MLflow documents for receivers."""
    content = f"{headers['x-mlflow-delivery-id']}.{headers['x-mlflow-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET.encode(), content, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["x-mlflow-signature"], f"v1,{expected}")


@pytest.mark.exhaustive
def test_candidate_canary_and_champion_fire_webhooks(
    ctx: Context, line: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_WEBHOOK_ALLOWED_SCHEMES", "http")
    monkeypatch.setenv("MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS", "true")
    try:
        uri = server.ensure_server(ctx.workspace)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.create_webhook("ci", f"http://127.0.0.1:{receiver.server_port}/", list(EVENTS), secret=SECRET)
        server.stop_server(ctx.workspace)

        found, _ = register(ctx, line)
        decisions.approve(ctx, line.recipe, found.version, ADA, "good")
        server.stop_server(ctx.workspace)  # the database could be written without a server
        decisions.promote(ctx, line.recipe, found.version, BEN, "try it", "canary")
        decisions.promote(ctx, line.recipe, found.version, BEN, "good", "champion")
        until = time.monotonic() + 60
        while len(receiver.received) < 7 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        server.stop_server(ctx.workspace)
    assert all(signed(*one) for one in receiver.received)
    assert not signed(receiver.received[0][0], receiver.received[0][1].replace(b"created", b"deleted"))
    shown = []
    for one in (json.loads(body) for _, body in receiver.received):
        kept = {key: one["data"][key] for key in ("name", "version", "alias", "source") if key in one["data"]}
        shown.append((f"{one['entity']}.{one['action']}", kept))
    name, source = line.recipe.release.name, f"plinth:///models/{line.checkpoint.digest[:12]}"
    candidates = f"{name}-candidate"
    expected: list[tuple[str, dict[str, str]]] = [
        ("registered_model.created", {"name": candidates}),
        ("model_version.created", {"name": candidates, "version": "1", "source": source}),
        ("registered_model.created", {"name": name}),
        ("model_version.created", {"name": name, "version": "1", "source": f"models:/{candidates}/1"}),
        ("model_version_alias.created", {"name": name, "alias": "canary", "version": "1"}),
        ("model_version_alias.created", {"name": name, "alias": "champion", "version": "1"}),
        ("model_version_alias.deleted", {"name": name, "alias": "canary"}),
    ]
    assert sorted(shown, key=str) == sorted(expected, key=str)
