"""A proxy that cuts or holds up answers, before a server that answers with as many bytes as it is asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from plinth_ops.gamedays.faults import FaultyLine


@pytest.fixture
def server() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.sendall(b"x" * int(connection.recv(100)))
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
    listener.close()


def asked(line: FaultyLine, size: int, timeout_s: float = 30.0) -> int:
    """Return the bytes of an answer until the connection ends, or nothing arrives for `timeout_s`."""
    with socket.create_connection(("127.0.0.1", line.port), timeout=timeout_s) as connection:
        connection.sendall(str(size).encode())
        got = 0
        try:
            while data := connection.recv(1 << 16):
                got += len(data)
        except TimeoutError:
            return -got - 1
        return got


def test_long_answers_are_cut_so_often(server: str) -> None:
    with FaultyLine(server, after_bytes=20_000, failures=2) as line:
        assert asked(line, 10_000) == 10_000
        assert asked(line, 100_000) <= 20_000
        assert asked(line, 100_000) <= 20_000
        assert asked(line, 100_000) == 100_000
        assert line.struck == 2


def test_a_stall_ends_and_the_answer_is_whole(server: str) -> None:
    with FaultyLine(server, after_bytes=1_000, failures=1, stall_s=0.2) as line:
        assert asked(line, 50_000) == 50_000
        assert line.struck == 1


def test_a_stall_without_end_lasts_until_the_line_is_closed(server: str) -> None:
    line = FaultyLine(server, after_bytes=0, failures=1, stall_s=float("inf"))
    assert asked(line, 50_000, timeout_s=0.3) < 0
    line.close()
