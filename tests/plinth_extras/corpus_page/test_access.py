"""Who may read, label and save: other users of the machine, other sites, a proxy and its people."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request

from plinth.errors import RequestError, SignatureError
from plinth.storage.workspace import Workspace
from plinth_extras.corpus_page import access as module
from plinth_extras.corpus_page.access import Access, Person
from plinth_registry.mlflow import settings
from tests.plinth_extras.corpus_page.conftest import Serve

SECRET = b"secret of the proxy"
PROXY = {"X_Plinth_Proxy": SECRET.decode(), "X_Forwarded_Email": "ada@example.org"}
WHATIF = "/whatif?policy=default&reason=too_few_words&t0=15"


def request(port: int, host: str = "127.0.0.1", **headers: str) -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "client": (host, port), "method": "GET", "path": "/"})


def test_only_this_user_on_loopback(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = serve()
    assert site.ask("/")[0] == 200
    table = tmp_path / "tcp"
    row = "   0: 0100007F:{:04X} 0100007F:{:04X} 01 00000000:00000000 00:00000000 00000000  {}        0 1\n"
    monkeypatch.setattr(module, "CONNECTIONS", table)
    one = Access(4000)
    for own, user, allowed in (
        (0, 0, True),
        (1000, 1000, True),
        (1000, 0, False),
        (0, 1000, False),
        (1000, 1001, False),
    ):
        monkeypatch.setattr(module.os, "getuid", lambda own=own: own)
        table.write_text("head\n" + row.format(5000, 4001, 0) + row.format(5000, 4000, user))
        if allowed:
            assert one.person(request(5000)).may_edit
        else:
            with pytest.raises(SignatureError, match="another user"):
                one.person(request(5000))
    with pytest.raises(SignatureError, match="another user"):
        one.person(request(5001))  # no such connection
    # another user can take a port of this user at another loopback address
    monkeypatch.setattr(module.os, "getuid", lambda: 1000)
    other = row.replace("0100007F", "0200007F", 1).format(5000, 4000, 1001)
    for both in ((row.format(5000, 4000, 1000), other), (other, row.format(5000, 4000, 1000))):
        table.write_text("head\n" + "".join(both))
        assert one.person(request(5000)).may_edit
        with pytest.raises(SignatureError, match="another user"):
            one.person(request(5000, host="127.0.0.2"))
    table.unlink()
    assert one.person(request(5001)).may_edit  # a system without this table
    table.write_text("head\n")
    status, body, _ = site.ask("/")
    assert (status, "another user of this machine" in body, 'data-token=""' in body) == (403, True, True)
    assert "ours.yaml" not in body


def test_requests_of_other_sites_are_refused(serve: Serve) -> None:
    site = serve()
    token = site.token()
    form = {"token": token, "id": "0" * 32, "reason": "toxic", "label": "good"}
    assert site.ask("/", Host="attacker.example")[0] == 403
    assert site.ask("/label", form, Origin="http://attacker.example")[0] == 403
    assert site.ask("/label", {**form, "token": ""})[0] == 400
    assert site.ask("/label", {**form, "token": "0" * 64})[0] == 400
    assert site.ask("/label", {**form, "token": "é"})[0] == 400
    assert site.ask("/label", {"token": "x" * 70_000})[0] == 413
    assert site.ask("/label")[0] == 405
    assert "no document" in site.ask("/label", form)[1]


def test_people_of_a_proxy_read_and_label_and_editors_save(serve: Serve, recipe: Path) -> None:
    site = serve(secret=SECRET, header="X-Forwarded-Email", editors=frozenset({"ada@example.org"}))
    before = recipe.read_text()
    for headers in ({}, {"X_Forwarded_Email": "ada@example.org"}, {**PROXY, "X_Plinth_Proxy": "wrong"},
                    {**PROXY, "X_Forwarded_Email": " "}):  # fmt: skip
        status, body, _ = site.ask("/", **headers)
        assert (status, "did not come through the proxy" in body) == (403, True)
    bob = {**PROXY, "X_Forwarded_Email": "bob@example.org"}
    assert "bob@example.org may not edit the recipe" in site.ask(WHATIF, **bob)[1]
    form = {"policy": "default", "reason": "too_few_words", "drop": "gopher_quality.word_count < 15",
            "before": "gopher_quality.word_count < 20"}  # fmt: skip
    assert site.ask("/whatif/save", {**form, "token": site.token(**bob)}, **bob)[0] == 403
    assert site.ask("/whatif/save", {**form, "token": site.token(**bob)}, **PROXY)[0] == 400  # of another person
    assert recipe.read_text() == before
    assert "Save into ours.yaml" in site.ask(WHATIF, **PROXY)[1]
    assert site.ask("/whatif/save", {**form, "token": site.token(**PROXY)}, **PROXY)[0] == 303
    assert recipe.read_text() == before.replace("word_count < 20", "word_count < 15")


def test_a_public_address_needs_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
    space = Workspace(tmp_path / "w")
    assert Access.of(space, 1, (), ()).secret == b""
    for origins, editors in ((("https://c.example",), ()), ((), ("ada",))):
        with pytest.raises(RequestError, match="proxy with a login"):
            Access.of(space, 1, origins, editors)
    folder = settings.folder(space)
    folder.mkdir(parents=True)
    (folder / settings.SETTINGS).write_text(settings.LoginSettings(kind="proxy", header="X-User").model_dump_json())
    with pytest.raises(SignatureError, match="secret"):
        Access.of(space, 1, (), ())
    (folder / settings.SECRET).write_bytes(SECRET)
    found = Access.of(space, 1, ("https://c.example",), ("ada",))
    assert (found.secret, found.header, found.editors) == (SECRET, "X-User", {"ada"})
    assert found.person(request(1, **{"X-Plinth-Proxy": SECRET.decode(), "X-User": "bob"})) == Person("bob", False)
