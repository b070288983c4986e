"""Authenticated messages over TCP, between the supervisors, ranks and keepers of one job.

A message is one JSON object. Large data follow a message that names their size. Both ends prove by HMAC that they know
the job's secret before the first message, so no other user of the network can connect. Nothing is unpickled. Who
controls the network between two nodes can read and change what follows, like the data of the collectives.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from plinth.records import Frozen

#: Maximum size of a JSON message, in bytes. A plan of a large model is the largest message.
_MESSAGE_BYTES = 1 << 28

#: Seconds after which a send or receive that makes no progress fails.
STALLED_S = 20.0

#: Seconds until a server that cannot accept a connection tries again.
AGAIN_S = 0.1

#: Errors of a connection.
FAILURES = (OSError, EOFError, ValueError, AuthenticationError)

Message = dict[str, Any]


class Address(Frozen):
    """TCP address of a listening process, as `host:port` in text."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        host, _, port = text.rpartition(":")
        return cls(host=host, port=int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def own_host(towards: str) -> str:
    """Return the address of this machine on the interface that leads to another host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))  # sends nothing
        return str(probe.getsockname()[0])


def connect(address: str, secret: str, timeout_s: float = 5.0) -> Connection:
    """Return an authenticated connection.

    Raises:
        OSError, EOFError, ValueError, AuthenticationError: no process answers, or it does not know the secret.
    """
    wanted = Address.of(address)
    connection = _wrapped(socket.create_connection((wanted.host, wanted.port), timeout_s))
    try:
        answer_challenge(connection, secret.encode())
        deliver_challenge(connection, secret.encode())
    except BaseException:
        connection.close()
        raise
    return connection


def wait_until_open(host: str, port: int, is_vain: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait until a process listens at an address. A client of torch's store would wait seconds before it tries again.

    Args:
        is_vain: returns True once the process need not listen any more.

    Raises:
        RuntimeError: no process listens in time, which is a failure like that of a collective.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
            return
        except OSError as error:
            if is_vain() or time.monotonic() > until:
                raise RuntimeError(f"the leading rank does not listen at {host}:{port}") from error
        time.sleep(0.02)


class MessageServer:
    """Listens on a port and calls `handle` for each authenticated connection, in a thread of its own.

    Args:
        everywhere: True to listen on all interfaces, False for this machine only.
        port: port to listen on; 0 for any free port.
    """

    def __init__(self, secret: str, handle: Callable[[Connection], None], *, everywhere: bool, port: int = 0) -> None:
        self._secret, self._handle = secret.encode(), handle
        self._closed = False
        self._socket = socket.create_server(("" if everywhere else "127.0.0.1", port), backlog=1024)
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="plinth-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections. Those that are open end with the other side."""
        self._closed = True
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which `close` alone does not
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = _wrapped(self._socket.accept()[0])
                threading.Thread(target=self._serve, args=(connection,), name="plinth-serve", daemon=True).start()
            except (OSError, RuntimeError):  # a connection that was closed meanwhile, or too many files or threads
                if self._closed:
                    return
                time.sleep(AGAIN_S)

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(*FAILURES):
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            self._handle(connection)


def send(connection: Connection, message: Mapping[str, Any]) -> None:
    """Send one message."""
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> Message:
    """Wait for one message."""
    found: Message = json.loads(connection.recv_bytes(_MESSAGE_BYTES))
    return found


def send_block(connection: Connection, block: memoryview) -> None:
    """Send large data, whose size the other end knows."""
    at = 0
    while at < len(block):
        at += os.write(connection.fileno(), block[at:])


def receive_block(connection: Connection, block: memoryview) -> None:
    """Fill a block with data that the other end sends, without a copy."""
    at = 0
    while at < len(block):
        read = os.readv(connection.fileno(), [block[at:]])
        if not read:
            raise EOFError
        at += read


def _wrapped(made: socket.socket) -> Connection:
    """Return a connection whose sends and receives fail once the other end stalls."""
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limit = struct.pack("ll", int(STALLED_S), 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    return Connection(made.detach())
