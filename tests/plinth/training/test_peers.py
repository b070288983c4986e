"""Connections of peers to a server: messages in effect, states, silence, and processes that are refused."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from plinth.training import peers, wire
from plinth.training.peers import PeerLink, Peers
from plinth.training.recovery.orders import RankState


class OnePeer:
    """A link in a thread, with the messages that it has taken."""

    def __init__(self, address: str, number: int = 1) -> None:
        self.taken: list[dict[str, Any]] = []
        self.state = RankState()
        self.link = PeerLink(number, lambda: self.state.model_dump(), self.taken.append)
        self._address = address
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()

    def _hold(self) -> None:
        while not self.link.ended.is_set():
            self.link.hold(self._address, "secret")

    def close(self) -> None:
        self.link.ended.set()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Peers[RankState]]:
    made = Peers("secret", RankState(), range(8), everywhere=False)
    yield made
    made.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Connection], None]], str]]:
    """Listen, and return the address."""
    servers: list[wire.MessageServer] = []

    def serving(handle: Callable[[Connection], None]) -> str:
        servers.append(wire.MessageServer("secret", handle, everywhere=False))
        return f"127.0.0.1:{servers[-1].port}"

    yield serving
    for one in servers:
        one.close()


@pytest.fixture
def join(server: Peers[RankState], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], OnePeer]]:
    monkeypatch.setattr(peers, "BEAT_S", 0.05)
    made: list[OnePeer] = []

    def joined() -> OnePeer:
        made.append(OnePeer(f"127.0.0.1:{server.port}"))
        return made[-1]

    yield joined
    for one in made:
        one.close()


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def test_messages_in_effect_reach_those_who_connect_later(server: Peers[RankState], join: Any) -> None:
    server.tell({"do": 1})
    first = join()
    until(lambda: first.taken)
    server.tell({"do": 2})
    server.tell({"do": 3}, also=True)
    until(lambda: len(first.taken) == 3)
    server.forget(1)
    later = join()
    until(lambda: len(later.taken) == 2)
    assert [one["do"] for one in (*first.taken, *later.taken)] == [1, 2, 3, 2, 3]


def test_a_peer_that_connects_again_has_its_state_and_one_that_was_forgotten_never_connects(
    server: Peers[RankState], join: Any
) -> None:
    one = join()
    one.state = RankState(phase="running", epoch=2)
    one.link.report()
    until(lambda: (known := server.known(1)) and known.state.epoch == 2)
    before = server.known(1)
    assert before is not None
    assert before.connection is not None
    with socket.socket(fileno=os.dup(before.connection.fileno())) as opened:
        opened.shutdown(socket.SHUT_RDWR)
    until(lambda: (known := server.known(1)) and known is not before)
    assert server.known(1).state.epoch == 2  # type: ignore[union-attr]
    server.reset()
    one.state = RankState(epoch=3)
    other = join()
    until(lambda: (known := server.known(1)) and known.hello == other.link._hello)
    assert server.known(1).state.epoch == 0  # type: ignore[union-attr]


def test_silence_is_told_from_a_closed_connection(server: Peers[RankState], monkeypatch: pytest.MonkeyPatch) -> None:
    with wire.connect(f"127.0.0.1:{server.port}", "secret") as connection:
        wire.send(connection, {"number": 1, "process": "it"})
        until(lambda: server.known(1))
        known = server.known(1)
        assert known is not None
        assert known.silence(900.0, 900.0) == ""
        assert known.silence(900.0, -1.0) == "is silent"
    until(lambda: known.connection is None)
    assert known.silence(-1.0, 900.0) == "has no connection"
    assert known.silence(900.0, 900.0) == ""


def test_a_state_that_is_none_ends_the_connection(server: Peers[RankState]) -> None:
    with wire.connect(f"127.0.0.1:{server.port}", "secret") as connection:
        wire.send(connection, {"number": 1, "process": "it"})
        wire.send(connection, {"phase": "dancing"})
        with pytest.raises(EOFError):
            wire.receive(connection)


def test_a_server_that_does_not_answer_is_connected_again(join: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may be dead although neither end has closed it."""
    seen: list[str] = []

    def mute(connection: Any) -> None:
        seen.append(wire.receive(connection)["process"])
        while True:
            wire.receive(connection)

    monkeypatch.setattr(peers, "RENEW_S", 0.2)
    silent = wire.MessageServer("secret", mute, everywhere=False)
    one = OnePeer(f"127.0.0.1:{silent.port}")
    until(lambda: len(seen) == 2)
    assert not one.link.met
    one.close()
    silent.close()


def test_a_forgotten_process_gets_no_more_answers(server: Peers[RankState]) -> None:
    """A node that was silent for a while would otherwise never learn that a spare has its place."""
    with wire.connect(f"127.0.0.1:{server.port}", "secret") as connection:
        wire.send(connection, {"number": 1, "process": "it"})
        wire.send(connection, RankState().model_dump())
        assert wire.receive(connection) == {}
        server.forget(1)
        wire.send(connection, RankState().model_dump())
        with pytest.raises(EOFError):
            wire.receive(connection)


def test_an_answer_counts_from_the_time_of_its_question_and_an_order_not_at_all(serve: Any) -> None:
    """Whatever delays them: node 0 counts from a later time, so a node leaves before its place is given away."""
    asked: list[float] = []
    go, end = threading.Event(), threading.Event()

    def handle(connection: Connection) -> None:
        wire.receive(connection)
        wire.receive(connection)
        asked.append(time.monotonic())
        wire.send(connection, {"order": 1})
        go.wait()
        wire.send(connection, {})
        wire.send(connection, {"order": 2})
        end.wait()

    link, taken = PeerLink(1, dict, lambda message: taken.append((message["order"], link.since))), []
    link.since -= 1000.0  # it has waited for node 0
    thread = threading.Thread(target=link.hold, args=(serve(handle), "secret"))
    thread.start()
    until(lambda: taken)
    assert link.silence(500.0, 500.0) == ""
    go.set()
    until(lambda: len(taken) == 2)
    assert [order for order, _ in taken] == [1, 2]
    assert all(since < asked[0] for _, since in taken)
    link.ended.set()
    end.set()
    thread.join()


def test_a_silent_connection_is_renewed_and_is_not_a_closed_one(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "RENEW_S", 0.0)
    end = threading.Event()
    link, address = PeerLink(1, dict, lambda message: None), serve(lambda connection: bool(end.wait()))
    link.hold(address, "secret")
    assert link.silence(0.0, 900.0) == ""
    assert link.silence(0.0, 0.0) == "has no connection"
    end.set()
    link.hold(address, "another secret")
    assert link.silence(0.0, 900.0) == "has no connection"


def test_a_connection_is_not_closed_while_another_thread_sends(serve: Any) -> None:
    """Its descriptor may be that of another connection then."""
    sending, closed = threading.Event(), list[bool]()

    def state() -> dict[str, object]:
        if threading.current_thread() is reporter:
            sending.set()
            holder.join(1.0)
            closed.append(not holder.is_alive())
        return {}

    def handle(connection: Connection) -> None:
        wire.receive(connection)
        sending.wait()

    link = PeerLink(1, state, lambda message: None)
    reporter = threading.Thread(target=link.report)
    holder = threading.Thread(target=link.hold, args=(serve(handle), "secret"))
    holder.start()
    until(lambda: link.connection is not None)
    reporter.start()
    reporter.join()
    holder.join()
    assert closed == [False]


def test_an_unknown_number_is_refused(server: Peers[RankState]) -> None:
    with wire.connect(f"127.0.0.1:{server.port}", "secret") as connection:
        wire.send(connection, {"number": 8, "process": "it"})
        with pytest.raises(EOFError):
            wire.receive(connection)
    assert server.known(8) is None
