"""Connections of numbered peers to one server: of the nodes or the ranks of a job to node 0's supervisor.

    peer ── hello ────────────────▶ server   its number, and a token of its process
         ◀── messages in effect ──           the last ones, also for peers that connect later
         ── state ────────────────▶          when it changes, and each second
         ◀── {} ──────────────────           the answer to each state, so each end knows that the other is alive

The peer connects again when the connection ends, and also when the server does not answer. Does not belong here: the
form of messages (`wire`).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from plinth.records import Frozen
from plinth.training import wire
from plinth.training.wire import Message

#: Seconds between two heartbeats.
BEAT_S = 1.0

#: Seconds until a peer without a connection tries again.
AGAIN_S = 0.2

#: Seconds without an answer after which a peer opens another connection.
RENEW_S = 6.0

#: Maximum seconds to open a connection. The server at an address that does not answer may have a successor elsewhere.
CONNECT_S = 2.0

_State = TypeVar("_State", bound=Frozen)


@dataclass
class Contact:
    """The other end of a connection: whether it is connected, and a time until which it was alive."""

    connection: Connection | None = None
    since: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while a message is sent

    def send(self, message: Callable[[], Message]) -> None:
        """Send a message if the other end is connected. A failure shows in `silence`."""
        with self.lock, suppress(*wire.FAILURES):
            connection = self.connection
            if connection is not None:
                wire.send(connection, message())  # made under the lock, so an older state never follows a newer one

    def leave(self) -> None:
        """Call this before the connection is closed. No thread sends by its descriptor then, which may be reused."""
        with self.lock:
            self.connection = None

    def silence(self, closed_s: float, silent_s: float) -> str:
        """Return the reason why the other end is lost, or an empty text.

        Args:
            closed_s: seconds without a connection, since `since`.
            silent_s: seconds since `since`.
        """
        age_s = time.monotonic() - self.since
        if self.connection is None and age_s > closed_s:
            return "has no connection"
        return "is silent" if age_s > silent_s else ""


@dataclass
class Peer(Contact, Generic[_State]):
    """The newest process of a peer, as the server knows it."""

    hello: Message = field(default_factory=dict)
    state: _State = field(kw_only=True)


class Peers(Generic[_State]):
    """Server of numbered peers. Once a peer has connected, another process with its number is refused until the peer is
    forgotten. A forgotten process gets no more answers, so it finds out.

    Args:
        blank: state of a peer before its first report.
        numbers: numbers of the peers; others are refused.
        everywhere: True to listen on all interfaces, False for this machine only.
    """

    def __init__(self, secret: str, blank: _State, numbers: Collection[int], *, everywhere: bool) -> None:
        self._blank, self._numbers, self._lock = blank, numbers, threading.Lock()
        self._known: dict[int, Peer[_State]] = {}
        self._told: list[Message] = []
        self._gone: set[str] = set()  # processes that are never admitted again
        self._server = wire.MessageServer(secret, self._handle, everywhere=everywhere)
        self.port = self._server.port

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def known(self, number: int) -> Peer[_State] | None:
        """Return what is known about a peer, or None if it has not connected yet."""
        return self._known.get(number)

    def forget(self, number: int) -> None:
        """Admit the current process of a peer never again, because another one replaces it."""
        with self._lock:
            peer = self._known.pop(number, None)
            if peer is not None:
                self._gone.add(peer.hello["process"])

    def reset(self) -> None:
        """Forget all peers and messages."""
        for number in list(self._known):
            self.forget(number)
        with self._lock:
            self._told = []

    def tell(self, message: Message, *, also: bool = False) -> None:
        """Send a message to all peers. It replaces the earlier messages, or is in effect with them (`also`)."""
        with self._lock:
            self._told = [*self._told, message] if also else [message]
            peers = list(self._known.values())
        for peer in peers:
            peer.send(lambda: message)

    def _handle(self, connection: Connection) -> None:
        peer = Peer(connection, hello=wire.receive(connection), state=self._blank)
        try:
            with peer.lock:  # later messages follow those in effect
                for message in self._admitted(peer):
                    wire.send(connection, message)
            while True:
                state = type(self._blank).model_validate(wire.receive(connection))
                if self._known.get(peer.hello["number"]) is not peer:
                    return  # forgotten, or connected again
                peer.state, peer.since = state, time.monotonic()
                peer.send(dict)
        finally:
            peer.leave()

    def _admitted(self, peer: Peer[_State]) -> list[Message]:
        """Remember a peer, and return the messages in effect.

        Raises:
            ValueError: there is no peer with this number, or the number is that of another process.
        """
        number, process = peer.hello["number"], peer.hello["process"]
        if number not in self._numbers:
            raise ValueError(f"no peer has the number {number}")
        with self._lock:
            before = self._known.get(number)
            if process in self._gone or (before is not None and before.hello["process"] != process):
                raise ValueError(f"peer {number} is another process")
            if before is not None:  # connected again
                peer.state = before.state
            self._known[number] = peer
            return list(self._told)


class PeerLink(Contact):
    """A peer's connection to the server. `since` is the time at which the last answered state was sent: the server
    counts from a later time, so this end gives the server up first, whatever delays an answer.

    Args:
        hello: facts about this peer, which do not change.
        state: returns the current state.
        take: called with each message of the server, on the link's thread.
        pause_s: called with the connection before each wait; returns the maximum seconds of the wait.
    """

    def __init__(
        self,
        number: int,
        state: Callable[[], Message],
        take: Callable[[Message], None],
        pause_s: Callable[[Connection], float] = lambda connection: BEAT_S,
        **hello: object,
    ) -> None:
        super().__init__()
        self.met = False  # True once a message has arrived
        self.ended = threading.Event()  # set to close the connection
        self._hello = {"number": number, "process": uuid.uuid4().hex, **hello}
        self._state, self._take, self._pause_s = state, take, pause_s
        self._sent: deque[float] = deque()  # times of the states without an answer
        self._renews = False  # True if this end has closed a silent connection, to open another one

    def report(self) -> None:
        """Send the current state if the server is connected."""
        self.send(self._timed)

    def hold(self, address: str, secret: str) -> None:
        """Connect, and return when the connection has ended or was refused."""
        renews = False
        with suppress(*wire.FAILURES), wire.connect(address, secret, CONNECT_S) as connection:
            opened = time.monotonic()
            wire.send(connection, self._hello)
            try:
                with self.lock:
                    self._sent.clear()
                    self.connection = connection
                renews = self._renews = self._listen(connection, opened)
            finally:
                self.leave()
        self._renews = renews
        time.sleep(AGAIN_S)

    def silence(self, closed_s: float, silent_s: float) -> str:
        """Return the reason why the server is lost, or an empty text. It is not lost because this end opens another
        connection."""
        return super().silence(silent_s if self._renews else closed_s, silent_s)

    def _listen(self, connection: Connection, opened: float) -> bool:
        """Exchange messages until the connection ends, and return False. If the server is silent, return True."""
        self.report()
        while not self.ended.is_set():
            if time.monotonic() - max(self.since, opened) > RENEW_S:
                return True
            if not connection.poll(self._pause_s(connection)):
                self.report()
                continue
            message = wire.receive(connection)
            if not self.met:
                self.since, self.met = opened, True
            if message:
                self._take(message)
            else:
                self.since = self._sent.popleft()
        return False

    def _timed(self) -> Message:
        self._sent.append(time.monotonic())
        return self._state()
