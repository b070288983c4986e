"""Entries of a transparency log: one that a real Rekor made, and those of the local server; each with faults."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import SignatureError, TrustError
from plinth.trust import transparency
from plinth.trust.transparency import Signed
from tests.plinth.trust.test_root_tuf import holder
from tests.rekor_server import LocalRekor, path_of, rekor_server, root_of
from tests.sigstore_instance import fresh, identity_of, spki

RECORDED = json.loads((Path(__file__).parent / "rekor_entry.json").read_bytes())


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[LocalRekor, str]]:
    with rekor_server() as found:
        yield found


@pytest.fixture
def rekor(served: tuple[LocalRekor, str]) -> LocalRekor:
    served[0].change = lambda answer: answer
    return served[0]


@pytest.fixture
def keys(rekor: LocalRekor, tmp_path: Path) -> tuple[str, ...]:
    assert transparency.pin(tmp_path, rekor.write_key(tmp_path / "rekor.pub")) == identity_of(rekor.key).hex()
    return transparency.pinned(tmp_path)


def signed(data: bytes) -> Signed:
    return Signed(data, holder("a").sign(data), holder("a").public)


def recorded() -> tuple[dict[str, Any], Signed]:
    """The real entry, and what it is about: it has a certificate in the place of a public key."""
    entry = RECORDED["entry"]
    spec = json.loads(base64.b64decode(entry["canonicalizedBody"]))["spec"]["signature"]
    certificate = base64.b64decode(spec["publicKey"]["content"]).decode()
    return entry, Signed(base64.b64decode(RECORDED["artifact"]), base64.b64decode(spec["content"]), certificate)


def test_an_entry_of_a_real_rekor_verifies() -> None:
    entry, about = recorded()
    found = transparency.verify(entry, (RECORDED["key"],), about, "it")
    assert found.log_index == 7390977
    assert found.name == "rekor.sigstage.dev - 8050909264565447525"
    assert found.at == "2023-04-26T00:21:09+00:00"
    assert found.log == "d32f30a3c32d639c2b762205a21c7bb07788e68283a4ae6f42118723a1bea496"


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _places(inner, (*path, key)) if isinstance(inner, dict | list) else [(*path, key)]


@pytest.mark.parametrize("path", list(_places(RECORDED["entry"])), ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_a_real_entry_counts(path: tuple[Any, ...]) -> None:
    """The type next to the body is a hint: the type in the body counts."""
    entry, about = copy.deepcopy(recorded()[0]), recorded()[1]
    *above, last = path
    place = entry
    for key in above:
        place = place[key]
    text = place[last]
    for changed in (_other(text), "", None, [], "A" * 8):
        place[last] = changed
        if path[0] == "kindVersion" and isinstance(changed, str):
            continue
        with pytest.raises(SignatureError, match="the transparency log entry in it is invalid"):
            transparency.verify(entry, (RECORDED["key"],), about, "it")


def _other(text: str) -> str:
    half = len(text) // 2
    return text[:half] + ("1" if text[half] != "1" else "2") + text[half + 1 :]


def test_the_key_of_another_log_verifies_nothing(keys: tuple[str, ...]) -> None:
    entry, about = recorded()
    with pytest.raises(SignatureError, match="is invalid"):
        transparency.verify(entry, keys, about, "it")
    assert transparency.verify(entry, (*keys, RECORDED["key"]), about, "it").log_index == 7390977


def test_a_submitted_signature_is_logged_once(
    served: tuple[LocalRekor, str], rekor: LocalRekor, keys: tuple[str, ...]
) -> None:
    about = signed(b"head 1")
    found = transparency.verify(transparency.submit(served[1], about), keys, about, "it")
    for number in range(5):  # the tree grows
        transparency.submit(served[1], signed(b"other %d" % number))
    count = len(rekor.bodies)
    again = transparency.verify(transparency.submit(f"{served[1]}/", about), keys, about, "it")
    assert (again.log, again.log_index) == (found.log, found.log_index)
    assert len(rekor.bodies) == count


def test_the_server_learns_a_digest_a_signature_and_a_key(served: tuple[LocalRekor, str], rekor: LocalRekor) -> None:
    transparency.submit(served[1], signed(b"a secret head"))
    spec = json.loads(rekor.requests[-1])["spec"]
    assert spec["data"] == {"hash": {"algorithm": "sha256", "value": signed(b"a secret head").sha256}}
    assert set(spec) == {"data", "signature"}
    assert base64.b64decode(spec["signature"]["publicKey"]["content"]).decode() == holder("a").public


def test_an_entry_about_another_head_is_refused(served: tuple[LocalRekor, str], keys: tuple[str, ...]) -> None:
    entry = transparency.submit(served[1], signed(b"head 2"))
    for other in (signed(b"head 3"), signed(b"head 2")):  # the same bytes, signed once more
        with pytest.raises(SignatureError, match="about another signature"):
            transparency.verify(entry, keys, other, "it")
    mine = signed(b"head 4")
    entry = transparency.submit(served[1], mine)
    with pytest.raises(SignatureError, match="about another signature"):
        transparency.verify(entry, keys, mine._replace(public=holder("b").public), "it")


def test_a_signature_that_does_not_verify_is_not_logged(served: tuple[LocalRekor, str]) -> None:
    with pytest.raises(TrustError, match="returned no entry") as refused:
        transparency.submit(served[1], signed(b"head")._replace(data=b"other"))
    assert "status 400" in str(refused.value)


def test_a_server_that_is_down_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(TrustError, match=f"the transparency log at {url} returned no entry"):
            transparency.submit(url, signed(b"head"))


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda answer: {},
    "two entries": lambda answer: {**answer, "other": next(iter(answer.values()))},
    "text": lambda answer: "text",
    "a list": lambda answer: [answer],
    "no proof": lambda answer: {"a": {**next(iter(answer.values())), "verification": {}}},
    "no body": lambda answer: {"a": {**next(iter(answer.values())), "body": ""}},
    "a deep body": lambda answer: {
        "a": {**next(iter(answer.values())), "body": base64.b64encode(b"[" * 100_000).decode()}
    },
}


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_that_is_no_entry_is_refused(served: tuple[LocalRekor, str], rekor: LocalRekor, what: str) -> None:
    rekor.change = ANSWERS[what]
    with pytest.raises(TrustError, match="returned no entry"):
        transparency.submit(served[1], signed(what.encode()))


@pytest.mark.parametrize("endless", [b" " * (1 << 16), b" "])
def test_an_endless_answer_ends(endless: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(201)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(endless)
                    time.sleep(0.001)

    monkeypatch.setattr(transparency, "ANSWER_S", 1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with pytest.raises(TrustError, match="returned no entry") as refused:
            transparency.submit(f"http://127.0.0.1:{server.server_port}", signed(b"head"))
        assert "more than 1,048,576 bytes, or 1 seconds" in str(refused.value.found)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(TrustError, match="contains a user or password") as refused:
        transparency.submit("https://ada:secret@rekor.example", signed(b"head"))
    assert "secret" not in str(refused.value)


def test_an_unusable_key_is_not_pinned(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(spki(fresh()) + b"\xff")
    with pytest.raises(SignatureError, match="this is not a public key"):
        transparency.pin(tmp_path, tmp_path / "key")
    with pytest.raises(SignatureError, match="no public key of a transparency log is pinned"):
        transparency.pinned(tmp_path)


def test_the_tree_of_the_local_server_is_that_of_the_standard() -> None:
    """The roots of the reference trees of certificate-transparency, and a proof of RFC 6962, 2.1.3."""
    data = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    leaves = [hashlib.sha256(b"\0" + bytes.fromhex(each)).digest() for each in data]
    assert root_of(leaves).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    assert root_of(leaves[:7]).hex() == "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"
    left = leaves[:4]
    assert path_of(3, leaves[:7]) == [leaves[2], root_of(left[:2]), root_of(leaves[4:7])]
    assert path_of(6, leaves[:7]) == [root_of(leaves[4:6]), root_of(left)]
