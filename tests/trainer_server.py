"""Kubeflow Trainer and JobSet on the API server of the tests: TrainJobs become Jobs, whose pods a test moves on.

TrainJobs and TrainingRuntimes are validated with the project's own models (`kubeflow-trainer-api`), the Job in the
runtime's template with Kubernetes' models. As the project's webhooks do, the server refuses a TrainJob whose runtime
does not exist, and a runtime without a container `node` in a Job labeled as the trainer's.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any

from tests.kubernetes_server import Object, Server
from tests.peers import Peer

models = Peer("kubeflow_trainer_api.models")

_MODELS = {"trainjobs": "TrainerV1alpha1TrainJob", "trainingruntimes": "TrainerV1alpha1TrainingRuntime"}
#: Maximum length of a pod's name with a five-digit index and JobSet's random suffix.
_POD_CHARACTERS = 63 - len("-99999-abcde")


def refuse_unknown(data: Object, plural: str) -> None:
    """Hold an object against the model of its resource.

    Raises:
        ValueError: a field is unknown, missing or has another type.
    """
    model = getattr(models, _MODELS[plural])
    kept = model.from_dict(copy.deepcopy(data)).to_dict()
    if lost := list(_lost(data, kept)):
        raise ValueError(f"unknown fields: {', '.join(lost)}")


def _lost(data: Any, kept: Any, where: str = "") -> Any:
    """Yield the fields that the model did not keep."""
    if isinstance(data, dict):
        for name, item in data.items():
            if not isinstance(kept, dict) or name not in kept:
                yield f"{where}.{name}"
            else:
                yield from _lost(item, kept[name], f"{where}.{name}")
    elif isinstance(data, list):
        for number, item in enumerate(data):
            yield from _lost(item, kept[number] if isinstance(kept, list) else None, f"{where}[{number}]")


class TrainerServer(Server):
    """The server with the two resources of Kubeflow Trainer."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.custom: dict[str, dict[str, Object]] = {plural: {} for plural in _MODELS}

    def serve_custom(
        self, command: str, plural: str, name: str | None, query: Object, body: Object
    ) -> tuple[int, Object]:
        """Answer a request for one of the two resources: the status and the object."""
        table = self.custom[plural]
        with self.lock:
            self._collect()
            if command == "POST":
                return self._create(plural, body)
            if name not in table:
                return 404, {"kind": "Status", "reason": "NotFound"}
            if command == "PATCH":
                for part, change in body.items():
                    table[name][part] |= change
                refuse_unknown(table[name], plural)
            if command == "DELETE" and plural == "trainjobs":
                if query.get("propagationPolicy") != ["Foreground"]:
                    raise ValueError("a TrainJob deleted otherwise leaves pods behind")
                table[name]["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:01Z")
                if f"{name}-node-0" in self.jobs:
                    self.delete_job(f"{name}-node-0")
                self._collect()
                return 200, {"kind": "Status"}
            return 200, self._with_status(table[name]) if plural == "trainjobs" else table[name]

    def _create(self, plural: str, body: Object) -> tuple[int, Object]:
        refuse_unknown(body, plural)
        name = body["metadata"]["name"]
        if name in self.custom[plural]:
            return 409, {"kind": "Status", "reason": "AlreadyExists"}
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
        if plural == "trainjobs":
            self._start(body)
        else:
            _refuse_runtime(body)
        self.custom[plural][name] = body
        return 201, body

    def _start(self, train_job: Object) -> None:
        """Create the Job of JobSet."""
        reference, name = train_job["spec"]["runtimeRef"], train_job["metadata"]["name"]
        runtime = self.custom["trainingruntimes"].get(reference["name"])
        if runtime is None or reference["kind"] != "TrainingRuntime":
            raise ValueError(f"TrainingRuntime {reference['name']} does not exist")
        (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        spec = copy.deepcopy(replicated["template"]["spec"])
        nodes = train_job["spec"]["trainer"]["numNodes"]
        spec |= {"completions": nodes, "parallelism": nodes}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{name}-node-0", "labels": {}},
            "spec": spec,
        }
        if len(job["metadata"]["name"]) > _POD_CHARACTERS:
            raise ValueError(f"pods of {name} would have names that are too long")
        spec["template"]["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = name
        self.create("Job", job)

    def _collect(self) -> None:
        """Delete TrainJobs whose pods have ended, and the runtimes of deleted TrainJobs."""
        for name, job in list(self.custom["trainjobs"].items()):
            if "deletionTimestamp" in job["metadata"] and f"{name}-node-0" not in self.jobs:
                del self.custom["trainjobs"][name]
        alive = {job["metadata"]["uid"] for job in self.custom["trainjobs"].values()}
        for name, runtime in list(self.custom["trainingruntimes"].items()):
            owners = {owner["uid"] for owner in runtime["metadata"].get("ownerReferences", ())}
            if owners and not owners & alive:
                del self.custom["trainingruntimes"][name]

    def _with_status(self, train_job: Object) -> Object:
        job = self.jobs.get(f"{train_job['metadata']['name']}-node-0", {"status": {}})["status"]
        ready = int(bool(job.get("ready")))
        counts = {"ready": ready, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
        conditions = [
            {**each, "reason": "JobsCompleted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for each in job.get("conditions", ())
        ]
        found = {**train_job, "status": {"conditions": conditions, "jobsStatus": [{"name": "node", **counts}]}}
        refuse_unknown(found, "trainjobs")
        return found


def _refuse_runtime(runtime: Object) -> None:
    """Refuse what the project's webhook refuses (pkg/webhooks/trainingruntime_webhook.go)."""
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        labels = job["template"]["metadata"]["labels"]
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
            raise ValueError("no Job of the trainer")
        if job["replicas"] != 1:
            raise ValueError("always must be 1")
        if "node" not in [each["name"] for each in job["template"]["spec"]["template"]["spec"]["containers"]]:
            raise ValueError("must have container with name - node")
