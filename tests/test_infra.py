"""The settings in infra/ are accepted as its README describes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth_jobs import instance, recipes, servers
from tests.kubernetes_server import refuse_unknown

INFRA = Path(__file__).resolve().parents[1] / "infra"


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_a_copy_that_extends_a_recipe_trains_on_the_scheduler(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: demo.yaml\ntraining: {global_batch_sequences: 32}\n")
    copy = tmp_path / "cluster.yaml"
    copy.write_text(f"extends: mine.yaml\n{(INFRA / kind / 'recipe.yaml').read_text()}")
    training = recipes.load(copy).training
    assert training is not None
    launch = training.launch
    assert (launch.kind, launch.ranks, launch.nodes) == (kind, 16, 2)


def test_postgres_replaces_the_settings_of_dagster(monkeypatch: pytest.MonkeyPatch) -> None:
    path = INFRA / "postgres" / "dagster.yaml"
    monkeypatch.setenv("PLINTH_DAGSTER_YAML", str(path))
    assert instance.settings_file() == path
    assert "postgres" in yaml.safe_load(path.read_text())["storage"]


# ---- Kubernetes: read here, never applied to a cluster ------------------------------------------------

#: Kinds of a stock cluster, with the models that the official client was generated from.
MODELS = {
    "Namespace": "V1Namespace", "ConfigMap": "V1ConfigMap", "PersistentVolumeClaim": "V1PersistentVolumeClaim",
    "ServiceAccount": "V1ServiceAccount", "Role": "V1Role", "RoleBinding": "V1RoleBinding",
    "StatefulSet": "V1StatefulSet", "Service": "V1Service", "NetworkPolicy": "V1NetworkPolicy",
}  # fmt: skip
QUEUES = {"ResourceFlavor", "ClusterQueue", "LocalQueue", "WorkloadPriorityClass"}
#: Kinds that no namespace holds.
GLOBAL = {"Namespace", "ResourceFlavor", "ClusterQueue", "WorkloadPriorityClass"}
Manifest = dict[str, Any]


def rendered(folder: Path) -> list[Manifest]:
    """Return the output of `kubectl kustomize` for the few fields that are used here; another field fails."""
    settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert settings.keys() <= {"apiVersion", "kind", "namespace", "resources", "images"}
    found: list[Manifest] = []
    for name in settings["resources"]:
        path = (folder / name).resolve()
        found += rendered(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    images = {each["name"]: f"{each['newName']}@{each['digest']}" for each in settings.get("images", ())}
    for each in found:
        if each["kind"] not in GLOBAL:
            each["metadata"]["namespace"] = settings["namespace"]
        for container in containers(each):
            container["image"] = images.get(container["image"], container["image"])
    return found


def containers(manifest: Manifest) -> list[Manifest]:
    spec = manifest.get("spec", {}).get("template", {}).get("spec", {})
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


@pytest.fixture(scope="module")
def cluster() -> list[Manifest]:
    return rendered(INFRA / "kubernetes" / "overlays" / "kueue")


def test_every_manifest_is_what_its_schema_says(cluster: list[Manifest]) -> None:
    assert {each["kind"] for each in cluster} == MODELS.keys() | QUEUES
    for each in cluster:
        if each["kind"] in MODELS:
            refuse_unknown(each, MODELS[each["kind"]], each["kind"])
    names = [(each["kind"], each["metadata"]["name"]) for each in cluster]
    assert len(names) == len(set(names))
    broken = {**cluster[0], "spec": {"finaliser": []}}
    with pytest.raises(ValueError, match="finaliser is no field"):
        refuse_unknown(broken, "V1Namespace", "Namespace")


def test_what_a_manifest_names_is_there(cluster: list[Manifest]) -> None:
    known = {(each["kind"], each["metadata"]["name"]) for each in cluster}
    made_beside = {"plinth-recipe", "plinth-authorities"}
    (pod,) = [each["spec"]["template"]["spec"] for each in cluster if each["kind"] == "StatefulSet"]
    (claims,) = [each["spec"]["volumeClaimTemplates"] for each in cluster if each["kind"] == "StatefulSet"]
    volumes = {each["name"] for each in pod["volumes"]} | {each["metadata"]["name"] for each in claims}
    assert {
        mount["name"] for each in [*pod["initContainers"], *pod["containers"]] for mount in each["volumeMounts"]
    } == volumes
    for volume in pod["volumes"]:
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in known
        if "configMap" in volume:
            assert volume["configMap"]["name"] in made_beside
    assert ("ServiceAccount", pod["serviceAccountName"]) in known
    (queue,) = [each for each in cluster if each["kind"] == "LocalQueue"]
    assert ("ClusterQueue", queue["spec"]["clusterQueue"]) in known
    (flavors,) = [each["spec"]["resourceGroups"][0]["flavors"] for each in cluster if each["kind"] == "ClusterQueue"]
    assert {("ResourceFlavor", each["name"]) for each in flavors} <= known


def test_pods_keep_to_the_restricted_standard_and_images_to_a_digest(cluster: list[Manifest]) -> None:
    """The rules of the Pod Security Standard "restricted", as its documentation lists them, for what is used here."""
    labels = next(each["metadata"]["labels"] for each in cluster if each["kind"] == "Namespace")
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    (pod,) = [each["spec"]["template"]["spec"] for each in cluster if each["kind"] == "StatefulSet"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    allowed = {
        "configMap",
        "emptyDir",
        "persistentVolumeClaim",
        "secret",
        "projected",
        "downwardAPI",
        "csi",
        "ephemeral",
    }
    assert all(volume.keys() - {"name"} <= allowed for volume in pod["volumes"])
    for container in [*pod["initContainers"], *pod["containers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "limits" in container["resources"]
        assert re.fullmatch(r"[^@:]+@sha256:[0-9a-f]{64}", container["image"])


def test_the_network_is_closed_but_for_what_is_named(cluster: list[Manifest]) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in cluster if each["kind"] == "NetworkPolicy"}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert all(rule.get("from") for spec in policies.values() for rule in spec.get("ingress", ()))
    (service,) = [each for each in cluster if each["kind"] == "Service"]
    opened = {port["port"] for rule in policies["control-plane"]["ingress"] for port in rule["ports"]}
    assert opened == {port["port"] for port in service["spec"]["ports"]}
    settings = next(each["data"] for each in cluster if each["kind"] == "ConfigMap")
    assert opened == {int(settings[f"PLINTH_{name}_PORT"]) for name in ("DAGSTER", "MLFLOW", "CORPUS")}
    assert settings["PLINTH_CORPUS"] == f"http://{servers.HOST}:{servers.CORPUS_PORT}"
    assert settings["PLINTH_MLFLOW"].endswith(f":{settings['PLINTH_MLFLOW_SERVER_PORT']}")
    asked = set(re.findall(r"\$\{(PLINTH_\w+)\}", (INFRA / "apache" / "plinth.conf").read_text()))
    assert asked - settings.keys() == {"PLINTH_PROXY_SECRET"}  # of a Secret


def test_the_launcher_may_do_what_it_does_and_nothing_else(cluster: list[Manifest]) -> None:
    code = (INFRA.parent / "platform" / "plinth" / "launch" / "kubernetes.py").read_text()
    calls = set(re.findall(r'"((?:create|read|delete|list)_namespaced_\w+)"', code))
    resources = {"job": "jobs", "service": "services", "pod": "pods", "pod_log": "pods/log"}
    verbs = {"read": "get"}
    needed = set()
    for call in calls:
        verb, _, what = call.partition("_namespaced_")
        needed.add((verbs.get(verb, verb), resources[what]))
    (role,) = [each for each in cluster if each["kind"] == "Role"]
    granted = {(verb, each) for rule in role["rules"] for verb in rule["verbs"] for each in rule["resources"]}
    assert granted == needed
