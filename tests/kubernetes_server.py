"""A Kubernetes API server for Jobs: over HTTP, in this process, and strict about its requests.

    with kubernetes_server() as server:
        Path("config").write_text(server.kubeconfig())   # KUBECONFIG=config

It keeps Jobs, Services and Pods; it makes the pods of a Job, which a test then moves on (`ready`, `exit`) under the
rules of the Job's podFailurePolicy; it deletes in the foreground, so that a Job is there until its pods have ended.
Every object it is sent is validated against the schemas that the official client was generated from.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.peers import Peer

models = Peer("kubernetes.client.models")


Object = dict[str, Any]

_MODELS = {"Job": "V1Job", "Service": "V1Service", "Pod": "V1Pod"}
_PRIMITIVES: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def refuse_unknown(data: Any, kind: str, where: str = "") -> None:
    """Hold an object against the model of its kind: no unknown field, no other type, nothing required left out.

    Raises:
        ValueError: naming the field.
    """
    if inner := re.fullmatch(r"list\[(.*)\]", kind):
        _is(data, list, where)
        for number, item in enumerate(data):
            refuse_unknown(item, inner[1], f"{where}[{number}]")
    elif inner := re.fullmatch(r"dict\([^,]*, (.*)\)|dict\[[^,]*, (.*)\]", kind):
        _is(data, dict, where)
        for name, item in data.items():
            refuse_unknown(item, inner[1] or inner[2], f"{where}.{name}")
    elif kind in _PRIMITIVES:
        _is(data, _PRIMITIVES[kind], where)
        if isinstance(data, bool) and kind != "bool":
            raise ValueError(f"{where} is {data!r}, not {kind}")
    elif kind not in ("object", "datetime"):
        _is(data, dict, where)
        model = getattr(models, kind)
        fields = {json_name: python for python, json_name in model.attribute_map.items()}
        for name, item in data.items():
            if name not in fields:
                raise ValueError(f"{where}.{name} is no field of {kind}")
            refuse_unknown(item, model.openapi_types[fields[name]], f"{where}.{name}")
        model(**{fields[name]: item for name, item in data.items()})  # raises where something required is None


def _is(data: Any, wanted: type | tuple[type, ...], where: str) -> None:
    if not isinstance(data, wanted):
        raise ValueError(f"{where} is {data!r}, not {wanted}")


class Server:
    """State of the server; tests act as the controllers and the nodes."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.jobs: dict[str, Object] = {}
        self.services: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.output: dict[str, str] = {}
        self.requests: list[str] = []
        self.down = False
        self.lock = threading.RLock()
        self.kubelet: Any = None

    def kubeconfig(self) -> str:
        """A file by which any client finds the server."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "secret"}}],
        }
        return json.dumps(config)

    def ready(self, job: str) -> None:
        """The pods of a job run."""
        with self.lock:
            self.jobs[job]["status"]["ready"] = self.jobs[job]["spec"]["parallelism"]

    def exit(self, job: str, index: int, code: int) -> None:
        """The container of one pod ends; the controller applies the Job's policy."""
        with self.lock:
            found = self.jobs[job]
            self.pods.pop(f"{job}-{index}", None)
            action = "" if code == 0 else self._action(found, code)
            found["status"]["ready"] = self.kubelet.ready(job) if self.kubelet else found["status"].get("ready", 0)
            if code == 0:
                found["status"]["succeeded"] = found["status"].get("succeeded", 0) + 1
                if found["status"]["succeeded"] == found["spec"]["completions"]:
                    self._condition(found, "Complete")
            elif action == "FailJob":
                self._condition(found, "Failed")
                self._stop(job)
            else:
                if action != "Ignore":
                    found["status"]["failed"] = found["status"].get("failed", 0) + 1
                found["status"]["ready"] = 0
                if found["status"].get("failed", 0) > found["spec"]["backoffLimit"]:
                    self._condition(found, "Failed")
                elif "deletionTimestamp" not in found["metadata"]:
                    self._pod(found, index)
            if "deletionTimestamp" in found["metadata"] and not self._pods_of(job):
                self._forget(job)

    def create(self, kind: str, data: Object) -> Object:
        """Create an object; raise ValueError if it is invalid, KeyError if its name is taken."""
        refuse_unknown(data, _MODELS[kind], kind)
        if data["kind"] != kind:
            raise ValueError(f"{data['kind']} sent as {kind}")
        name, table = data["metadata"]["name"], self.jobs if kind == "Job" else self.services
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
            raise ValueError(f"metadata.name {name!r} is no DNS label")
        with self.lock:
            if name in table:
                raise KeyError(name)
            data["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
            table[name] = data
            if kind == "Job":
                data["status"] = {"active": data["spec"]["parallelism"], "ready": 0}
                for index in range(data["spec"]["completions"]):
                    self._pod(data, index)
        return data

    def serve_custom(
        self, command: str, plural: str, name: str | None, query: Object, body: Object
    ) -> tuple[int, Object]:
        """Answer a request for a custom resource. This server has none."""
        return 404, {"kind": "Status", "reason": "NotFound", "message": f"no resource {plural}"}

    def delete_job(self, name: str) -> None:
        """In the foreground: gone when its pods are."""
        with self.lock:
            found = self.jobs[name]
            found["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:01Z")
            if found["status"].get("conditions") or not self._pods_of(name):
                for pod in self._pods_of(name):
                    del self.pods[pod]
                self._forget(name)
            else:
                self._stop(name)

    def delete_pod(self, name: str, grace_s: int | None) -> None:
        with self.lock:
            job, _, index = name.rpartition("-")
            if self.kubelet is None:
                self.exit(job, int(index), 137 if grace_s == 0 else 143)
            else:
                self.kubelet.stop(name, grace_s)

    def _pod(self, job: Object, index: int) -> None:
        name = f"{job['metadata']['name']}-{index}"
        labels = {
            **job["spec"]["template"]["metadata"]["labels"],
            "batch.kubernetes.io/job-name": job["metadata"]["name"],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}
        self.pods[name] = {**pod, "spec": job["spec"]["template"]["spec"], "status": {"phase": "Running"}}
        if self.kubelet is not None:
            self.kubelet.start(name, self.pods[name])
            job["status"]["ready"] = self.kubelet.ready(job["metadata"]["name"])

    def _stop(self, job: str) -> None:
        for name in self._pods_of(job) if self.kubelet is not None else ():
            self.kubelet.stop(name, self.pods[name]["spec"]["terminationGracePeriodSeconds"])

    def _pods_of(self, job: str) -> list[str]:
        return [name for name in self.pods if name.rpartition("-")[0] == job]

    def _forget(self, name: str) -> None:
        uid = self.jobs.pop(name)["metadata"]["uid"]
        for service, data in list(self.services.items()):
            if [owner["uid"] for owner in data["metadata"].get("ownerReferences", ())] == [uid]:
                del self.services[service]

    @staticmethod
    def _action(job: Object, code: int) -> str:
        for rule in job["spec"]["podFailurePolicy"]["rules"]:
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return str(rule["action"])
        return ""

    @staticmethod
    def _condition(job: Object, kind: str) -> None:
        job["status"].setdefault("conditions", []).append({"type": kind, "status": "True"})
        job["status"] |= {"active": 0, "ready": 0}


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def _serve(self) -> None:
        known: Server = self.server.known
        url = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        known.requests.append(f"{self.command} {url.path}")
        if known.down:
            return self._answer(503, {"kind": "Status", "message": "down"})
        try:
            return self._route(known, url.path, parse_qs(url.query), body)
        except ValueError as error:
            return self._answer(422, {"kind": "Status", "message": str(error)})

    do_GET = do_POST = do_DELETE = do_PATCH = _serve

    def _route(self, known: Server, path: str, query: dict[str, list[str]], body: Object) -> None:
        custom = re.fullmatch(r"/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/(\w+)(?:/([^/]+))?", path)
        if custom is not None:
            return self._answer(*known.serve_custom(self.command, custom[1], custom[2], query, body))
        match = re.fullmatch(
            r"/(?:api/v1|apis/batch/v1)/namespaces/([^/]+)/(jobs|services|pods)(?:/([^/]+))?(/log)?", path
        )
        if match is None or match[1] != "training":
            return self._answer(403, {"kind": "Status", "message": f"forbidden: {path}"})
        kind, name = match[2], match[3]
        table: dict[str, Object] = getattr(known, kind)
        if self.command == "POST":
            try:
                return self._answer(201, known.create({"jobs": "Job", "services": "Service"}[kind], body))
            except KeyError:
                return self._answer(409, {"kind": "Status", "reason": "AlreadyExists"})
        if name is None:
            label, _, value = query.get("labelSelector", ["="])[0].partition("=")
            items = [item for item in table.values() if item["metadata"]["labels"].get(label) == value]
            return self._answer(200, {"kind": "List", "items": items})
        if name not in table:
            return self._answer(404, {"kind": "Status", "reason": "NotFound"})
        if match[4]:
            lines = known.output.get(name, "").splitlines(keepends=True)[-int(query["tailLines"][0]) :]
            return self._answer(200, "".join(lines))
        if self.command == "DELETE" and kind == "jobs":
            if query.get("propagationPolicy") != ["Foreground"]:
                raise ValueError("a Job deleted otherwise leaves pods behind")
            known.delete_job(name)
            return self._answer(200, {"kind": "Status"})
        if self.command == "DELETE":
            grace = query.get("gracePeriodSeconds")
            known.delete_pod(name, int(grace[0]) if grace else None)
            return self._answer(200, {"kind": "Pod"})
        return self._answer(200, table[name])

    def _answer(self, status: int, body: Object | str) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing on the terminal."""


@contextlib.contextmanager
def kubernetes_server(kind: type[Server] = Server) -> Iterator[Any]:
    """A server on a free port of loopback, until the block ends."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    http.known = kind(http.server_address[1])  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield http.known  # type: ignore[attr-defined]
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@contextlib.contextmanager
def cluster(folder: Path, kind: type[Server] = Server) -> Iterator[Any]:
    """A server as KUBECONFIG names it, until the block ends."""
    with kubernetes_server(kind) as found, pytest.MonkeyPatch.context() as patch:
        (folder / "kubeconfig").write_text(found.kubeconfig())
        patch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        yield found


def run_directory(folder: Path) -> Path:
    """The folder of a run in a workspace."""
    made = folder / "workspace" / "runs" / "demo-0123456789ab"
    made.mkdir(parents=True)
    return made
