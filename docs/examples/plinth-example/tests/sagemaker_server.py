"""SageMaker over HTTP for tests: moto's server behind a proxy that adds what moto lacks.

moto keeps the jobs, lists and describes them, and keeps CloudWatch's logs; its jobs are `Completed` as soon as they are
made, a name may be taken twice, and nothing can be stopped. The proxy refuses a name that was taken, holds requests
against the shapes of the API (lengths and patterns, which boto3 does not check), stops jobs, throttles on demand, and
plays the instance: it runs a job's entry point, its output going to CloudWatch, and interrupts it as spot does.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import botocore.session
from moto.sagemaker.models import sagemaker_backends
from moto.server import ThreadedMotoServer

ACCOUNT, REGION = "123456789012", "us-east-1"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
SHAPES = botocore.session.get_session().get_service_model("sagemaker")
#: Classes of characters that Python's expressions do not know.
JAVA = {r"\p{L}": "a-zA-Z", r"\p{Z}": r"\s", r"\p{N}": "0-9"}


def refuse(value: Any, shape: Any, where: str = "") -> None:
    """Hold a value against a shape of the API.

    Raises:
        ValueError: what is too long, matches no pattern, or is none of the values allowed.
    """
    size = len(value) if isinstance(value, str | list) else value if isinstance(value, int) else 0
    pattern = shape.metadata.get("pattern", "")
    for java, python in JAVA.items():
        pattern = pattern.replace(java, python)
    if size > shape.metadata.get("max", size) or size < shape.metadata.get("min", size):
        raise ValueError(f"{where} has a size of {size}")
    if pattern and isinstance(value, str) and not re.fullmatch(pattern, value, re.DOTALL):
        raise ValueError(f"{where} = {value!r} does not match {pattern}")
    if isinstance(value, str) and getattr(shape, "enum", None) and value not in shape.enum:
        raise ValueError(f"{where} = {value!r} is not allowed")
    for name, item in value.items() if isinstance(value, dict) else ():
        refuse(item, shape.members[name] if shape.type_name == "structure" else shape.value, f"{where}.{name}")
    for item in value if isinstance(value, list) else ():
        refuse(item, shape.member, f"{where}[]")


class Server:
    """The server, and the instances that tests play."""

    def __init__(self, moto: str, port: int, folder: Path) -> None:
        self.moto, self.url, self.folder = moto, f"http://127.0.0.1:{port}", folder
        self.calls: Counter[str] = Counter()
        self.throttle: Counter[str] = Counter()
        self.deaf = False
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def job(self, name: str) -> Any:
        """moto's own record, whose statuses a test may set."""
        return sagemaker_backends[ACCOUNT][REGION].training_jobs[name]

    def names(self) -> list[str]:
        return sorted(sagemaker_backends[ACCOUNT][REGION].training_jobs)

    def set(self, name: str, status: str, secondary: str) -> None:
        job = self.job(name)
        job.training_job_status, job.secondary_status = status, secondary

    def run(self, name: str, workspace: Path) -> subprocess.Popen[str]:
        """Start the containers of a one-host job: its entry point, with the workspace mounted as its channel."""
        mounted = self.folder / name / "opt-ml"
        (mounted / "input" / "data").mkdir(parents=True, exist_ok=True)
        channel = mounted / "input" / "data" / "workspace"
        if not channel.exists():
            channel.symlink_to(workspace)
        asked = self.job(name).algorithm_specification
        words = [*asked["ContainerEntrypoint"], *asked["ContainerArguments"]]
        environment = {**os.environ, **(self.job(name).__dict__.get("environment") or {})}
        process = subprocess.Popen(
            [word.replace("/opt/ml", str(mounted)) for word in words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.processes[name] = process
        self.set(name, "InProgress", "Training")
        return process

    def interrupt(self, name: str) -> None:
        """Spot takes the instance; the job waits."""
        self.processes[name].send_signal(signal.SIGTERM)
        self.processes.pop(name).communicate(timeout=60)
        self.set(name, "InProgress", "Interrupted")

    def stop(self, name: str) -> None:
        process = self.processes.get(name)
        if process is None:
            self.set(name, "Stopped", "Stopped")
            return
        self.set(name, "Stopping", "Stopping")
        process.send_signal(signal.SIGTERM)
        if not self.deaf:
            process.communicate(timeout=60)
            self.set(name, "Stopped", "Stopped")


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        known: Server = self.server.known
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        service, _, action = self.headers.get("X-Amz-Target", "").partition(".")
        known.calls[action] += 1
        if known.throttle[action] > 0:
            known.throttle[action] -= 1
            return self._error(400, "ThrottlingException", "Rate exceeded")
        asked = json.loads(body) if service == "SageMaker" else {}
        name = asked.get("TrainingJobName", "")
        if service == "SageMaker":
            try:
                refuse(asked, SHAPES.operation_model(action).input_shape, action)
            except ValueError as error:
                return self._error(400, "ValidationException", str(error))
        if action == "CreateTrainingJob" and name in known.names():
            return self._error(400, "ResourceInUse", f"{name} already exists")
        if action == "StopTrainingJob":
            if name not in known.names() or known.job(name).training_job_status != "InProgress":
                return self._error(400, "ValidationException", "the job is not in progress")
            known.stop(name)
            return self._answer(200, b"{}")
        status, answer = self._forward(body)
        if action == "CreateTrainingJob" and status == 200:
            known.set(name, "InProgress", "Starting")
        return self._answer(status, answer)

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.server.known.moto, timeout=60)
        connection.request("POST", self.path, body, dict(self.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _error(self, status: int, code: str, message: str) -> None:
        self._answer(status, json.dumps({"__type": code, "message": message}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Run a server during the block; clients find it by AWS_ENDPOINT_URL = its `url`."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    proxy.known = Server(f"{host}:{port}", proxy.server_address[1], folder)  # type: ignore[attr-defined]
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy.known  # type: ignore[attr-defined]
    finally:
        for process in proxy.known.processes.values():  # type: ignore[attr-defined]
            process.kill()
            process.communicate()
        proxy.shutdown()
        proxy.server_close()
        sagemaker_backends[ACCOUNT][REGION].training_jobs.clear()
        moto.stop()
