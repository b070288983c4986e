"""An endpoint with the OpenAI API in this process, which answers badly where a test wants it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "tiny"

#: What a test's function returns for a prompt: the text of the answer, or keywords of `Response`.
Answer = str | dict[str, Any]


class Llm:
    """Requests that arrived, and the function that answers them. `prompts` lists the questions, without probes."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.answer, self.lock = answer, threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.served: list[str] = []
        self.url = ""
        self.listed: tuple[str, ...] = (MODEL,)
        self.closing = threading.Event()

    @property
    def prompts(self) -> list[str]:
        """Questions in order of arrival, without probes."""
        return [body["messages"][0]["content"] for body in self.bodies if body["max_tokens"] > 1]

    def seen(self, prompt: str) -> int:
        """How often a question has arrived."""
        return self.prompts.count(prompt)


@contextmanager
def llm_server(answer: Callable[[str], Answer]) -> Iterator[Llm]:
    """The server, for as long as the block.

    An answer is a text, or a mapping with `status`, `headers`, `raw` (body), `hang_s`, `drip_s` (seconds between
    bytes), `finish`, `model`, `usage`, `content`, `choices`.
    """
    llm = Llm(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            return

        def do_GET(self) -> None:
            self._send(200, {}, json.dumps({"data": [{"id": name} for name in llm.listed]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][0]["content"]
            with llm.lock:
                llm.bodies.append(body)
                llm.headers.append(dict(self.headers))
            found = llm.answer(prompt)
            given = {"content": found} if isinstance(found, str) else found
            llm.closing.wait(given.get("hang_s", 0))
            data = given["raw"] if "raw" in given else json.dumps(_completion(body, given)).encode()
            self._send(given.get("status", 200), given.get("headers", {}), data, given.get("drip_s", 0))
            with llm.lock:
                llm.served.append(prompt)

        def _send(self, status: int, headers: dict[str, str], data: bytes, drip_s: float = 0) -> None:
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for at in range(0, len(data), 1 if drip_s else max(1, len(data))):
                    self.wfile.write(data[at : at + 1] if drip_s else data)
                    if drip_s and llm.closing.wait(drip_s):
                        break
            except OSError:
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    llm.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield llm
    finally:
        llm.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
        time.sleep(0.01)


def _completion(body: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": given.get("content", "")}
    choice = {"index": 0, "message": message, "finish_reason": given.get("finish", "stop")}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {
        "id": "1",
        "object": "chat.completion",
        "model": given.get("model", body["model"]),
        "choices": given.get("choices", [choice]),
        "usage": given.get("usage", usage),
    }
