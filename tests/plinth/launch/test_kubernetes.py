"""Jobs of Kubernetes: manifests held against the API's schemas, and a Job's life against a server over HTTP."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import LaunchError
from plinth.launch import manifest
from plinth.launch.base import EXCLUDED, JobStatus
from plinth.launch.conformance import SeveralNodes
from plinth.launch.kubernetes import KubernetesLauncher
from plinth.launch.parameters import Kubernetes, Launch, Queueing
from tests.kubelet import Kubelet
from tests.kubernetes_server import Server, cluster, kubernetes_server, refuse_unknown, run_directory

COMMAND = ["/opt/venv/bin/python", "-m", "it", "a b"]

ASKED = Kubernetes(
    namespace="training",
    image="registry.example/plinth:1",
    claim="workspace",
    sub_path="team",
    resources={"cpu": "8", "nvidia.com/gpu": "2"},
    node_selector={"gpu": "h200"},
    service_account="trainer",
    secrets=("bucket",),
    user="1000:2000",
)

#: Everything that a cluster with InfiniBand, taints and queues may ask for.
FULL = {
    "rdma": {"rdma/hca": "4"},
    "host_network": True,
    "tolerations": (
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "spot", "value": "true", "effect": "NoExecute", "tolerationSeconds": 60},
    ),
    "annotations": {"k8s.v1.cni.cncf.io/networks": "ib0"},
    "priority_class": "training-high",
    "queue": "team-a",
    "user": "0",
}


def launch(nodes: int = 1, **changes: Any) -> Launch:
    return Launch(kind="kubernetes", ranks=2 * nodes, nodes=nodes, kubernetes=ASKED.model_copy(update=changes))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with cluster(tmp_path) as found:
        yield found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return run_directory(tmp_path)


def launcher(nodes: int = 1) -> KubernetesLauncher:
    return KubernetesLauncher(launch(nodes), 60.0, every_s=0.0)


# ---- manifests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("form", ["usual", "bare", "full"])
def test_manifests_are_what_the_api_takes(nodes: int, form: str, directory: Path) -> None:
    asked = launch(nodes, **(FULL if form == "full" else {}))
    if form == "bare":
        least = Kubernetes(image="i", claim="c", shm_bytes=0, user="1000")
        asked = Launch(kind="kubernetes", kubernetes=least, nodes=nodes, ranks=nodes)
    refuse_unknown(manifest.job(asked, 60.0, COMMAND, directory, directory / "job.log"), "V1Job")
    service = manifest.service(asked, directory)
    assert (service is None) is (nodes == 1)
    if service is not None:
        refuse_unknown(service, "V1Service")


def test_the_check_itself_refuses(directory: Path) -> None:
    good = manifest.job(launch(2), 60.0, COMMAND, directory, directory / "job.log")
    for path, value, says in (
        (("spec", "completion"), 1, r"completion is no field of V1JobSpec"),
        (("spec", "completions"), "2", r"completions is '2', not"),
        (("spec", "completions"), True, r"completions is True"),
        (("spec", "podFailurePolicy", "rules"), {}, r"rules is \{\}, not"),
        (("spec", "template", "spec", "containers"), None, r"containers is None"),
        (("metadata", "labels", "a"), 1, r"labels.a is 1"),
    ):
        bad = copy.deepcopy(good)
        *parents, last = path
        place: Any = bad
        for name in parents:
            place = place[name]
        place[last] = value
        with pytest.raises(ValueError, match=says):
            refuse_unknown(bad, "V1Job")


def test_job_of_two_nodes(directory: Path) -> None:
    made = manifest.job(launch(2), 60.0, COMMAND, directory, directory / "job.log")
    name, spec = made["metadata"]["name"], made["spec"]
    assert name.startswith("plinth-demo-0123456789ab-")
    assert len(f"{name}-99999") < 63
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    rules = spec["podFailurePolicy"]["rules"]
    assert [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in rules] == [
        ("Ignore", [75]),
        ("Ignore", None),
        ("FailJob", [2, 3, 4, 5, 6, 7, 8, 9]),
    ]
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"], pod["subdomain"]) == ("Never", 90, name)
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == ("trainer", {"gpu": "h200"})
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "nvidia.com/gpu": "2"}
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    places = {entry["name"]: entry for entry in container["env"]}
    assert places["PLINTH_NODES"]["value"] == "2"
    assert places["PLINTH_IMAGE"]["value"] == container["image"]
    assert places["PLINTH_ADDRESS"]["value"] == f"{name}-0.{name}"
    assert "job-completion-index" in places["PLINTH_NODE"]["valueFrom"]["fieldRef"]["fieldPath"]
    workspace = {"name": "workspace", "mountPath": str(directory.parent.parent), "subPath": "team"}
    assert container["volumeMounts"][0] == workspace
    assert "python -m it 'a b'" in container["command"][2]
    service = manifest.service(launch(2), directory)
    assert service is not None
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}


def test_spares_are_further_pods_and_the_job_is_complete_without_them(directory: Path) -> None:
    spec = manifest.job(launch(2).model_copy(update={"spares": 3}), 60.0, COMMAND, directory, directory / "log")["spec"]
    assert (spec["completions"], spec["parallelism"]) == (5, 5)
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    (container,) = spec["template"]["spec"]["containers"]
    assert {"name": "PLINTH_NODES", "value": "5"} in container["env"]
    refuse_unknown({"spec": spec}, "V1Job")


def test_pods_keep_to_the_restricted_standard_unless_asked(directory: Path) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, profile "restricted", field by field."""

    def pod(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        made = manifest.job(launch(2, **changes), 60.0, COMMAND, directory, directory / "job.log")
        spec = made["spec"]["template"]["spec"]
        return spec, spec["containers"][0]

    spec, container = pod()
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all({"emptyDir", "persistentVolumeClaim"} & set(volume) for volume in spec["volumes"])
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 2000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(2**34)}}
    assert shm in spec["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]

    spec, container = pod(**FULL)
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (False, 0)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize(
    ("queueing", "queue", "labels"),
    [
        ({}, "", {}),
        ({}, "shared", {"kueue.x-k8s.io/queue-name": "shared"}),
        ({"team": "web"}, "", {"kueue.x-k8s.io/queue-name": "web", "plinth/team": "web"}),
        ({"team": "web"}, "shared", {"kueue.x-k8s.io/queue-name": "shared", "plinth/team": "web"}),
        ({"priority": "low"}, "", {"plinth/priority": "low"}),
        (
            {"priority": "high"},
            "shared",
            {
                "kueue.x-k8s.io/queue-name": "shared",
                "kueue.x-k8s.io/priority-class": "high",
                "plinth/priority": "high",
            },
        ),
    ],
)
def test_a_team_is_a_queue_and_a_priority_a_class_of_it(
    directory: Path, queueing: dict[str, str], queue: str, labels: dict[str, str]
) -> None:
    asked = launch(1, queue=queue).model_copy(update={"queueing": Queueing.model_validate(queueing)})
    made = manifest.job(asked, 60.0, COMMAND, directory, directory / "job.log")
    found = made["metadata"]["labels"]
    assert {name: value for name, value in found.items() if not name.startswith("app.")} == labels
    assert made["spec"].get("suspend", False) is ("kueue.x-k8s.io/queue-name" in labels)


def test_what_a_cluster_schedules_by(directory: Path) -> None:
    made = manifest.job(launch(2, **FULL), 60.0, COMMAND, directory, directory / "job.log")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert made["spec"]["suspend"] is True
    template = made["spec"]["template"]
    assert template["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "ib0"}
    assert template["spec"]["priorityClassName"] == "training-high"
    assert template["spec"]["tolerations"] == list(FULL["tolerations"])  # type: ignore[call-overload]
    resources = template["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"cpu": "8", "nvidia.com/gpu": "2", "rdma/hca": "4"}
    plain = manifest.job(launch(2), 60.0, COMMAND, directory, directory / "job.log")
    assert "suspend" not in plain["spec"]
    assert not {"tolerations", "priorityClassName"} & set(plain["spec"]["template"]["spec"])


def test_pods_have_the_numbers_of_the_submitter_who_is_not_root(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1234)
    monkeypatch.setattr("os.getgid", lambda: 567)
    made = manifest.job(launch(1, user=""), 60.0, COMMAND, directory, directory / "job.log")
    found = made["spec"]["template"]["spec"]["securityContext"]
    assert (found["runAsUser"], found["runAsGroup"], found["runAsNonRoot"]) == (1234, 567, True)
    monkeypatch.setattr("os.getuid", lambda: 0)
    with pytest.raises(LaunchError, match="the pods would run as root"):
        manifest.job(launch(1, user=""), 60.0, COMMAND, directory, directory / "job.log")


def test_names_tell_workspaces_apart(tmp_path: Path) -> None:
    one, two = manifest.job_name(tmp_path / "a" / "Run_1"), manifest.job_name(tmp_path / "b" / "Run_1")
    assert one != two
    assert one.startswith("plinth-run-1-")
    assert one == manifest.job_name(tmp_path / "a" / "Run_1")


def test_container_hands_sigterm_on_and_keeps_output_and_status(directory: Path) -> None:
    """Run the container's command here: both logs get every line, including the last."""
    leaves = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.2), print('left'), sys.exit(75)));"
    leaves += "print('up', flush=True); time.sleep(600)"
    local = launch(1).model_copy(update={"python": sys.executable})
    made = manifest.job(local, 60.0, ["x", "-c", leaves], directory, directory / "job.log")
    command = made["spec"]["template"]["spec"]["containers"][0]["command"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == b"left\n"
    assert process.wait(300) == 75
    assert (directory / "job.log").read_text() == "up\nleft\n"
    process.stdout.close()


# ---- a Job's life ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("kubelet")
class TestConformance(SeveralNodes):
    kind = "kubernetes"

    @pytest.fixture
    def kubelet(self, server: Server) -> Iterator[None]:
        with Kubelet(server):
            yield

    def launcher(self, nodes: int = 1) -> KubernetesLauncher:
        here = launch(nodes, user="1000").model_copy(update={"python": sys.executable})
        return KubernetesLauncher(here, 60.0, every_s=0.0)


def test_pods_that_left_come_again_whatever_the_back_off_limit(server: Server, directory: Path) -> None:
    first = launcher(2)
    handle = first.submit(COMMAND, directory, directory / "job.log")
    assert handle.host == server.url
    assert handle.started == server.jobs[handle.id]["metadata"]["uid"]
    assert launcher(2).submit(COMMAND, directory, directory / "job.log") == handle
    assert len(server.jobs) == len(server.services) == 1
    assert first.poll(handle) is JobStatus.PENDING
    for index in (1, 0):
        for _ in range(manifest.BACKOFF_LIMIT + 2):
            server.exit(handle.id, index, 75)
    assert first.poll(handle) is JobStatus.PENDING
    assert len(server.pods) == 2
    server.exit(handle.id, 0, 0)
    assert first.poll(handle).alive
    server.exit(handle.id, 1, 0)
    assert first.poll(handle) is JobStatus.GONE
    again = launcher(2).submit(COMMAND, directory, directory / "job.log")
    assert again.id == handle.id
    assert again.started != handle.started


def test_the_server_refuses_a_second_job_where_the_lock_does_not_reach(server: Server, directory: Path) -> None:
    wanted = manifest.job(launch(), 60.0, COMMAND, directory, directory / "job.log")
    made = server.create("Job", wanted)  # by a machine whose file system has no locks
    assert launcher().submit(COMMAND, directory, directory / "job.log").started == made["metadata"]["uid"]
    assert server.requests[0].startswith("POST ")


def test_unknown_deaths_are_counted(server: Server, directory: Path) -> None:
    handle = launcher().submit(COMMAND, directory, directory / "job.log")
    for _ in range(manifest.BACKOFF_LIMIT):
        server.exit(handle.id, 0, 137)
        assert launcher().poll(handle).alive
    server.exit(handle.id, 0, 137)
    assert launcher().poll(handle) is JobStatus.GONE


def test_cancel_waits_for_the_pods_then_kills_them(server: Server, directory: Path) -> None:
    handle = launcher(2).submit(COMMAND, directory, directory / "job.log")
    server.ready(handle.id)
    leaving = threading.Timer(0.3, lambda: [server.exit(handle.id, index, 75) for index in range(2)])
    leaving.start()
    launcher(2).cancel(handle, 300.0)
    leaving.join()
    assert launcher(2).poll(handle) is JobStatus.GONE
    assert server.jobs == server.services == server.pods == {}
    assert not any(request.startswith("DELETE") and "/pods/" in request for request in server.requests)

    stubborn = launcher(2).submit(COMMAND, directory, directory / "job.log")
    server.ready(stubborn.id)
    launcher(2).cancel(handle, 0.0)  # of the Job before: must not hit this one
    assert launcher(2).poll(stubborn) is JobStatus.RUNNING
    launcher(2).cancel(stubborn, 0.2)
    assert launcher(2).poll(stubborn) is JobStatus.GONE
    assert sum(request.startswith("DELETE") and "/pods/" in request for request in server.requests) == 2
    launcher(2).cancel(stubborn, 0.2)  # again: nothing to do


def test_logs_of_the_run_or_of_the_first_pod(server: Server, directory: Path) -> None:
    log = directory / "job.log"
    assert launcher(2).logs(log, 2) == ""
    handle = launcher(2).submit(COMMAND, directory, log)
    server.output = {f"{handle.id}-0": "one\ntwo\nthree\n", f"{handle.id}-1": "other\n"}
    assert launcher(2).logs(log, 2) == "two\nthree"
    log.write_text("a\nb\nc\n")
    assert launcher(2).logs(log, 2) == "b\nc"


def test_a_server_that_is_away_or_refuses(server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = launcher()
    handle = patient.submit(COMMAND, directory, directory / "job.log")
    server.ready(handle.id)
    assert patient.poll(handle) is JobStatus.RUNNING
    server.down = True
    assert patient.poll(handle) is JobStatus.RUNNING
    with pytest.raises(LaunchError, match="Kubernetes refused read_namespaced_job"):
        launcher().poll(handle)
    server.down = False
    with pytest.raises(LaunchError, match="403"):
        KubernetesLauncher(launch(1, namespace="elsewhere"), 1.0).submit(COMMAND, directory, directory / "job.log")
    monkeypatch.setenv("KUBECONFIG", str(directory / "none"))
    with pytest.raises(LaunchError, match="no Kubernetes cluster is configured"):
        launcher().poll(handle)


def test_nobody_listens(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kubernetes_server() as server:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(LaunchError, match="no response from the Kubernetes API"):
        launcher().submit(COMMAND, directory, directory / "job.log")


def test_a_job_has_no_affinity_to_excluded_machines(directory: Path) -> None:
    plain = manifest.job(launch(2), 60.0, COMMAND, directory, directory / "job.log")
    assert "affinity" not in plain["spec"]["template"]["spec"]
    (container,) = plain["spec"]["template"]["spec"]["containers"]
    places = {entry["name"]: entry for entry in container["env"]}
    assert places["PLINTH_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    (directory / EXCLUDED).write_text("gpu-7\ngpu-9\n")
    made = manifest.job(launch(2), 60.0, COMMAND, directory, directory / "job.log")
    refuse_unknown(made, "V1Job")
    needed = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = needed["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(one["operator"], one["values"]) for one in term["matchFields"]] == [
        ("NotIn", ["gpu-7"]),
        ("NotIn", ["gpu-9"]),
    ]
