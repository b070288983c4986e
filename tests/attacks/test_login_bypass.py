"""Attack: an MLflow user sends a request that MLflow parses and that the hooks behind its login do not."""

from __future__ import annotations

import json

import flask
import pytest

from plinth_registry.mlflow import login
from plinth_registry.mlflow.login import TagChange
from tests.peers import Peer

handlers = Peer("mlflow.server.handlers")

BODY = {"name": "demo-candidate", "version": "3", "key": "approval.by", "value": "ben@example.org"}
ONCE, TWICE = json.dumps(BODY), json.dumps(json.dumps(BODY))
#: Bodies and types of content; those that MLflow refuses to read change nothing.
REQUESTS = [
    (ONCE, "application/json"), (TWICE, "application/json"), (ONCE, "application/json; charset=utf-8"),
    (ONCE, "text/plain"), (TWICE, "text/plain"), (json.dumps(TWICE), "application/json"), ("", "application/json"),
    (json.dumps([BODY]), "application/json"), (f"{ONCE[:-1]}, \"key\": \"note\"}}", "application/json"),
    ('"["', "application/json"), ("null", "application/json"),
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["/api/2.0", "/ajax-api/2.0"])
@pytest.mark.parametrize(("body", "kind"), REQUESTS, ids=range(len(REQUESTS)))
def test_what_mlflow_reads_is_what_the_hooks_judge(body: str, kind: str, prefix: str) -> None:
    """A client may send JSON in a string, which MLflow decodes twice: the hook saw no change of a tag in it."""
    with flask.Flask("tests", root_path=".", instance_path="/").test_request_context(
        f"{prefix}{login.SET}", method="POST", data=body, content_type=kind
    ):
        try:
            read = handlers._get_normalized_request_json()
        except Exception:  # then MLflow answers with an error
            return
        if not isinstance(read, dict):
            return
        judged = login._change()
        decides = read.get("key") == "approval.by"
        assert judged == (TagChange(*map(str, (read["name"], read["version"], read["key"], read["value"])))
                          if decides else None)  # fmt: skip
