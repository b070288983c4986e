"""Kubernetes Jobs, through the API server and the official client (extra `kubernetes`).

A Job's name is a function of the run's directory, so the server itself refuses a second Job of a run. The Job's uid
proves that a name still means the same Job. A canceled Job is deleted with its pods; their output is in the run's
directory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class ServerJob(NamedTuple):
    """Job, or another resource of a run, on the server."""

    name: str
    uid: str
    status: JobStatus
    deleting: bool


class KubernetesLauncher:
    """Launcher that identifies a job by the name and uid of its Job.

    A launcher of another resource that creates a run's pods overrides `manifests`, `create`, `read`, `delete`, and the
    attributes.
    """

    #: `launcher` in the handles.
    kind = "kubernetes"
    #: Name of the resource, for `kubectl`.
    resource = "job"
    #: Label of the pods with the name of the resource.
    pod_label = "batch.kubernetes.io/job-name"

    def __init__(self, launch: Launch, grace_s: float, every_s: float = EVERY_S) -> None:
        self._launch, self._grace_s = launch, grace_s
        self._namespace = launch.kubernetes.namespace
        self._client: Any = None
        self.poll = StatusCache(self._ask, every_s)

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Create the Job, or return the live Job. A finished Job is deleted first."""
        directory, log = directory.absolute(), log.absolute()
        wanted = self.manifests(self._launch, self._grace_s, command, directory, log)
        with locked(directory):
            made = self._adopt_or_create(wanted)
            self.poll.forget()
            return write_handle(directory, self._handle(made))

    def find(self, directory: Path) -> Handle | None:
        """Return the handle in `directory`, or else the handle of the Job with the run's name."""
        handle = read_handle(directory)
        if handle is None:
            found = self.read(self.job_name(directory.absolute()))
            return None if found is None else self._handle(found)
        return handle

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Delete the Job: its pods get SIGTERM and the recipe's grace period; after `grace_s`, they are killed."""
        self.poll.forget()
        if not self._ask(handle).alive:
            return
        self.delete(handle.id)
        until = time.monotonic() + grace_s
        while self._ask(handle).alive:
            if time.monotonic() > until:
                for pod in self._pods(handle.id):
                    with contextlib.suppress(ObjectMissing):
                        self.call("delete_namespaced_pod", name=pod.metadata.name, grace_period_seconds=0)
                return
            time.sleep(POLL_S)

    def logs(self, log: Path, lines: int = 50) -> str:
        """Return the last lines of the run's log, or of the first pod's log if the run's log does not exist yet."""
        written = tail(log, lines)
        if written:
            return written
        for pod in self._pods(self.job_name(log.parent.absolute())):
            with contextlib.suppress(ObjectMissing, LaunchError):  # a pod that has not started has no log
                # the client's own decoding returns a bytes literal as text (kubernetes 36)
                options = {"name": pod.metadata.name, "tail_lines": lines, "_preload_content": False}
                said: bytes = self.call("read_namespaced_pod_log", **options).data
                return said.decode(errors="replace").rstrip("\n")
        return ""

    # ---- the resource ----------------------------------------------------------------------------

    @staticmethod
    def job_name(directory: Path) -> str:
        """Return the name of the resource of a run."""
        return manifest.job_name(directory)

    @staticmethod
    def manifests(
        launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path
    ) -> list[manifest.Manifest]:
        """Return the resource of the run, and then the objects that it needs."""
        service = manifest.service(launch, directory)
        return [manifest.job(launch, grace_s, command, directory, log), *([service] if service else [])]

    def create(self, wanted: list[manifest.Manifest]) -> ServerJob:
        """Create the Job. With several nodes, also create the Service by which the pods find the first pod; it is
        deleted with its Job.

        Raises:
            ObjectExists: there is a Job with this name.
        """
        found = _found(self.call("create_namespaced_job", body=wanted[0]))
        self._name_pods(found, wanted[1:])
        return found

    def adopt(self, found: ServerJob, wanted: list[manifest.Manifest]) -> None:
        """Complete the objects of a live resource whose submitter may have died before it created them."""
        self._name_pods(found, wanted[1:])

    def read(self, name: str) -> ServerJob | None:
        """Return the Job with this name, or None."""
        try:
            return _found(self.call("read_namespaced_job", name=name))
        except ObjectMissing:
            return None

    def delete(self, name: str) -> None:
        """Delete the Job. It exists until its pods have ended."""
        with contextlib.suppress(ObjectMissing):
            self.call("delete_namespaced_job", name=name, propagation_policy="Foreground")

    # ---- requests --------------------------------------------------------------------------------

    def _adopt_or_create(self, wanted: list[manifest.Manifest]) -> ServerJob:
        """Create the resource, or return the live resource of this name if it exists."""
        name, until = wanted[0]["metadata"]["name"], time.monotonic() + VANISH_S
        while time.monotonic() < until:
            try:
                return self.create(wanted)
            except ObjectExists:
                found = self.read(name)
            if found is not None and not found.deleting:
                if found.status.alive:
                    self.adopt(found, wanted)
                    return found
                self.delete(name)
            time.sleep(POLL_S)
        raise LaunchError(
            f"the {self.resource} {name} has ended but is not deleted",
            found=f"still there after {VANISH_S:g} s",
            remedy=f"see `kubectl -n {self._namespace} describe {self.resource} {name}`",
        )

    def _name_pods(self, owner: ServerJob, services: list[manifest.Manifest]) -> None:
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.name, "uid": owner.uid}
        for service in services:
            service["metadata"]["ownerReferences"] = [reference]
            with contextlib.suppress(ObjectExists):
                self.call("create_namespaced_service", body=service)

    def _ask(self, handle: Handle) -> JobStatus:
        found = self.read(handle.id)
        return JobStatus.GONE if found is None or found.uid != handle.started else found.status

    def _pods(self, name: str) -> list[Any]:
        """Return the pods of a job, with the pod of node 0 first."""
        found = self.call("list_namespaced_pod", label_selector=f"{self.pod_label}={name}").items
        return sorted(found, key=lambda pod: str(pod.metadata.name))

    def _handle(self, job: ServerJob) -> Handle:
        host = self._api("BatchV1Api").api_client.configuration.host
        return Handle(launcher=self.kind, id=job.name, started=job.uid, host=host)

    def _api(self, kind: str) -> Any:
        client = _import()
        if self._client is None:
            self._client = _connect(self._launch.kubernetes.context)
        return getattr(client, kind)(self._client)

    def call(self, method: str, **options: Any) -> Any:
        """Send one request in the namespace of the recipe, by the official client's method.

        Raises:
            ObjectMissing, ObjectExists: the object does not exist, or exists already.
            LaunchError: the server refuses the request, or cannot be reached.
        """
        import urllib3

        client = _import()
        apis = {"job": "BatchV1Api", "object": "CustomObjectsApi"}
        function = getattr(self._api(apis.get(method.rpartition("_")[2], "CoreV1Api")), method)
        try:
            return function(namespace=self._namespace, _request_timeout=TIMEOUT_S, **options)
        except client.ApiException as error:
            if error.status == NOT_FOUND and not method.startswith("create"):
                raise ObjectMissing from error
            if error.status == CONFLICT and method.startswith("create"):
                raise ObjectExists from error
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


class ObjectMissing(Exception):
    """Exception for an object that does not exist."""


class ObjectExists(Exception):
    """Exception for an object whose name already exists."""


def status(conditions: Iterable[tuple[str, str]], *, ready: bool, deleting: bool) -> JobStatus:
    """Return GONE if the job is complete or has failed. A job that is being deleted counts as alive until its pods
    have ended.

    Args:
        conditions: type and status of each condition.
        ready: True if a pod is ready.
    """
    if any(kind in ("Complete", "Failed") and value == "True" for kind, value in conditions):
        return JobStatus.GONE
    return JobStatus.RUNNING if ready or deleting else JobStatus.PENDING


def _found(job: Any) -> ServerJob:
    deleting = job.metadata.deletion_timestamp is not None
    conditions = [(each.type, each.status) for each in job.status.conditions or ()]
    told = status(conditions, ready=bool(job.status.ready), deleting=deleting)
    return ServerJob(job.metadata.name, job.metadata.uid, told, deleting)


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


def preview(
    make: Callable[[Launch, float, Sequence[str], Path, Path], list[manifest.Manifest]],
) -> Callable[[Launch, float, Sequence[str], Path, Path], str]:
    """Return a function that writes the manifests for `kubectl apply -f -`: what the resource needs, then the
    resource."""

    def shown(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
        import yaml

        objects = make(launch, grace_s, command, directory, log)
        return str(yaml.safe_dump_all([*objects[1:], objects[0]], sort_keys=False))

    return shown


KIND = LauncherKind(
    "kubernetes",
    "A Job of Kubernetes: one pod per node.",
    KubernetesLauncher,
    preview=preview(KubernetesLauncher.manifests),
)
