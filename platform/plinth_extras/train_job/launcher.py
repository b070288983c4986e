"""Launcher of TrainJobs, through the API server and the official client (extra `kubernetes`).

A TrainJob does not set pod failure policies, host networking or the priority class: they belong to its runtime. Each
run therefore has its own TrainingRuntime, whose template is the Job of the Kubernetes launcher. Kubeflow Trainer makes
a JobSet of it, with one Job, `node`; JobSet names the pods and the hosts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plinth.errors import LaunchError
from plinth.launch import manifest as job_manifest
from plinth.launch.base import EVERY_S, LauncherKind
from plinth.launch.kubernetes import KubernetesLauncher, ObjectExists, ObjectMissing, ServerJob, preview, status
from plinth.launch.manifest import Manifest
from plinth.launch.parameters import Launch, kubernetes_problems

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"

#: Name of the trainer's Job in the JobSet, and of its container. Kubeflow Trainer expects both.
NODE = "node"

#: Label by which Kubeflow Trainer finds the Job that trains.
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"

#: Fields of the Job that Kubeflow Trainer or JobSet set, or that would let JobSet create a deleted Job again.
_NOT_OURS = ("suspend", "ttlSecondsAfterFinished")

#: Maximum length of the directory's part in a name: JobSet adds the names of the Job and of the pod, and the name of a
#: pod may have 63 characters.
_NAME_CHARACTERS = 24

_JOBS = {"group": GROUP, "version": VERSION, "plural": "trainjobs"}
_RUNTIMES = {"group": GROUP, "version": VERSION, "plural": "trainingruntimes"}


def job_name(directory: Path) -> str:
    """Return the name of the TrainJob and the TrainingRuntime, derived from the run's directory."""
    return job_manifest.job_name(directory, _NAME_CHARACTERS)


def manifests(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> list[Manifest]:
    """Return the TrainJob and its TrainingRuntime.

    Args:
        command: command of the supervisor; the image's interpreter replaces its interpreter.
        directory: `<workspace>/runs/<run_id>`.
        log: file for the output of all pods.

    Raises:
        LaunchError: the recipe names no user, and the submitter is root.
    """
    job = job_manifest.job(launch, grace_s, command, directory, log)
    name, metadata = job_name(directory), {**job["metadata"], "name": job_name(directory)}
    train_job = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": name},
            "trainer": {"numNodes": launch.machines},
            **({"suspend": True} if job["spec"].get("suspend") else {}),  # until Kueue admits it
        },
    }
    template = {"metadata": {"labels": {ANCESTOR: "trainer"}}, "spec": _template(job["spec"], name)}
    runtime = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingRuntime",
        "metadata": {key: value for key, value in metadata.items() if key != "annotations"},
        "spec": {
            "mlPolicy": {"numNodes": launch.machines},
            "template": {"spec": {"replicatedJobs": [{"name": NODE, "replicas": 1, "template": template}]}},
        },
    }
    return [train_job, runtime]


def _template(job: Manifest, name: str) -> Manifest:
    """Return the Job's specification with the names that Kubeflow Trainer and JobSet use."""
    pod = {key: value for key, value in job["template"]["spec"].items() if key != "subdomain"}  # JobSet sets it
    address = {"name": "PLINTH_ADDRESS", "value": f"{name}-{NODE}-0-0.{name}"}
    (container,) = pod["containers"]
    environment = [address if entry["name"] == "PLINTH_ADDRESS" else entry for entry in container["env"]]
    pod["containers"] = [{**container, "name": NODE, "env": environment}]
    rules = job["podFailurePolicy"]["rules"]
    renamed = [
        {**rule, "onExitCodes": {**rule["onExitCodes"], "containerName": NODE}} if "onExitCodes" in rule else rule
        for rule in rules
    ]
    return {
        **{key: value for key, value in job.items() if key not in _NOT_OURS},
        "podFailurePolicy": {"rules": renamed},
        "template": {**job["template"], "spec": pod},
    }


class TrainJobLauncher(KubernetesLauncher):
    """Launcher that identifies a job by the name and uid of its TrainJob."""

    kind = "trainjob"
    resource = "trainjob"
    pod_label = "jobset.sigs.k8s.io/jobset-name"

    def __init__(self, launch: Launch, grace_s: float, every_s: float = EVERY_S) -> None:
        if refusals := [f"{key}: {reason}" for key, reason in kubernetes_problems(launch)]:
            raise LaunchError(
                "the recipe does not describe the pods of the TrainJob",
                found="; ".join(refusals),
                remedy="set these keys below training.launch",
            )
        super().__init__(launch, grace_s, every_s)

    job_name = staticmethod(job_name)
    manifests = staticmethod(manifests)

    def create(self, wanted: list[Manifest]) -> ServerJob:
        """Create the TrainingRuntime, and then the TrainJob, which is refused without its runtime.

        Raises:
            ObjectExists: there is a TrainJob with this name, or the runtime of a deleted one still exists.
        """
        job, runtime = wanted
        if self.read(job["metadata"]["name"]) is not None:
            raise ObjectExists
        self._prepare(runtime)
        found = _found(self.call("create_namespaced_custom_object", **_JOBS, body=job))
        self.adopt(found, wanted)
        return found

    def adopt(self, found: ServerJob, wanted: list[Manifest]) -> None:
        """Make the TrainJob the owner of its runtime, which is then deleted with it."""
        owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "TrainJob", "name": found.name, "uid": found.uid}
        self._change(found.name, {"metadata": {"ownerReferences": [owner]}})

    def read(self, name: str) -> ServerJob | None:
        """Return the TrainJob with this name, or None."""
        try:
            return _found(self.call("get_namespaced_custom_object", **_JOBS, name=name))
        except ObjectMissing:
            return None

    def delete(self, name: str) -> None:
        """Delete the TrainJob. It exists until its pods have ended."""
        with contextlib.suppress(ObjectMissing):
            self.call("delete_namespaced_custom_object", **_JOBS, name=name, propagation_policy="Foreground")

    def _prepare(self, runtime: Manifest) -> None:
        """Create the runtime, or update the one whose submitter died before it created the TrainJob."""
        name = runtime["metadata"]["name"]
        try:
            self.call("create_namespaced_custom_object", **_RUNTIMES, body=runtime)
            return
        except ObjectExists:
            pass
        try:
            known = self.call("get_namespaced_custom_object", **_RUNTIMES, name=name)
        except ObjectMissing as error:
            raise ObjectExists from error  # deleted meanwhile: the next try creates it
        if known["metadata"].get("deletionTimestamp") or known["metadata"].get("ownerReferences"):
            raise ObjectExists  # of a TrainJob that was deleted; the server deletes its runtime soon
        self._change(name, {"spec": runtime["spec"]})

    def _change(self, name: str, body: Manifest) -> None:
        with contextlib.suppress(ObjectMissing):
            self.call("patch_namespaced_custom_object", **_RUNTIMES, name=name, body=body)


def _found(job: dict[str, Any]) -> ServerJob:
    metadata, told = job["metadata"], job.get("status", {})
    deleting = "deletionTimestamp" in metadata
    conditions = [(each["type"], each["status"]) for each in told.get("conditions", ())]
    ready = any(each.get("ready") for each in told.get("jobsStatus", ()))
    return ServerJob(metadata["name"], metadata["uid"], status(conditions, ready=ready, deleting=deleting), deleting)


KIND = LauncherKind(
    name="trainjob",
    description="A TrainJob of Kubeflow Trainer: one pod per node.",
    make=TrainJobLauncher,
    preview=preview(TrainJobLauncher.manifests),
)
