"""A line to a server that stalls or is cut: a TCP proxy on loopback.

    with FaultyLine("127.0.0.1:9000", after_bytes=5000, failures=2, stall_s=3.0) as line:
        …  # `line.port` stands for the server

The first so many answers that are longer than `after_bytes` are held up there; after that the line is good. A stall
ends after `stall_s` seconds and the answer goes on; without a stall the connection is cut.

Does not belong here: what is asked of the server.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class FaultyLine:
    """Passes connections on to a server, but for the faults.

    Args:
        endpoint: host and port of the server.
        after_bytes: of an answer, which still arrive.
        failures: answers that are held up or cut.
        stall_s: seconds that an answer is held up; 0 cuts it; infinity lasts until the line is closed.
    """

    def __init__(self, endpoint: str, after_bytes: int, failures: int, stall_s: float = 0.0) -> None:
        host, _, port = endpoint.partition(":")
        self._server, self._after, self.failures_left, self.struck = (host, int(port)), after_bytes, failures, 0
        self._stall_s, self._closed, self._lock = stall_s, threading.Event(), threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultyLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the line; what is held up is cut."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answer: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 14):
                passed += len(data)
                if answer and passed > self._after and self._strikes():
                    if not self._stall_s:
                        break
                    if self._closed.wait(None if self._stall_s == float("inf") else self._stall_s):
                        break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _strikes(self) -> bool:
        with self._lock:
            if self.failures_left <= 0:
                return False
            self.failures_left -= 1
            self.struck += 1
            return True
