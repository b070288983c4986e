"""Manifests of a run: its Job with one pod per node, and the Service that finds the first pod, as plain dictionaries.

The supervisor's exit status decides (podFailurePolicy, batch/v1, stable since Kubernetes 1.31). After status 75, an
eviction or a preemption, the pod is recreated, and this does not count as a failure. A named failure ends the Job. Any
other end counts against `BACKOFF_LIMIT`. A pod has the recipe's grace period to save before it is killed.

Pods comply with the Pod Security Standard `restricted`: not root, no privilege escalation, no capabilities, the
runtime's seccomp profile. RDMA (IPC_LOCK) and host networking do not comply, and are used only if a recipe requests
them.

The volume claim is mounted at the path of the workspace on the submitting machine, so paths are equal everywhere. If
the workspace is in a bucket, each pod has an empty folder there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from plinth.errors import LaunchError
from plinth.launch import base
from plinth.launch.base import excluded_hosts
from plinth.launch.parameters import NORMAL, Launch
from plinth.storage.workspace import CACHE_VARIABLE

Manifest = dict[str, Any]

CONTAINER = "supervisor"

#: Exit statuses of named failures (plinth.errors), which a retry would not fix.
NAMED = list(range(2, 10))

#: Maximum unexplained pod failures; Kubernetes' own default.
BACKOFF_LIMIT = 6

#: Seconds for which a finished Job is kept.
KEPT_S = 7 * 86_400

#: Seconds added to the recipe's grace period, for the supervisor to record the end of the job.
LEAVE_S = 30

#: Maximum length of a name, below 63 with a pod's index appended (RFC 1123).
_NAME_CHARACTERS = 36

#: Labels of Kueue: queue of a Job, and priority class for admission and preemption.
QUEUE, QUEUE_PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
#: Labels of Plinth, for people and for metrics by team.
TEAM, PRIORITY = "plinth/team", "plinth/priority"

NO_LABELS: Mapping[str, str] = MappingProxyType({})

_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def job_name(directory: Path, characters: int = _NAME_CHARACTERS) -> str:
    """Return a name derived from the run's directory, so that a second Job would conflict.

    Args:
        characters: maximum length of the part that is readable.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", directory.name.lower())[:characters].strip("-")
    return f"plinth-{slug}-{hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()[:8]}"


def job(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> Manifest:
    """Return the Job of a run.

    Args:
        command: command of the supervisor; the image's interpreter replaces its interpreter.
        directory: `<workspace>/runs/<run_id>`.
        log: file for the output of all pods, which `kubectl logs` shows too.

    Raises:
        LaunchError: the recipe names no user, and the submitter is root.
    """
    asked, name = launch.kubernetes, job_name(directory)
    pod: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(grace_s) + LEAVE_S,
        "automountServiceAccountToken": False,
        "securityContext": _security(launch),
        "containers": [_container(launch, command, directory, log)],
        "volumes": _volumes(launch, directory),
    }
    if launch.nodes > 1:
        pod["subdomain"] = name
    if asked.service_account:
        pod["serviceAccountName"] = asked.service_account
    if asked.node_selector:
        pod["nodeSelector"] = dict(asked.node_selector)
    if unfit := excluded_hosts(directory):
        pod["affinity"] = _elsewhere(unfit)
    if asked.tolerations:
        pod["tolerations"] = [dict(entry) for entry in asked.tolerations]
    if asked.priority_class:
        pod["priorityClassName"] = asked.priority_class
    if asked.host_network:  # the node's resolver would not find the Service otherwise
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    metadata: Manifest = {"labels": _labels(directory)}
    if asked.annotations:
        metadata["annotations"] = dict(asked.annotations)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(launch, directory, _queueing(launch)),
        "spec": {
            "completions": launch.machines,
            "parallelism": launch.machines,
            "completionMode": "Indexed",
            "backoffLimit": BACKOFF_LIMIT,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _rules()},
            # a spare may never have started
            **({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}} if launch.spares else {}),
            "ttlSecondsAfterFinished": KEPT_S,
            **({"suspend": True} if QUEUE in _queueing(launch) else {}),  # until Kueue admits it
            "template": {"metadata": metadata, "spec": pod},
        },
    }


def service(launch: Launch, directory: Path) -> Manifest | None:
    """Return the headless Service that names the pods of several nodes, or None for a single node."""
    if launch.nodes == 1:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(launch, directory),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": job_name(directory)},
        },
    }


def _metadata(launch: Launch, directory: Path, labels: Mapping[str, str] = NO_LABELS) -> Manifest:
    return {
        "name": job_name(directory),
        "namespace": launch.kubernetes.namespace,
        "labels": {**_labels(directory), **labels},
        "annotations": {"plinth/directory": str(directory)},
    }


def _queueing(launch: Launch) -> dict[str, str]:
    """Return labels of the Job: its priority class, and its queue, which is the configured queue or else the team's."""
    asked, queue = launch.queueing, launch.kubernetes.queue or launch.queueing.team
    found = {QUEUE: queue} if queue else {}
    if asked.team:
        found[TEAM] = asked.team
    if asked.priority != NORMAL:
        found |= {PRIORITY: asked.priority} | ({QUEUE_PRIORITY: asked.priority} if queue else {})
    return found


def _labels(directory: Path) -> dict[str, str]:
    return {"app.kubernetes.io/name": "plinth", "app.kubernetes.io/instance": job_name(directory)}


def _rules() -> list[Manifest]:
    """Return the pod failure policy; the first matching rule applies."""
    codes = {"containerName": CONTAINER, "operator": "In"}
    return [
        {"action": "Ignore", "onExitCodes": {**codes, "values": [base.LEFT]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {**codes, "values": NAMED}},
    ]


def _security(launch: Launch) -> Manifest:
    """Return the pod's security context. Workspace files are private to their user, hence the submitter's ids."""
    user, _, group = launch.kubernetes.user.partition(":")
    if not user:
        user, group = str(os.getuid()), str(os.getgid())
        if user == "0":
            raise LaunchError(
                "the pods would run as root, as their submitter does",
                expected="a user who can read and write the workspace",
                remedy="set training.launch.kubernetes.user, for example '1000:1000'; '0' for root",
            )
    return {
        "runAsNonRoot": int(user) != 0,
        "runAsUser": int(user),
        "runAsGroup": int(group or user),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container(launch: Launch, command: Sequence[str], directory: Path, log: Path) -> Manifest:
    asked = launch.kubernetes
    found: Manifest = {
        "name": CONTAINER,
        "image": asked.image,
        "workingDir": "/",
        "command": ["bash", "-c", base.logged([launch.python or "python", *command[1:]], log)],
        "env": [
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": "PYTHONSAFEPATH", "value": "1"},
            {"name": "PLINTH_IMAGE", "value": asked.image},  # part of the trainer's statement
            *_places(launch, directory),
        ],
        "volumeMounts": _mounts(launch, directory),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            # RDMA pins the memory that it registers
            "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if asked.rdma else {})},
        },
    }
    resources = {**asked.resources, **asked.rdma}
    if resources:
        found["resources"] = {"requests": resources, "limits": dict(resources)}
    if asked.secrets:
        found["envFrom"] = [{"secretRef": {"name": name}} for name in asked.secrets]
    return found


def _elsewhere(hosts: list[str]) -> Manifest:
    """Return a node affinity that excludes these nodes, which failed the checks of an earlier Job of the run."""
    # only `metadata.name` can be matched, with one value per requirement; all requirements must hold
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in hosts]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _places(launch: Launch, directory: Path) -> list[Manifest]:
    """Return the environment variables that give a pod its machine name. With several nodes they also give its index
    and the first pod's name."""
    host: Manifest = {"name": "PLINTH_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    cache: Manifest = {"name": CACHE_VARIABLE, "value": str(directory.parent.parent.parent)}
    own = [host, *([cache] if base.is_shared(directory) else [])]
    if launch.nodes == 1:
        return own
    name = job_name(directory)
    return [
        *own,
        {"name": "PLINTH_NODES", "value": str(launch.machines)},
        {"name": "PLINTH_NODE", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "PLINTH_ADDRESS", "value": f"{name}-0.{name}"},
    ]


def _volumes(launch: Launch, directory: Path) -> list[Manifest]:
    claim: Manifest = {"persistentVolumeClaim": {"claimName": launch.kubernetes.claim}}
    found: list[Manifest] = [{"name": "workspace", **({"emptyDir": {}} if base.is_shared(directory) else claim)}]
    if launch.kubernetes.shm_bytes:
        limit = str(launch.kubernetes.shm_bytes)
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
    return found


def _mounts(launch: Launch, directory: Path) -> list[Manifest]:
    workspace: Manifest = {"name": "workspace", "mountPath": str(directory.parent.parent)}
    if launch.kubernetes.sub_path and not base.is_shared(directory):
        workspace["subPath"] = launch.kubernetes.sub_path
    return [workspace] + [{"name": "shm", "mountPath": "/dev/shm"}] * bool(launch.kubernetes.shm_bytes)
