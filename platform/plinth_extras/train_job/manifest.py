"""Manifests of a run for Kubeflow Trainer: its TrainJob, and the TrainingRuntime with the template of its pods.

A TrainJob does not set pod failure policies, host networking or the priority class: they belong to its runtime. Each
run therefore has its own TrainingRuntime, whose template is the Job of the Kubernetes launcher. Kubeflow Trainer makes
a JobSet of it, with one Job, `node`; JobSet names the pods and the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plinth.launch import manifest
from plinth.launch.manifest import Manifest
from plinth.launch.parameters import Launch

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


def job_name(directory: Path) -> str:
    """Return the name of the TrainJob and the TrainingRuntime, derived from the run's directory."""
    return manifest.job_name(directory, _NAME_CHARACTERS)


def manifests(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> list[Manifest]:
    """Return the TrainJob and its TrainingRuntime.

    Args:
        command: command of the supervisor; the image's interpreter replaces its interpreter.
        directory: `<workspace>/runs/<run_id>`.
        log: file for the output of all pods.

    Raises:
        LaunchError: the recipe names no user, and the submitter is root.
    """
    job = manifest.job(launch, grace_s, command, directory, log)
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
