"""Launchers and supervision of a job. Not part of identity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, internal

#: A key of the block, and why it cannot be: found, expected.
Refusal = tuple[str, str]

#: Time limits that Slurm accepts: minutes, minutes:seconds, hours:…, days-hours:… (sbatch(1), --time).
_TIME_LIMIT = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")

#: Options of sbatch that Plinth sets; another value would lose the job or its log.
_SLURM_OWN = (
    "job-name J comment nodes N ntasks n ntasks-per-node requeue no-requeue signal open-mode output o error e "
    "array a chdir D parsable wait W"
)

#: Environment variables that Plinth sets for each rank; another value would tear the ranks apart.
_RANK_OWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR")

#: Fields of a toleration (core/v1), and the values of two of them.
_TOLERATION = {"key", "operator", "value", "effect", "tolerationSeconds"}
_OPERATORS = ("Exists", "Equal")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: The priority that asks a scheduler for nothing.
NORMAL: Final = "normal"

#: A DNS label (RFC 1123), as Kubernetes names things.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class HostChecks(Frozen):
    """Checks of every node before its ranks start. A node that fails one is excluded from the next attempt."""

    enabled: bool = Field(True, description="Disk, memory, clock, GPUs; of several nodes, connections between them.")
    bound_s: float = Field(60.0, gt=0, description="Seconds for all of it; a node that is silent for longer fails.")
    free_bytes: int = Field(0, ge=0, description="Free in the run's folder; a save looks for its own room.")
    disk_bytes: int = Field(2**23, ge=1, description="Written, read back and compared; at most a quarter of the room.")
    disk_bytes_per_s: int = Field(0, ge=0, description="At least, of that; 0: any speed.")
    memory_bytes: int = Field(2**28, ge=0, description="Free memory of the machine.")
    clock_s: float = Field(1.0, gt=0, description="Seconds that a clock may differ from those of the others.")
    temperature_c: float = Field(88.0, description="Of a GPU, at most, in degrees Celsius.")
    all_reduce: bool = Field(True, description="Between several nodes: a sum by NCCL, or gloo without GPUs.")


class Supervision(Frozen):
    """Restarts inside the allocation."""

    max_restarts: int = Field(3, ge=0, description="Restarts from the last committed checkpoint.")
    backoff_s: float = internal(1.0, ge=0, description="Before the first restart; doubles each time.")
    hang_s: float = Field(300.0, gt=0, description="No event for this long means the ranks hang.")
    grace_s: float = Field(60.0, gt=0, description="Time to save and leave after SIGTERM.")
    host_checks: HostChecks = HostChecks()


class Slurm(Frozen):
    """A batch job of Slurm, requeued until the run has finished."""

    sbatch: tuple[str, ...] = Field(
        (), description="Options of sbatch, for example `--partition=gpu`, `--time=24:00:00`, `--gpus-per-node=8`."
    )
    setup: tuple[str, ...] = Field((), description="Shell lines before the supervisor, for example `module load cuda`.")


class Ray(Frozen):
    """A job of a Ray cluster."""

    address: str = Field("http://127.0.0.1:8265", pattern=r"https?://.+", description="Of the cluster's dashboard.")
    resources: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Asked for on each node, by Ray's names: `CPU` (1 where it is not given), `GPU`, `memory` in "
        "bytes, and the cluster's own.",
    )


class Kubernetes(Frozen):
    """A Job of Kubernetes: one pod per node."""

    namespace: str = Field("default", pattern=f"^{_LABEL}$", description="Namespace of the Job and its Service.")
    context: str = Field("", description="Of the kubeconfig; empty: the current one, or the pod's own account.")
    image: str = Field("", description="A container with Plinth installed.")
    claim: str = Field("", description="Persistent volume claim that holds the workspace (ReadWriteMany if nodes > 1).")
    sub_path: str = Field("", description="Folder of the workspace in the claim; empty: its root.")
    resources: Mapping[str, str] = Field(
        default_factory=dict, description="Requests and limits of each pod, for example {nvidia.com/gpu: '8'}."
    )
    node_selector: Mapping[str, str] = Field(default_factory=dict, description="Labels of the nodes to run on.")
    service_account: str = Field("", description="Empty: the namespace's default.")
    secrets: tuple[str, ...] = Field(
        (), description="Secrets whose entries become environment variables, for example those of a bucket."
    )
    rdma: Mapping[str, str] = Field(
        default_factory=dict,
        description="RDMA devices of each pod, for example {rdma/hca_shared_devices_a: '1'}; brings IPC_LOCK.",
    )
    host_network: bool = Field(False, description="The node's network instead of one of the pod's own.")
    tolerations: tuple[Mapping[str, str | int], ...] = Field(
        (), description="Taints of nodes that pods tolerate, as Kubernetes writes them: `key`, `operator`, `value`, …"
    )
    annotations: Mapping[str, str] = Field(
        default_factory=dict, description="Of each pod, for example the networks that Multus attaches."
    )
    priority_class: str = Field("", description="Priority class of the pods; empty: the cluster's default.")
    queue: str = Field("", description="Kueue's local queue that admits the Job; empty: not queued.")
    user: str = Field(
        "",
        pattern=r"^(\d+(:\d+)?)?$",
        description="UID or UID:GID of the pods; empty: those of the submitter, who must not be root. `0` is root.",
    )
    shm_bytes: int = internal(2**34, ge=0, description="Shared memory of each pod; 0: the container runtime's 64 MB.")


class Queueing(Frozen):
    """Owner and priority of a run in each scheduler's terms. Not part of identity; the budget's team pays."""

    team: str = Field(
        "",
        pattern=rf"^({_LABEL})?$",
        description="Slurm's account; Kueue's local queue, where `kubernetes.queue` names none; Ray's metadata.",
    )
    priority: Literal["low", "normal", "high"] = Field(
        NORMAL,
        description="Slurm's `--qos`, Kueue's workload priority class, the order of Dagster's queue; normal asks none.",
    )


class SubmissionRate(Frozen):
    """Rate limit of submissions to the launcher, by all processes of a workspace on a machine together."""

    per_hour: float = Field(600.0, gt=0, description="Submissions an hour, in the long run.")
    burst: int = Field(100, ge=1, description="Submissions at once, after a while without any.")
    backoff_s: float = Field(
        5.0, ge=0, description="Pause after a submission that the scheduler refused; doubles with each in a row."
    )
    wait_s: float = Field(1800.0, ge=0, description="Longest wait for a turn; then the submission fails by name.")


class Launch(Frozen):
    """Launcher of the job. Not part of identity."""

    kind: str = Field(
        "local",
        description="Launcher: `local`, `slurm`, `ray`, `kubernetes`, or the name of an installed one.",
        json_schema_extra={"examples": ["local", "slurm", "ray", "kubernetes"]},
    )
    ranks: int = Field(2, ge=1, description="Processes over all nodes, one per device.")
    nodes: int = Field(1, ge=1, description="Machines; each runs the same number of ranks.")
    python: str = Field(
        "",
        description="Ray and Kubernetes: the interpreter of the cluster or image; empty: that of the submitter, or "
        "`python`.",
    )
    environment: Mapping[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the ranks, for example {NCCL_SOCKET_IFNAME: eth0}; no secrets: they are "
        "written into the run's folder.",
    )
    rate: SubmissionRate = SubmissionRate()
    queueing: Queueing = Queueing()
    slurm: Slurm = Slurm()
    ray: Ray = Ray()
    kubernetes: Kubernetes = Kubernetes()
    options: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Parameters of an installed launcher; built-in ones have sections of their own.",
    )

    @property
    def ranks_per_node(self) -> int:
        """Number of processes on each node."""
        return self.ranks // self.nodes

    @model_validator(mode="after")
    def _possible(self) -> Launch:
        refusals = [f"{key}: {reason}" for key, reason in problems(self)]
        if refusals:
            raise ValueError("; ".join(refusals))
        return self


def problems(launch: Launch) -> Iterator[Refusal]:
    """Yield why this block cannot run, one reason per key; nothing if it can."""
    if launch.ranks % launch.nodes:
        yield "ranks", f"{launch.ranks} ranks cannot be divided evenly over {launch.nodes} nodes; expected a multiple"
    if launch.nodes > 1 and launch.kind == "local":
        yield "nodes", f"kind local is this one machine, found {launch.nodes}; expected 1, or slurm, ray or kubernetes"
    yield from _environment(launch)
    if launch.kind == "slurm":
        yield from _slurm(launch)
    if launch.kind == "kubernetes":
        yield from _kubernetes(launch)
    gpus = launch.ray.resources.get("GPU", 0)
    if launch.kind == "ray" and 0 < gpus < launch.ranks_per_node:
        found = f"{gpus:g} GPU for {launch.ranks_per_node} ranks of a node"
        yield "ray.resources", f"{found}; expected one for each, or 0"


#: Variables by which a program loads code or finds its programs. A run's configuration is in the workspace, which
#: others may write: these come from the environment of whoever starts the job.
_LOADS_CODE = (
    *("LD_*", "DYLD_*", "GCONV_PATH", "PATH", "PYTHON*", "BASH*", "ENV", "IFS", "SHELL", "HOME", "XDG_*", "GIT_*"),
    *("TRITON_*", "TORCHINDUCTOR_*", "TORCH_EXTENSIONS_DIR", "*_PLUGIN*", "*PRELOAD*", "*_CACHE_DIR"),
    *("CC", "CXX", "*FLAGS", "CUDA_HOME", "CUDA_PATH", "CUDA_INJECTION*", "NVIDIA_*PATH*", "OPENSSL_*", "DEEPSPEED_*"),
)


def _environment(launch: Launch) -> Iterator[Refusal]:
    for name in launch.environment:
        if any(fnmatchcase(name.upper(), pattern) for pattern in _LOADS_CODE):
            yield "environment", f"{name} decides which code runs; set it where the job is started"
            continue
        if name in _RANK_OWN or name.startswith("PLINTH_"):
            yield "environment", f"{name} is Plinth's own to set; expected another variable"
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield "environment", f"{name!r} is no name of a variable; expected for example NCCL_DEBUG"


def _slurm(launch: Launch) -> Iterator[Refusal]:
    for line in launch.slurm.sbatch:
        name, _, value = re.sub(r"[=\s]+", " ", line.strip().lstrip("-")).partition(" ")
        if not line.startswith("-") or "\n" in line:
            yield "slurm.sbatch", f"{line!r} is no option; expected for example --qos=high"
        elif name in _SLURM_OWN.split():
            yield "slurm.sbatch", f"{line!r} is Plinth's own to set; expected another option, or a field of the recipe"
        elif name in ("time", "t") and not _TIME_LIMIT.fullmatch(value):
            yield "slurm.sbatch", f"{line!r} is no time; expected for example 90, 24:00:00 or 2-12:00:00"
        elif name == "gpus-per-node" and 0 < int("0" + value.rpartition(":")[2]) < launch.ranks_per_node:
            yield "slurm.sbatch", f"{line!r} for {launch.ranks_per_node} ranks; expected one for each, or 0"


def _kubernetes(launch: Launch) -> Iterator[Refusal]:
    asked = launch.kubernetes
    for name, why in (("image", "a pod needs a container"), ("claim", "pods find the run in its workspace")):
        if not getattr(asked, name):
            yield f"kubernetes.{name}", f"nothing given; {why}"
    for name, value in asked.resources.items():
        if name == "nvidia.com/gpu" and value.isdigit() and 0 < int(value) < launch.ranks_per_node:
            yield "kubernetes.resources", f"{value} GPUs for {launch.ranks_per_node} ranks of a pod; expected one each"
    for name, value in asked.rdma.items():
        if not value.isdigit() or int(value) == 0:
            yield "kubernetes.rdma", f"{name} is {value!r}; expected a number of devices, 1 or more"
        if name in asked.resources:
            yield "kubernetes.rdma", f"{name} stands in kubernetes.resources too; expected in one of them"
    for entry in asked.tolerations:
        yield from (("kubernetes.tolerations", reason) for reason in _toleration(entry))
    for key in ("priority_class", "queue"):
        name = getattr(asked, key)
        if name and not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", name):
            yield f"kubernetes.{key}", f"{name!r} is no name of Kubernetes; expected small letters, digits, `-` and `.`"


def _toleration(entry: Mapping[str, str | int]) -> Iterator[str]:
    """Yield why the API server would refuse a toleration (core/v1, ValidateTolerations)."""
    if unknown := sorted(set(entry) - _TOLERATION):
        yield f"{', '.join(unknown)} is no field of a toleration; expected {', '.join(sorted(_TOLERATION))}"
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
        yield "tolerationSeconds goes with the effect NoExecute only"
    if any(isinstance(value, int) is not (name == "tolerationSeconds") for name, value in entry.items()):
        yield f"expected texts, and whole seconds; found {dict(entry)}"
