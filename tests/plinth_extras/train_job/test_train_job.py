"""TrainJobs of Kubeflow Trainer: the manifests, held against the project's models; a TrainJob's life over HTTP."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.errors import LaunchError
from plinth.launch.base import HANDLE, JobStatus, choose, given
from plinth.launch.conformance import SeveralNodes
from plinth.launch.parameters import Launch
from plinth_extras.train_job.launcher import TrainJobLauncher, manifests
from tests.kubelet import Kubelet
from tests.kubernetes_server import cluster, run_directory
from tests.kubernetes_server import refuse_unknown as refuse_unknown_core
from tests.trainer_server import TrainerServer, refuse_unknown

COMMAND = ["/opt/venv/bin/python", "-m", "it", "a b"]

PODS: dict[str, Any] = {
    "namespace": "training",
    "image": "registry.example/plinth:1",
    "claim": "workspace",
    "resources": {"nvidia.com/gpu": "2"},
    "user": "1000:2000",
}
FULL = {
    "rdma": {"rdma/hca": "4"},
    "host_network": True,
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "annotations": {"k8s.v1.cni.cncf.io/networks": "ib0"},
    "priority_class": "training-high",
    "queue": "team-a",
    "secrets": ["bucket"],
    "service_account": "trainer",
    "node_selector": {"gpu": "h200"},
}


def launch(nodes: int = 1, **changes: Any) -> Launch:
    kubernetes = {**PODS, **changes}
    words = {"kind": "trainjob", "ranks": 2 * nodes, "nodes": nodes, "python": sys.executable, "kubernetes": kubernetes}
    return Launch.model_validate(words)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TrainerServer]:
    with cluster(tmp_path, TrainerServer) as found:
        yield found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return run_directory(tmp_path)


def launcher(nodes: int = 1) -> TrainJobLauncher:
    return TrainJobLauncher(launch(nodes), 60.0, every_s=0.0)


@pytest.mark.usefixtures("kubelet")
@pytest.mark.exhaustive
@pytest.mark.slow
class TestConformance(SeveralNodes):
    kind = "trainjob"

    @pytest.fixture
    def kubelet(self, server: TrainerServer) -> Iterator[None]:
        with Kubelet(server):
            yield

    def launcher(self, nodes: int = 1) -> TrainJobLauncher:
        return launcher(nodes)


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("changes", [{}, FULL])
def test_manifests_are_what_kubeflow_and_kubernetes_take(nodes: int, changes: dict[str, Any], directory: Path) -> None:
    made = manifests(launch(nodes, **changes), 60.0, COMMAND, directory, directory / "job.log")
    job, runtime = made
    refuse_unknown(job, "trainjobs")
    refuse_unknown(runtime, "trainingruntimes")
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    refuse_unknown_core(replicated["template"]["spec"], "V1JobSpec")
    assert job["spec"].get("suspend", False) is ("queue" in changes)
    assert "suspend" not in replicated["template"]["spec"]  # Kueue admits the TrainJob
    for path, value in ((("spec", "nodes"), 2), (("spec", "trainer", "numNodes"), "2"), (("spec", "runtimeRef"), None)):
        bad: Any = copy.deepcopy(job)
        place = bad
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        with pytest.raises(ValueError, match=path[-1]):
            refuse_unknown(bad, "trainjobs")


def test_names_are_those_of_jobset(directory: Path) -> None:
    long = directory.with_name("a-run-with-a-name-that-is-longer-than-most-0123456789ab")
    job, runtime = manifests(launch(2), 60.0, COMMAND, long, long / "job.log")
    name = job["metadata"]["name"]
    assert len(f"{name}-node-0-99999-abcde") <= 63  # JobSet refuses longer names of pods
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == name
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["PLINTH_ADDRESS"] == f"{name}-node-0-0.{name}"
    assert "subdomain" not in spec["template"]["spec"]
    codes = [rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert {*(each["containerName"] for each in codes), container["name"], replicated["name"]} == {"node"}
    other = manifests(launch(), 60.0, COMMAND, long.with_name("b"), long)
    assert other[0]["metadata"]["name"] != name


def test_preview_is_in_the_order_of_creation(directory: Path) -> None:
    text = given(launch(), 60.0, COMMAND, directory, directory / "job.log")
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["TrainingRuntime", "TrainJob"]


def test_a_recipe_without_an_image_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"kubernetes.image: missing"):
        choose("trainjob", Launch(kind="trainjob"), 60.0)


def test_runtime_is_deleted_with_its_job_and_made_anew(server: TrainerServer, directory: Path) -> None:
    handle = launcher().submit(COMMAND, directory, directory / "job.log")
    (runtime,) = server.custom["trainingruntimes"].values()
    assert [owner["uid"] for owner in runtime["metadata"]["ownerReferences"]] == [handle.started]
    server.exit(f"{handle.id}-node-0", 0, 0)
    assert launcher().poll(handle) is JobStatus.GONE
    again = launcher(2).submit(COMMAND, directory, directory / "job.log")
    assert again.started != handle.started
    (runtime,) = server.custom["trainingruntimes"].values()
    assert runtime["spec"]["mlPolicy"]["numNodes"] == 2
    assert [owner["uid"] for owner in runtime["metadata"]["ownerReferences"]] == [again.started]


def test_submitter_that_died_between_runtime_and_job(server: TrainerServer, directory: Path) -> None:
    made = manifests(launch(), 60.0, COMMAND, directory, directory / "job.log")
    server.serve_custom("POST", "trainingruntimes", None, {}, made[1])
    handle = launcher(2).submit(COMMAND, directory, directory / "job.log")
    (runtime,) = server.custom["trainingruntimes"].values()
    assert runtime["spec"]["mlPolicy"]["numNodes"] == 2
    (directory / HANDLE).unlink()
    runtime["metadata"].pop("ownerReferences")  # as if it had died before it named the owner
    assert launcher(2).submit(COMMAND, directory, directory / "job.log") == handle
    assert [owner["uid"] for owner in runtime["metadata"]["ownerReferences"]] == [handle.started]


def test_status_follows_conditions_and_ready_pods(server: TrainerServer, directory: Path) -> None:
    handle = launcher().submit(COMMAND, directory, directory / "job.log")
    assert launcher().poll(handle) is JobStatus.PENDING
    server.ready(f"{handle.id}-node-0")
    assert launcher().poll(handle) is JobStatus.RUNNING
    server.output = {f"{handle.id}-node-0-0": "one\ntwo\n"}
    assert launcher().logs(directory / "job.log", 1) == "two"
    server.exit(f"{handle.id}-node-0", 0, 3)  # a named failure: FailJob
    assert launcher().poll(handle) is JobStatus.GONE


def test_a_cluster_without_kubeflow_is_named(tmp_path: Path, directory: Path) -> None:
    with cluster(tmp_path), pytest.raises(LaunchError, match="404"):
        launcher().submit(COMMAND, directory, directory / "job.log")
