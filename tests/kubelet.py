"""A kubelet for the API server of the tests: runs the containers of pods as processes of this machine.

    with kubernetes_server() as server, Kubelet(server):
        ...                                     # pods that are created run, and end under the Job's rules

A container gets its command, variables and working directory; its image and volumes are this machine. A pod that is
deleted gets SIGTERM, and SIGKILL after its grace period. What is left of a container when its process has ended is
killed, as the end of a PID namespace does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import Any

from tests.kubernetes_server import Object, Server


class Kubelet:
    """Runs the pods of a server until the block ends."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._timers: list[tuple[subprocess.Popen[bytes], threading.Timer]] = []
        self._closed = False

    def __enter__(self) -> Kubelet:
        self._server.kubelet = self
        return self

    def __exit__(self, *_: Any) -> None:
        with self._server.lock:
            self._closed = True
            for name in list(self._running):
                self.stop(name, 0)
        for thread in [*self._threads, *(timer for _, timer in self._timers)]:
            thread.join()

    def start(self, name: str, pod: Object) -> None:
        """Run the container of a pod; the server's lock is held."""
        if self._closed:
            return
        (container,) = pod["spec"]["containers"]
        index = name.rpartition("-")[2]
        process = subprocess.Popen(
            container["command"],
            env={**os.environ, **{entry["name"]: _value(entry, index) for entry in container["env"]}},
            cwd=container["workingDir"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._running[name] = process
        thread = threading.Thread(target=self._wait, args=(name, pod, process), daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, name: str, grace_s: float) -> None:
        """Ask the container of a pod to end, and kill it after the grace period."""
        process = self._running.get(name)
        if process is None:
            return
        if grace_s:
            process.send_signal(signal.SIGTERM)
            timer = threading.Timer(grace_s, _kill, [process])
            timer.start()
            self._timers.append((process, timer))
        else:
            _kill(process)

    def ready(self, job: str) -> int:
        """Return the number of running pods of a Job."""
        return sum(name.rpartition("-")[0] == job for name in self._running)

    def _wait(self, name: str, pod: Object, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        for waiting, timer in self._timers:
            if waiting is process:
                timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with self._server.lock:
            if self._running.get(name) is process:
                del self._running[name]
            if self._server.pods.get(name) is pod and not self._closed:
                job, _, index = name.rpartition("-")
                self._server.exit(job, int(index), code if code >= 0 else 128 - code)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _value(entry: Object, index: str) -> str:
    if "value" in entry:
        return str(entry["value"])
    return index if "completion-index" in entry["valueFrom"]["fieldRef"]["fieldPath"] else f"node-{index}"
