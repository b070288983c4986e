"""Launcher and supervision parameters of a job. They are not part of the run's identity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, internal

#: Key of the block that is invalid, with what was found and what is expected.
Refusal = tuple[str, str]

#: Time formats of Slurm: minutes, minutes:seconds, hours:…, days-hours:… (sbatch(1), --time).
_TIME_LIMIT = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")

#: Options of sbatch that Plinth sets. With another value the job or its log would be lost.
_SLURM_OWN = (
    "job-name J comment nodes N ntasks n ntasks-per-node requeue no-requeue signal open-mode output o error e "
    "array a chdir D parsable wait W"
)

#: Environment variables that Plinth sets for each rank. With other values the ranks would not find each other.
_RANK_OWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR")

#: Fields of a toleration (core/v1), and the values of two of them.
_TOLERATION = {"key", "operator", "value", "effect", "tolerationSeconds"}
_OPERATORS = ("Exists", "Equal")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: The priority that is not passed to a scheduler.
NORMAL: Final = "normal"

#: A DNS label (RFC 1123), the format of Kubernetes names.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class HostChecks(Frozen):
    """Checks of every node before its ranks start. A node that fails a check is excluded from the next attempt."""

    enabled: bool = Field(True, description="Check disk, memory, clock and GPUs, and connections between nodes.")
    bound_s: float = Field(60.0, gt=0, description="Timeout of all checks in seconds; a node without a report fails.")
    free_bytes: int = Field(
        0, ge=0, description="Minimum free bytes in the run's folder; each save of a checkpoint checks again."
    )
    disk_bytes: int = Field(2**23, ge=1, description="Size of the disk test; at most a quarter of the free space.")
    disk_bytes_per_s: int = Field(0, ge=0, description="Minimum speed of the disk test; 0 means no limit.")
    memory_bytes: int = Field(2**28, ge=0, description="Minimum free memory of the machine.")
    clock_s: float = Field(1.0, gt=0, description="Maximum clock difference between nodes, in seconds.")
    temperature_c: float = Field(88.0, description="Maximum GPU temperature in degrees Celsius.")
    all_reduce: bool = Field(
        True, description="Test an all-reduce between nodes, with NCCL, or with gloo if there are no GPUs."
    )


class Supervision(Frozen):
    """Limits on restarts, hangs and the grace period of a job."""

    max_restarts: int = Field(3, ge=0, description="Maximum restarts from the last committed checkpoint.")
    backoff_s: float = internal(1.0, ge=0, description="Seconds before the first restart; doubles with each restart.")
    hang_s: float = Field(300.0, gt=0, description="Seconds without an event until ranks count as hanging.")
    grace_s: float = Field(60.0, gt=0, description="Grace period in seconds to save and exit after SIGTERM.")
    host_checks: HostChecks = HostChecks()


class Slurm(Frozen):
    """A batch job of Slurm, requeued until the run has finished."""

    sbatch: tuple[str, ...] = Field(
        (), description="Options of sbatch, for example `--partition=gpu`, `--time=24:00:00`, `--gpus-per-node=8`."
    )
    setup: tuple[str, ...] = Field(
        (), description="Shell lines that run before the supervisor starts, for example `module load cuda`."
    )


class Ray(Frozen):
    """A job of a Ray cluster."""

    address: str = Field("http://127.0.0.1:8265", pattern=r"https?://.+", description="Dashboard address.")
    resources: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Resources per node, by Ray's names: `CPU` (default 1), `GPU`, `memory` in bytes, and custom "
        "resources of the cluster.",
    )


class Kubernetes(Frozen):
    """A Job of Kubernetes: one pod per node."""

    namespace: str = Field("default", pattern=f"^{_LABEL}$", description="Namespace of the Job and its Service.")
    context: str = Field(
        "", description="Context of the kubeconfig. If empty, the current context or the pod's own account is used."
    )
    image: str = Field("", description="Container image with Plinth installed.")
    claim: str = Field("", description="Persistent volume claim that holds the workspace (ReadWriteMany if nodes > 1).")
    sub_path: str = Field(
        "", description="Folder of the workspace in the volume claim. If empty, the claim's root is used."
    )
    resources: Mapping[str, str] = Field(
        default_factory=dict, description="Requests and limits of each pod, for example {nvidia.com/gpu: '8'}."
    )
    node_selector: Mapping[str, str] = Field(default_factory=dict, description="Labels of the nodes to run on.")
    service_account: str = Field(
        "", description="Service account of the pods. If empty, the namespace's default is used."
    )
    secrets: tuple[str, ...] = Field(
        (), description="Secrets to expose as environment variables, for example bucket credentials."
    )
    rdma: Mapping[str, str] = Field(
        default_factory=dict,
        description="RDMA devices of each pod, for example {rdma/hca_shared_devices_a: '1'}; adds IPC_LOCK.",
    )
    host_network: bool = Field(False, description="Use the node's network instead of a pod network.")
    tolerations: tuple[Mapping[str, str | int], ...] = Field(
        (), description="Tolerations of the pods, in Kubernetes' format: `key`, `operator`, `value`, …"
    )
    annotations: Mapping[str, str] = Field(
        default_factory=dict, description="Annotations of each pod, for example networks for Multus."
    )
    priority_class: str = Field("", description="Priority class of the pods. If empty, the cluster's default is used.")
    queue: str = Field("", description="Kueue's local queue that admits the Job. If empty, the Job is not queued.")
    user: str = Field(
        "",
        pattern=r"^(\d+(:\d+)?)?$",
        description="UID or UID:GID of the pods; `0` is root. If empty, the pods run as the submitter, who must not be "
        "root.",
    )
    shm_bytes: int = internal(
        2**34, ge=0, description="Shared memory of each pod in bytes; 0 keeps the container runtime's 64 MB."
    )


class Queueing(Frozen):
    """Owner and priority of a run, in each scheduler's terms. They are not part of the run's identity. Costs are
    charged to the budget's team."""

    team: str = Field(
        "",
        pattern=rf"^({_LABEL})?$",
        description="Slurm account; Kueue local queue, unless `kubernetes.queue` is set; Ray metadata.",
    )
    priority: Literal["low", "normal", "high"] = Field(
        NORMAL,
        description="Slurm `--qos`, Kueue workload priority class, and order in Dagster's queue; `normal` sets none.",
    )


class SubmissionRate(Frozen):
    """Rate limit of submissions to the launcher. All processes of a workspace on one machine share it."""

    per_hour: float = Field(600.0, gt=0, description="Sustained submissions per hour.")
    burst: int = Field(100, ge=1, description="Maximum burst of submissions.")
    backoff_s: float = Field(
        5.0, ge=0, description="Pause in seconds after a refused submission; it doubles with each consecutive refusal."
    )
    wait_s: float = Field(1800.0, ge=0, description="Maximum wait in seconds, after which the submission fails.")


class Launch(Frozen):
    """Launcher of the job. It is not part of the run's identity."""

    kind: str = Field(
        "local",
        description="Launcher: `local`, `slurm`, `ray`, `kubernetes`, `trainjob`, `skypilot`, or the name of an "
        "installed launcher.",
        json_schema_extra={"examples": ["local", "slurm", "ray", "kubernetes"]},
    )
    ranks: int = Field(2, ge=1, description="Number of processes over all nodes, one per device.")
    nodes: int = Field(1, ge=1, description="Number of machines; each runs the same number of ranks.")
    spares: int = Field(
        0,
        ge=0,
        exclude_if=lambda given: not given,
        description="Number of further machines that wait to replace lost nodes. With "
        "`training.recovery.copies_every`, the ranks of the other nodes keep running, unless the first node is lost: "
        "then a spare leads, and all ranks start again.",
    )
    python: str = Field(
        "",
        description="Python interpreter in the Ray cluster or the Kubernetes image. If empty, Ray uses the submitter's "
        "and Kubernetes uses `python`.",
    )
    environment: Mapping[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the ranks, for example {NCCL_SOCKET_IFNAME: eth0}. Do not set secrets "
        "here: the values are stored in the run's folder.",
    )
    rate: SubmissionRate = SubmissionRate()
    queueing: Queueing = Queueing()
    slurm: Slurm = Slurm()
    ray: Ray = Ray()
    kubernetes: Kubernetes = Kubernetes()
    options: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Parameters of a launcher without a section of its own, such as `skypilot`.",
    )

    @property
    def ranks_per_node(self) -> int:
        """Number of processes on each node."""
        return self.ranks // self.nodes

    @property
    def machines(self) -> int:
        """Number of machines of the job: those that train, and the spares."""
        return self.nodes + self.spares

    @model_validator(mode="after")
    def _possible(self) -> Launch:
        refusals = [f"{key}: {reason}" for key, reason in problems(self)]
        if refusals:
            raise ValueError("; ".join(refusals))
        return self


def problems(launch: Launch) -> Iterator[Refusal]:
    """Yield the reasons why this block is invalid, one per key. A valid block yields nothing."""
    if launch.ranks % launch.nodes:
        found = f"{launch.ranks} ranks cannot be divided evenly over {launch.nodes} nodes"
        yield "ranks", f"{found}; expected a multiple of {launch.nodes}"
    if launch.nodes > 1 and launch.kind == "local":
        found = f"kind local uses one machine, found {launch.nodes} nodes"
        yield "nodes", f"{found}; expected 1 node, or kind slurm, ray or kubernetes"
    if launch.spares and launch.nodes == 1:
        yield "spares", f"{launch.spares} spares for 1 node, which cannot be replaced; expected 2 nodes or more, or 0"
    yield from _environment(launch)
    if launch.kind == "slurm":
        yield from _slurm(launch)
    if launch.kind == "kubernetes":
        yield from kubernetes_problems(launch)
    gpus = launch.ray.resources.get("GPU", 0)
    if launch.kind == "ray" and 0 < gpus < launch.ranks_per_node:
        found = f"{gpus:g} GPU for {launch.ranks_per_node} ranks of a node"
        yield "ray.resources", f"{found}; expected one per rank, or 0"


#: Variables that control loading of code or programs. A run's configuration is in the workspace, which others may
#: write, so these come from the environment of the submitter.
_LOADS_CODE = (
    *("LD_*", "DYLD_*", "GCONV_PATH", "PATH", "PYTHON*", "BASH*", "ENV", "IFS", "SHELL", "HOME", "XDG_*", "GIT_*"),
    *("TRITON_*", "TORCHINDUCTOR_*", "TORCH_EXTENSIONS_DIR", "*_PLUGIN*", "*PRELOAD*", "*_CACHE_DIR"),
    *("CC", "CXX", "*FLAGS", "CUDA_HOME", "CUDA_PATH", "CUDA_INJECTION*", "NVIDIA_*PATH*", "OPENSSL_*", "DEEPSPEED_*"),
)


def _environment(launch: Launch) -> Iterator[Refusal]:
    for name in launch.environment:
        if any(fnmatchcase(name.upper(), pattern) for pattern in _LOADS_CODE):
            yield "environment", f"{name} controls which code runs; set it in the submitter's environment"
            continue
        if name in _RANK_OWN or name.startswith("PLINTH_"):
            yield "environment", f"{name} is set by Plinth; expected another variable"
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield "environment", f"{name!r} is not a variable name; expected for example NCCL_DEBUG"


def _slurm(launch: Launch) -> Iterator[Refusal]:
    for line in launch.slurm.sbatch:
        name, _, value = re.sub(r"[=\s]+", " ", line.strip().lstrip("-")).partition(" ")
        if not line.startswith("-") or "\n" in line:
            yield "slurm.sbatch", f"{line!r} is not an option; expected for example --qos=high"
        elif name in _SLURM_OWN.split():
            yield "slurm.sbatch", f"{line!r} is set by Plinth; expected another option, or a field of the recipe"
        elif name in ("time", "t") and not _TIME_LIMIT.fullmatch(value):
            yield "slurm.sbatch", f"{line!r} is not a time limit; expected for example 90, 24:00:00 or 2-12:00:00"
        elif name == "gpus-per-node" and 0 < int("0" + value.rpartition(":")[2]) < launch.ranks_per_node:
            yield "slurm.sbatch", f"{line!r} for {launch.ranks_per_node} ranks; expected one per rank, or 0"


def code_settings(launch: Launch) -> dict[str, Any]:
    """Return the settings that decide which code a job runs, and which scheduler gets it. A local job has none."""
    if launch.kind == "local":
        return {}
    return launch.model_dump(mode="json", include={"kind", "python", "slurm", "ray", "kubernetes", "options"})


def kubernetes_problems(launch: Launch) -> Iterator[Refusal]:
    """Yield the reasons why this block cannot describe the pods of a run."""
    asked = launch.kubernetes
    for name, why in (("image", "pods need a container image"), ("claim", "the pods need a volume with the workspace")):
        if not getattr(asked, name):
            yield f"kubernetes.{name}", f"missing: {why}"
    for name, value in asked.resources.items():
        if name == "nvidia.com/gpu" and value.isdigit() and 0 < int(value) < launch.ranks_per_node:
            found = f"{value} GPUs for {launch.ranks_per_node} ranks of a pod"
            yield "kubernetes.resources", f"{found}; expected one GPU per rank"
    for name, value in asked.rdma.items():
        if not value.isdigit() or int(value) == 0:
            yield "kubernetes.rdma", f"{name} is {value!r}; expected a number of devices, 1 or more"
        if name in asked.resources:
            yield "kubernetes.rdma", f"{name} is also in kubernetes.resources; expected in only one of the two"
    for entry in asked.tolerations:
        yield from (("kubernetes.tolerations", reason) for reason in _toleration(entry))
    for key in ("priority_class", "queue"):
        name = getattr(asked, key)
        if name and not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", name):
            yield f"kubernetes.{key}", f"{name!r} is not a Kubernetes name; expected lowercase, digits, `-`, `.`"


def _toleration(entry: Mapping[str, str | int]) -> Iterator[str]:
    """Yield the reasons why the API server would refuse a toleration (core/v1, ValidateTolerations)."""
    if unknown := sorted(set(entry) - _TOLERATION):
        yield f"{', '.join(unknown)} is not a field of a toleration; expected {', '.join(sorted(_TOLERATION))}"
    operator = entry.get("operator", "Equal")
    if operator not in _OPERATORS:
        yield f"operator {operator!r} is unknown; expected {' or '.join(_OPERATORS)}"
    if operator == "Exists" and "value" in entry:
        yield f"operator Exists takes no value, found {entry['value']!r}"
    if "key" not in entry and operator != "Exists":
        yield "without a key the operator must be Exists"
    if "effect" in entry and entry["effect"] not in _EFFECTS:
        yield f"effect {entry['effect']!r} is unknown; expected {', '.join(_EFFECTS)}"
    if "tolerationSeconds" in entry and entry.get("effect") != "NoExecute":
        yield "tolerationSeconds requires the effect NoExecute"
    if any(isinstance(value, int) is not (name == "tolerationSeconds") for name, value in entry.items()):
        yield f"expected strings, and integer seconds; found {dict(entry)}"
