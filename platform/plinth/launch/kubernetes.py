"""Kubernetes Jobs, through the API server and the official client (extra `kubernetes`).

A Job's name is a function of the run's directory, so the server itself refuses a second Job of a run. The Job's uid
proves that a name still means the same Job. A canceled Job is deleted with its pods; their output is in the run's
directory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plinth.errors import LaunchError
from plinth.launch import manifest
from plinth.launch.base import (
    EVERY_S,
    Handle,
    JobStatus,
    LauncherKind,
    StatusCache,
    locked,
    read_handle,
    tail,
    write_handle,
)
from plinth.launch.parameters import Launch

TIMEOUT_S = 30.0

POLL_S = 0.5

#: Maximum seconds to wait until an ended Job has disappeared, before the next Job with its name is created.
VANISH_S = 120.0

NOT_FOUND, CONFLICT = 404, 409


class KubernetesLauncher:
    """Launcher that identifies a job by the name and uid of its Job."""

    def __init__(self, launch: Launch, grace_s: float, every_s: float = EVERY_S) -> None:
        self._launch, self._grace_s = launch, grace_s
        self._namespace = launch.kubernetes.namespace
        self._client: Any = None
        self._status = StatusCache(self._ask, every_s)

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Create the Job, or return the live Job. A finished Job is deleted first."""
        directory, log = directory.absolute(), log.absolute()
        wanted = manifest.job(self._launch, self._grace_s, command, directory, log)
        with locked(directory):
            made = self._create(wanted)
            self._name_pods(directory, made)
            self._status.forget()
            return write_handle(directory, self._handle(made))

    def find(self, directory: Path) -> Handle | None:
        """Return the handle in `directory`, or else the handle of the Job with the run's name."""
        handle = read_handle(directory)
        if handle is None:
            found = self._read(manifest.job_name(directory.absolute()))
            return None if found is None else self._handle(found)
        return handle

    def poll(self, handle: Handle) -> JobStatus:
        """Return the status of the Job from a server answer that is at most a few seconds old."""
        return self._status(handle)

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Delete the Job: its pods get SIGTERM and the recipe's grace period; after `grace_s`, they are killed."""
        self._status.forget()
        if not self._ask(handle).alive:
            return
        self._delete(handle.id)
        until = time.monotonic() + grace_s
        while self._ask(handle).alive:
            if time.monotonic() > until:
                for pod in self._pods(handle.id):
                    with contextlib.suppress(_Missing):
                        self._call("delete_namespaced_pod", pod.metadata.name, grace_period_seconds=0)
                return
            time.sleep(POLL_S)

    def logs(self, log: Path, lines: int = 50) -> str:
        """Return the last lines of the run's log, or of the first pod's log if the run's log does not exist yet."""
        written = tail(log, lines)
        if written:
            return written
        for pod in self._pods(manifest.job_name(log.parent.absolute())):
            with contextlib.suppress(_Missing, LaunchError):  # a pod that has not started has no log
                # the client's own decoding returns a bytes literal as text (kubernetes 36)
                options = {"tail_lines": lines, "_preload_content": False}
                said: bytes = self._call("read_namespaced_pod_log", pod.metadata.name, **options).data
                return said.decode(errors="replace").rstrip("\n")
        return ""

    def _create(self, wanted: manifest.Manifest) -> Any:
        """Create the Job, or return the live Job of this name if it exists."""
        name, until = wanted["metadata"]["name"], time.monotonic() + VANISH_S
        while time.monotonic() < until:
            try:
                return self._call("create_namespaced_job", body=wanted)
            except _Exists:
                found = self._read(name)
            if found is not None and found.metadata.deletion_timestamp is None:
                if _status(found).alive:
                    return found
                self._delete(name)
            time.sleep(POLL_S)
        raise LaunchError(
            f"the Job {name} has ended but is not deleted",
            found=f"still there after {VANISH_S:g} s",
            remedy=f"see `kubectl -n {self._namespace} describe job {name}`",
        )

    def _name_pods(self, directory: Path, owner: Any) -> None:
        """Create the Service by which the pods of several nodes find the first pod. The Service is deleted with its
        Job."""
        wanted = manifest.service(self._launch, directory)
        if wanted is None:
            return
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.metadata.name, "uid": owner.metadata.uid}
        wanted["metadata"]["ownerReferences"] = [reference]
        with contextlib.suppress(_Exists):
            self._call("create_namespaced_service", body=wanted)

    def _ask(self, handle: Handle) -> JobStatus:
        found = self._read(handle.id)
        if found is None or found.metadata.uid != handle.started:
            return JobStatus.GONE
        return _status(found)

    def _read(self, name: str) -> Any:
        try:
            return self._call("read_namespaced_job", name)
        except _Missing:
            return None

    def _delete(self, name: str) -> None:
        with contextlib.suppress(_Missing):
            self._call("delete_namespaced_job", name, propagation_policy="Foreground")

    def _pods(self, name: str) -> list[Any]:
        """Return the pods of a Job, with the pod of node 0 first."""
        found = self._call("list_namespaced_pod", label_selector=f"batch.kubernetes.io/job-name={name}").items
        return sorted(found, key=lambda pod: str(pod.metadata.name))

    def _handle(self, job: Any) -> Handle:
        host = self._api().api_client.configuration.host
        return Handle(launcher="kubernetes", id=job.metadata.name, started=job.metadata.uid, host=host)

    def _api(self, kind: str = "BatchV1Api") -> Any:
        client = _import()
        if self._client is None:
            self._client = _connect(self._launch.kubernetes.context)
        return getattr(client, kind)(self._client)

    def _call(self, method: str, *names: str, **options: Any) -> Any:
        """Send one request.

        Raises:
            _Missing, _Exists: the object does not exist, or exists already.
            LaunchError: the server refuses the request, or cannot be reached.
        """
        import urllib3

        client = _import()
        function = getattr(self._api("BatchV1Api" if method.endswith("_job") else "CoreV1Api"), method)
        try:
            return function(*names, namespace=self._namespace, _request_timeout=TIMEOUT_S, **options)
        except client.ApiException as error:
            if error.status == NOT_FOUND and not method.startswith("create"):
                raise _Missing from error
            if error.status == CONFLICT and method.startswith("create"):
                raise _Exists from error
            raise LaunchError(
                f"Kubernetes refused {method} in namespace {self._namespace}",
                found=f"{error.status} {error.reason}: {error.body}",
                remedy="check training.launch.kubernetes in the recipe, and the permissions of the account",
            ) from error
        except urllib3.exceptions.HTTPError as error:
            raise LaunchError(
                f"no response from the Kubernetes API at {function.__self__.api_client.configuration.host}",
                found=error,
                remedy="check the network, KUBECONFIG and training.launch.kubernetes.context",
            ) from error


class _Missing(Exception):
    """Exception for an object that does not exist."""


class _Exists(Exception):
    """Exception for an object whose name already exists."""


def _status(job: Any) -> JobStatus:
    """Return GONE if the Job is complete or has failed. A Job that is being deleted counts as alive until its pods
    have ended."""
    for condition in job.status.conditions or ():
        if condition.type in ("Complete", "Failed") and condition.status == "True":
            return JobStatus.GONE
    return JobStatus.RUNNING if job.status.ready or job.metadata.deletion_timestamp else JobStatus.PENDING


def _import() -> Any:
    try:
        import kubernetes.client
    except ImportError as error:
        raise LaunchError(
            "the Kubernetes client is not installed", remedy="pip install -c constraints.txt -e '.[kubernetes]'"
        ) from error
    return kubernetes.client


def _connect(context: str) -> Any:
    """Configure the client as kubectl does: from KUBECONFIG or ~/.kube/config, or within a pod from the pod's own
    account."""
    from kubernetes import config

    loaders: tuple[Callable[[], Any], ...] = (
        lambda: config.new_client_from_config(config_file=os.environ.get("KUBECONFIG"), context=context or None),
        _own_account,
    )
    for loader in loaders if context or os.environ.get("KUBECONFIG") else reversed(loaders):
        try:
            return loader()
        except config.ConfigException as error:
            reason = error
    raise LaunchError(
        "no Kubernetes cluster is configured",
        found=reason,
        expected="KUBECONFIG, ~/.kube/config, or the service account of a pod",
        remedy="set KUBECONFIG, or training.launch.kubernetes.context to one of its contexts",
    )


def _own_account() -> Any:
    from kubernetes import client, config

    own = client.Configuration()
    config.load_incluster_config(own)
    return client.ApiClient(own)


def _preview(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
    """Return the manifests for `kubectl apply -f -`."""
    import yaml

    objects = [manifest.service(launch, directory), manifest.job(launch, grace_s, command, directory, log)]
    return str(yaml.safe_dump_all([given for given in objects if given is not None], sort_keys=False))


KIND = LauncherKind("kubernetes", "A Job of Kubernetes: one pod per node.", KubernetesLauncher, preview=_preview)
