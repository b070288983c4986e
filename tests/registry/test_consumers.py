"""Consumers of a release are enrolled, named with their owner in alerts, and read a feed in which gaps are visible."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import GateError, MissingError, SignatureError
from plinth.trust.root import Trust
from plinth_jobs.cli import call
from plinth_registry import consumers, freeze, releases, taint, verified
from plinth_registry.audit_log import FEED
from tests.registry.conftest import moved, sign_candidate

OWNER = "search@example.org"
CHILD = "c" * 64
MADE = "2099-01-01T00:00:00+00:00"


@pytest.fixture
def release(ctx: Context, unregistered: Any) -> str:
    """A release whose champion is version 1."""
    moved(ctx, "champion", "1", unregistered.subjects)
    return "demo"


def child(ctx: Context, name: str, parent: str, digest: str | None = None) -> None:
    """A child as MLflow would describe it."""
    known = {"child": f"{name}/1", "parent": parent, "digest": digest, "made": MADE}
    consumers._add(ctx, "enrol", consumers.Consumer(name=name, owner="kid@example.org", **known))


def files(ctx: Context, folder: str) -> list[Path]:
    return sorted((ctx.workspace.root / folder).glob("*.json"))


# Enrollment


def test_a_service_is_enrolled_changed_and_removed(ctx: Context, release: str) -> None:
    made = consumers.enrol(ctx, "search", OWNER, model="demo")
    assert (made.uses, consumers.versions_now(ctx, made)) == ("demo@champion", ("1",))
    consumers.enrol(ctx, "search", "other@example.org", model="demo@canary", canary=True)
    assert [(one.owner, one.place) for one in consumers.enrolled(ctx)] == [("other@example.org", "canary")]
    consumers.leave(ctx, "search")
    assert consumers.enrolled(ctx) == ()
    assert len(files(ctx, "consumers")) == 3
    with pytest.raises(MissingError, match="no consumer search"):
        consumers.leave(ctx, "search")


@pytest.mark.parametrize("wrong", [
    {"name": "../search"}, {"owner": "nobody"}, {"owner": "a b@example.org"}, {"webhook": "file:///etc/passwd"},
    {"webhook": "https://user:word@example.org/x"}, {"webhook": "javascript:alert(1)"},
])  # fmt: skip
def test_what_no_consumer_can_be_is_refused(ctx: Context, release: str, wrong: dict[str, str]) -> None:
    given = {"name": "search", "owner": OWNER, "model": "demo", **wrong}
    with pytest.raises(ValidationError):
        consumers.enrol(ctx, given.pop("name"), given.pop("owner"), **given)
    assert files(ctx, "consumers") == []


def test_a_release_or_place_that_is_not_there_is_named(ctx: Context, release: str) -> None:
    for model in ("other", "demo@best"):
        with pytest.raises(MissingError, match=r"no release other|no alias best"):
            consumers.enrol(ctx, "search", OWNER, model=model)
    with pytest.raises(MissingError, match="a release or a child model"):
        consumers.enrol(ctx, "search", OWNER)


def test_a_canary_serves_only_those_enrolled_for_it(ctx: Context, release: str) -> None:
    consumers.enrol(ctx, "search", OWNER, model="demo", canary=True)
    consumers.enrol(ctx, "chat", "chat@example.org", model="demo")
    assert [one.name for one in consumers.canary_for(ctx, "demo")] == ["search"]
    assert consumers.canary_for(ctx, "other") == ()
    assert consumers.require_canary(ctx, "demo", "search").owner == OWNER
    with pytest.raises(GateError, match="chat is not served by canaries"):
        consumers.require_canary(ctx, "demo", "chat")


def test_a_version_on_trial_is_refused_to_who_did_not_ask_for_it(ctx: Context, unregistered: Any) -> None:
    name = unregistered.model.removesuffix("-candidate")
    moved(ctx, "canary", "1", unregistered.subjects, model=name)
    consumers.enrol(ctx, "search", OWNER, model=name, canary=True)
    for target in (f"{name}@canary", f"{name}/1"):
        assert verified.verify_model(ctx, target, consumer="search").release == f"{name}/1"
        with pytest.raises(GateError, match="chat is not served"):
            verified.verify_model(ctx, target, consumer="chat")
        assert verified.verify_model(ctx, target)  # the platform itself measures it
    moved(ctx, "champion", "1", unregistered.subjects, model=name)
    assert verified.verify_model(ctx, f"{name}@champion", consumer="chat")


def test_a_canary_serves_those_enrolled_for_it_and_the_others_get_the_champion(
    ctx: Context, make_line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for version, action in (("1", "champion"), ("2", "canary")):
        made = sign_candidate(ctx, make_line(int(version)))
        name = made.model.removesuffix("-candidate")
        moved(ctx, action, version, made.subjects, model=name)
    consumers.enrol(ctx, "search", OWNER, model=name, canary=True)
    consumers.enrol(ctx, "chat", "chat@example.org", model=name)
    trial = consumers.enrol(ctx, "only-trials", "chat@example.org", model=f"{name}@canary")
    assert consumers.versions_now(ctx, trial) == ()
    for folder in (name, f"{name}/1", f"{name}/2"):  # a folder of that name is never what serves
        (tmp_path / "here" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")

    def served(consumer: str) -> str | None:
        return verified.verify_model(ctx, name, consumer=consumer).release

    assert [served(one) for one in ("search", "chat", "stranger")] == [f"{name}/{each}" for each in "211"]
    capfd.readouterr()
    for consumer, version in (("search", "2"), ("chat", "1")):
        assert call(["-w", str(ctx.workspace.root), "verify", name, "--consumer", consumer, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["release"] == f"{name}/{version}"
    with pytest.raises(MissingError, match="no canary for only-trials"):
        served("only-trials")
    assert verified.verify_model(ctx, f"{name}@champion", consumer="search").release == f"{name}/1"
    rows = consumers.consumer_rows(ctx, (), [consumers.VersionRow(model=name, version="1", checkpoint="")])
    assert f"{name}@champion, now version 2 and 1, affected" in [row.uses for row in rows if row.name == "search"]
    moved(ctx, "returned", "1", made.subjects, "2", model=name)
    assert served("search") == f"{name}/1"


def test_children_and_their_children_are_concerned(ctx: Context, release: str, line: Any) -> None:
    child(ctx, "chat", line.checkpoint.digest, digest=CHILD)
    child(ctx, "grandchild", CHILD)
    child(ctx, "stranger", "d" * 64)
    found = consumers.concerned(ctx, {line.checkpoint.digest}, ())
    assert [one.name for one in found] == ["chat", "grandchild"]
    (record,) = releases.history(ctx)
    made = consumers.datetime.fromisoformat(MADE)
    wanted = (made - consumers.datetime.fromisoformat(record.at)).total_seconds()
    assert consumers.seconds_after_release(ctx, found[0]) == wanted
    assert consumers.seconds_after_release(ctx, consumers.enrol(ctx, "search", OWNER, model="demo")) is None


# Feed


def test_the_feed_names_versions_consumers_and_owners_once(ctx: Context, release: str, line: Any) -> None:
    consumers.enrol(ctx, "search", OWNER, model="demo")
    child(ctx, "chat", line.checkpoint.digest)
    taint.mark(ctx, line.curated.digest, "ada", "licence withdrawn")
    marked, released = freeze.catch_up_feed(ctx)
    assert freeze.catch_up_feed(ctx) == ()
    assert (marked.event, marked.versions) == ("tainted", ("demo/1",))
    assert marked.consumers == {"chat": "kid@example.org", "search": OWNER}
    assert (released.event, released.target, released.consumers) == ("champion", "demo version 1", {"search": OWNER})
    assert "licence withdrawn. Affected: demo/1; chat (kid@example.org), search" in marked.sentence
    taint.lift(ctx, line.curated.digest, "ben", "it was granted")
    (lifted,) = freeze.catch_up_feed(ctx)
    assert (lifted.number, lifted.event, lifted.by) == (3, "lifted", "ben")
    assert [entry.number for entry in freeze.feed_entries(ctx, after=1)] == [2, 3]


@pytest.fixture
def three(ctx: Context, release: str, line: Any) -> list[Path]:
    """Files of a feed with three entries."""
    taint.mark(ctx, line.curated.digest, "ada", "because")
    taint.mark(ctx, line.checkpoint.digest, "ada", "because")
    freeze.catch_up_feed(ctx)
    return files(ctx, "feed")


def test_a_consumer_sees_a_gap_a_repeat_and_a_forgery(ctx: Context, three: list[Path]) -> None:
    one, two, three_ = (path.read_bytes() for path in three)
    entry, last = freeze.received(ctx, one, None)
    assert (entry.number, freeze.received(ctx, two, last)[0].number) == (1, 2)
    for wrong in (three_, one, two.replace(b'"sig": "', b'"sig": "00'), b"{}", b"[", two[:-40]):
        with pytest.raises(SignatureError):
            freeze.received(ctx, wrong, last)


def test_without_a_key_that_may_sign_the_feed_says_so(ctx: Context, release: str, line: Any, own_trust: Path) -> None:
    taint.mark(ctx, line.checkpoint.digest, "ada", "because")
    for role in ("compliance", "promoter"):
        shutil.rmtree(own_trust / "keys" / role)
    with pytest.raises(SignatureError, match="no private key"):
        freeze.catch_up_feed(ctx)


# Webhooks


@dataclass
class Receiver:
    """A consumer's server: what it got, and what it answers next."""

    url: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    known = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = known.answers.pop(0) if known.answers else 204
            known.got.append((dict(self.headers.items()), body))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{known.url}/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:  # where a redirect that is followed ends
            known.got.append(({}, b""))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield known
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hooked(ctx: Context, release: str, line: Any, receiver: Receiver) -> Callable[[], str]:
    """Enroll a consumer with a webhook, then mark its model twice; gives the secret."""

    def enrolled() -> str:
        consumers.enrol(ctx, "search", OWNER, model="demo", webhook=f"{receiver.url}/plinth")
        secret = freeze.make_secret(ctx, "search")
        for digest in (line.curated.digest, line.checkpoint.digest):
            taint.mark(ctx, digest, "ada", "because")
        freeze.catch_up_feed(ctx)
        return secret

    return enrolled


def delivered(ctx: Context, attempts: int = 3) -> tuple[int, int]:
    (found,) = freeze.deliver(ctx, attempts, wait=lambda seconds: None)
    assert (found.error is None) == (found.waiting == 0)
    return found.sent, found.waiting


def test_every_entry_arrives_in_order_signed_twice(ctx: Context, hooked: Any, receiver: Receiver) -> None:
    secret = hooked()
    assert delivered(ctx) == (3, 0)
    last = None
    for number, (headers, body) in enumerate(receiver.got, start=1):
        entry, last = freeze.received(ctx, body, last)
        assert entry.number == number == int(headers[freeze.SEQUENCE])
        assert headers[freeze.KEY] == hashlib.sha256(body).hexdigest()
        assert freeze.verified_delivery(secret, headers[freeze.SIGNATURE], body, time.time())
        assert not freeze.verified_delivery(secret, headers[freeze.SIGNATURE], body + b" ", time.time())
        assert not freeze.verified_delivery("0" * 64, headers[freeze.SIGNATURE], body, time.time())
        assert not freeze.verified_delivery(secret, headers[freeze.SIGNATURE], body, time.time() + 301)
    assert delivered(ctx) == (0, 0)
    assert len(receiver.got) == 3


def test_a_refused_entry_is_sent_again_under_the_same_key(ctx: Context, hooked: Any, receiver: Receiver) -> None:
    hooked()
    receiver.answers = [204, 503, 302, 500]
    assert delivered(ctx) == (1, 2)
    assert len(receiver.got) == 4  # a redirect is not followed
    assert delivered(ctx) == (2, 0)
    keys = [headers[freeze.KEY] for headers, _ in receiver.got]
    assert len(set(keys)) == 3
    assert keys == [keys[0], *[keys[1]] * 4, keys[-1]]


def test_a_consumer_that_is_down_does_not_stop_another(ctx: Context, hooked: Any, receiver: Receiver) -> None:
    hooked()
    consumers.enrol(ctx, "down", OWNER, model="demo", webhook="http://127.0.0.1:9/")
    freeze.make_secret(ctx, "down")
    consumers.enrol(ctx, "a-first-without-secret", OWNER, model="demo", webhook=receiver.url)
    consumers.leave(ctx, "search")
    consumers.enrol(ctx, "search", OWNER, model="demo", webhook=f"{receiver.url}/plinth")
    taint.lift(ctx, freeze.feed_entries(ctx)[0].target.split()[1], "ben", "granted")
    freeze.catch_up_feed(ctx)
    lacking, down, search = freeze.deliver(ctx, 2, wait=lambda seconds: None)
    assert (lacking.sent, lacking.waiting) == (0, 1)
    assert "the webhook secret of consumer" in str(lacking.error)
    assert (down.sent, down.waiting) == (0, 1)
    assert (search.sent, search.waiting, search.error) == (1, 0, None)


def test_the_secret_is_private_and_outside_the_workspace(ctx: Context, release: str) -> None:
    secret = freeze.make_secret(ctx, "search")
    path = Trust.of(ctx.workspace).folder / "webhooks" / "search.secret"
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (secret, 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.is_relative_to(ctx.workspace.root)


def test_an_entry_of_another_log_is_no_entry(ctx: Context, three: list[Path]) -> None:
    with pytest.raises(SignatureError, match=r"predicate type|not a record"):
        FEED.next(Trust.of(ctx.workspace), files(ctx, "taint")[0].read_bytes(), "x", None)
