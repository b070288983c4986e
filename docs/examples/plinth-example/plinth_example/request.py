"""SageMaker training jobs: parameters in a recipe, and the request that creates a job.

The workspace is on a file system (FSx for Lustre, or EFS) that SageMaker mounts as the channel `workspace`. The job
runs a script in the run's directory, because arguments of a container have at most 256 characters.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from plinth.launch import base
from plinth.launch.parameters import Launch
from plinth.records import Frozen

SCRIPT = "sagemaker.sh"

CHANNEL = "workspace"

#: Where SageMaker mounts the channel in a container.
MOUNTED = f"/opt/ml/input/data/{CHANNEL}"

#: Which host this is, and all of them.
HOSTS = "/opt/ml/input/config/resourceconfig.json"

#: With the hash and the attempt behind it, below the 63 characters of a job's name.
_NAME_CHARACTERS = 36


class Options(Frozen):
    """`training.launch.options` of a recipe."""

    role: str = Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/.+$", description="ARN of the job's role.")
    image: str = Field(min_length=1, max_length=255, description="Container in ECR, with Plinth installed.")
    instance: str = Field(pattern=r"^ml\.[a-z0-9.-]+$", description="Instance type, such as `ml.p5.48xlarge`.")
    output: str = Field(pattern=r"^s3://[^/]+/?.*$", description="S3 prefix; SageMaker asks for one.")
    file_system: str = Field(pattern=r"^fs-[0-9a-f]{8,18}$", description="File system that holds the workspace.")
    file_system_type: Literal["FSxLustre", "EFS"] = Field("FSxLustre", description="Its type.")
    directory: str = Field(pattern=r"^/.*$", description="Path of the workspace on it (FSx: with the mount name).")
    subnets: tuple[str, ...] = Field(min_length=1, max_length=16, description="In a VPC that reaches it.")
    security_groups: tuple[str, ...] = Field(min_length=1, max_length=5, description="In a VPC that reaches it.")
    python: str = Field("python", description="The interpreter in the image.")
    region: str = Field("", description="Empty: that of the environment.")
    volume_gb: int = Field(50, ge=1, description="Disk of each instance.")
    max_runtime_s: int = Field(5 * 86_400, ge=1, description="Time limit of the job in seconds.")
    attempts: int = Field(3, ge=1, le=30, description="Tries of SageMaker's own after an internal error.")
    spot: bool = Field(False, description="Spot instances; an interrupted job waits, and starts again by itself.")
    max_wait_s: int = Field(0, ge=0, description="Spot: running and waiting together; 0 means twice `max_runtime_s`.")
    checkpoints: str = Field(
        "", pattern=r"^(s3://[^/]+/?.*)?$", description="Spot: S3 copy of /opt/ml/checkpoints, kept over interruptions."
    )
    environment: Mapping[str, str] = Field(default_factory=dict, description="Further environment variables.")

    @model_validator(mode="after")
    def _waits_as_long_as_it_runs(self) -> Options:
        if (self.max_wait_s or self.checkpoints) and not self.spot:
            raise ValueError("max_wait_s and checkpoints are of spot jobs; expected spot: true")
        if self.max_wait_s and self.max_wait_s < self.max_runtime_s:
            raise ValueError(f"max_wait_s is {self.max_wait_s}, expected at least max_runtime_s = {self.max_runtime_s}")
        return self


def stem(directory: Path) -> str:
    """Return the job's name without its attempt, derived from the run's directory."""
    slug = re.sub(r"[^a-zA-Z0-9]+", "-", directory.name)[:_NAME_CHARACTERS].strip("-")
    return f"plinth-{slug}-{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}"


def request(launch: Launch, options: Options, directory: Path, attempt: int) -> dict[str, Any]:
    """Arguments of CreateTrainingJob.

    Args:
        directory: `<workspace>/runs/<run_id>`.
        attempt: from 1; SageMaker never takes a name twice.
    """
    source = {
        "FileSystemId": options.file_system,
        "FileSystemType": options.file_system_type,
        "FileSystemAccessMode": "rw",
        "DirectoryPath": options.directory,
    }
    stopping = {"MaxRuntimeInSeconds": options.max_runtime_s}
    if options.spot:
        stopping["MaxWaitTimeInSeconds"] = options.max_wait_s or 2 * options.max_runtime_s
    made: dict[str, Any] = {
        "TrainingJobName": f"{stem(directory)}-{attempt}",
        "RoleArn": options.role,
        "AlgorithmSpecification": {
            "TrainingImage": options.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["bash"],
            "ContainerArguments": [f"{MOUNTED}/{directory.relative_to(directory.parent.parent)}/{SCRIPT}"],
        },
        "InputDataConfig": [{"ChannelName": CHANNEL, "DataSource": {"FileSystemDataSource": source}}],
        "OutputDataConfig": {"S3OutputPath": options.output},
        "ResourceConfig": {
            "InstanceType": options.instance,
            "InstanceCount": launch.nodes,
            "VolumeSizeInGB": options.volume_gb,
        },
        "VpcConfig": {"Subnets": list(options.subnets), "SecurityGroupIds": list(options.security_groups)},
        "StoppingCondition": stopping,
        "RetryStrategy": {"MaximumRetryAttempts": options.attempts},
        "EnableManagedSpotTraining": options.spot,
        "Environment": dict(options.environment),
        "Tags": [{"Key": "plinth:run", "Value": directory.name[:256]}],
    }
    if options.spot and options.checkpoints:
        made["CheckpointConfig"] = {"S3Uri": options.checkpoints, "LocalPath": "/opt/ml/checkpoints"}
    return made


def job_script(launch: Launch, options: Options, command: Sequence[str], directory: Path, log: Path) -> str:
    """Return the script of each host: link the workspace, set the host's rank, start the supervisor."""
    workspace = shlex.quote(str(directory.parent.parent))
    lines = [
        "#!/bin/bash",
        f'[ -e {workspace} ] || {{ mkdir -p "$(dirname {workspace})" && ln -s {MOUNTED} {workspace}; }}',
        "export PYTHONUNBUFFERED=1",
    ]
    if launch.nodes > 1:
        lines += [f'eval "$({shlex.quote(options.python)} -c {shlex.quote(_PLACE)} {HOSTS})"']
    return "\n".join([*lines, base.logged([options.python, *command[1:]], log), ""])


#: Prints the variables by which supervisors of several nodes find each other.
_PLACE = """\
import json, sys
found = json.load(open(sys.argv[1]))
hosts = sorted(found["hosts"], key=lambda host: int(host.rpartition("-")[2]))
print(f"export PLINTH_NODES={len(hosts)} PLINTH_NODE={hosts.index(found['current_host'])} PLINTH_ADDRESS={hosts[0]}")
"""
