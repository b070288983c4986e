"""Training jobs of Amazon SageMaker: created once, polled seldom, stopped, found again; on spot instances if asked.

A job's name is a function of the run's directory and an attempt, and SageMaker never takes a name twice: of two
submitters, one creates the job and the other finds it. The creation time proves that a name means the same job.

A spot job that is interrupted stays the same job: it waits (`Interrupted`, then `Starting`), and SageMaker starts its
containers again, whose supervisor goes on from the last committed checkpoint. A job that has ended is followed by the
next attempt when the same command is run again.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plinth.errors import LaunchError
from plinth.launch.base import Handle, JobStatus, LauncherKind, StatusCache, read_handle, submit_once, tail
from plinth.launch.parameters import Launch
from plinth.storage.atomic import write_bytes
from plinth_example.request import SCRIPT, Options, job_script, request, stem

#: A finished job is noticed this late at most. SageMaker limits how often an account may ask.
EVERY_S = 15.0

POLL_S = 1.0

#: Seconds between SIGTERM and SIGKILL (StopTrainingJob).
KILL_S = 120.0

LOG_GROUP = "/aws/sagemaker/TrainingJobs"

#: Ended. How, is the job's own to say.
_ENDED = ("Completed", "Failed", "Stopped", "Deleting")

#: Secondary statuses of a job that has no instances yet, or none any more.
_WAITING = (
    "Starting", "Pending", "LaunchingMLInstances", "PreparingTrainingStack", "Downloading", "DownloadingTrainingImage",
    "Interrupted", "Restarting",
)  # fmt: skip

#: Throttled requests are retried with backoff before an error is raised.
_RETRIES = {"mode": "standard", "max_attempts": 6}


class SageMaker:
    """A job is the training job of the handle's name and creation time."""

    def __init__(self, launch: Launch, grace_s: float, every_s: float = EVERY_S) -> None:
        if grace_s > KILL_S:
            raise LaunchError(
                f"SageMaker kills a job {KILL_S:g} s after it asked it to stop",
                found=f"training.supervision.grace_s = {grace_s:g}",
                expected=f"at most {KILL_S:g}",
                remedy="lower it; the job must have saved by then",
            )
        self._launch, self._options = launch, Options.model_validate(launch.options)
        self._clients: dict[str, Any] = {}
        self._status = StatusCache(self._ask, every_s)

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Create the job, or return the one that is alive already, also when its handle was never written."""
        directory, log = directory.absolute(), log.absolute()
        text = job_script(self._launch, self._options, command, directory, log)
        self._status.forget()
        return submit_once(directory, self.find, self._ask, lambda: self._create(text, directory))

    def find(self, directory: Path) -> Handle | None:
        """Return the handle in `directory`, else the last job of its name."""
        handle = read_handle(directory)
        if handle is not None and handle.launcher == KIND.name:
            return handle
        last = self._last(directory.absolute())
        return None if last == 0 else self._handle(f"{stem(directory.absolute())}-{last}")

    def poll(self, handle: Handle) -> JobStatus:
        """Return the job's state, cached for some seconds."""
        return self._status(handle)

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """SIGTERM to the containers; SageMaker kills them after 120 s, whether or not this waits so long."""
        self._status.forget()
        with contextlib.suppress(_Missing):
            self._call("sagemaker", "stop_training_job", TrainingJobName=handle.id)
        until = time.monotonic() + grace_s
        while self._ask(handle).alive and time.monotonic() < until:
            time.sleep(POLL_S)

    def logs(self, log: Path, lines: int = 50) -> str:
        """Return the last log lines of the run, else those of the first host in CloudWatch."""
        written = tail(log, lines)
        handle = None if written else self.find(log.parent)
        if handle is None:
            return written
        with contextlib.suppress(_Missing):
            named = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{handle.id}/"}
            streams = self._call("logs", "describe_log_streams", **named)["logStreams"]
            if streams:
                first = min(stream["logStreamName"] for stream in streams)
                asked = {"logGroupName": LOG_GROUP, "logStreamName": first, "limit": lines, "startFromHead": False}
                return "\n".join(event["message"] for event in self._call("logs", "get_log_events", **asked)["events"])
        return ""

    def _create(self, text: str, directory: Path) -> Handle:
        write_bytes(directory / SCRIPT, text.encode())
        attempt = self._last(directory)
        while True:
            attempt += 1
            wanted = request(self._launch, self._options, directory, attempt)
            try:
                self._call("sagemaker", "create_training_job", **wanted)
            except _Exists:  # another submitter's, or our own whose answer was lost
                found = self._handle(wanted["TrainingJobName"])
                if not self._ask(found).alive:
                    continue
                return found
            return self._handle(wanted["TrainingJobName"])

    def _last(self, directory: Path) -> int:
        """Return the highest attempt that SageMaker knows, else 0."""
        name, last, page = stem(directory), 0, dict[str, str]()
        while True:
            found = self._call("sagemaker", "list_training_jobs", NameContains=name, MaxResults=100, **page)
            for job in found["TrainingJobSummaries"]:
                if matched := re.fullmatch(rf"{re.escape(name)}-(\d+)", job["TrainingJobName"]):
                    last = max(last, int(matched[1]))
            if not found.get("NextToken"):
                return last
            page = {"NextToken": found["NextToken"]}

    def _ask(self, handle: Handle) -> JobStatus:
        try:
            job = self._call("sagemaker", "describe_training_job", TrainingJobName=handle.id)
        except _Missing:
            return JobStatus.GONE
        return _status(job) if job["CreationTime"].isoformat() == handle.started else JobStatus.GONE

    def _handle(self, name: str) -> Handle:
        job = self._call("sagemaker", "describe_training_job", TrainingJobName=name)
        host = str(job["TrainingJobArn"]).rpartition(":")[0]
        return Handle(launcher=KIND.name, id=name, started=job["CreationTime"].isoformat(), host=host)

    def _call(self, service: str, method: str, **arguments: Any) -> Any:
        """One request.

        Raises:
            _Missing, _Exists: error responses of the service.
            LaunchError: it refuses, or cannot be reached.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client(service), method)(**arguments)
        except ClientError as error:
            code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            if code == "ResourceInUse":
                raise _Exists from error
            # a describe's ValidationException is an unknown name, a stop's a job that has ended
            if code in ("ResourceNotFound", "ResourceNotFoundException") or (
                code == "ValidationException" and method in ("describe_training_job", "stop_training_job")
            ):
                raise _Missing from error
            raise LaunchError(
                f"AWS refused {method}",
                found=f"{code}: {message}",
                remedy="see training.launch.options of the recipe, the role, and the account's limits",
            ) from error
        except BotoCoreError as error:
            raise LaunchError(
                f"no answer from AWS to {method}",
                found=error,
                remedy="check the network, the region and the credentials (`aws sts get-caller-identity`)",
            ) from error

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            import boto3
            from botocore.config import Config

            config = Config(retries=_RETRIES, connect_timeout=10, read_timeout=30)
            self._clients[service] = boto3.client(service, region_name=self._options.region or None, config=config)
        return self._clients[service]


class _Missing(Exception):
    """Nothing of this name."""


class _Exists(Exception):
    """Something of this name already."""


def _status(job: dict[str, Any]) -> JobStatus:
    """Return the status of a job; one that is stopping is alive until it ends."""
    if job["TrainingJobStatus"] in _ENDED:
        return JobStatus.GONE
    return JobStatus.PENDING if job.get("SecondaryStatus") in _WAITING else JobStatus.RUNNING


def _preview(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
    """Return the request of a first attempt, for `aws sagemaker create-training-job --cli-input-json`."""
    return json.dumps(request(launch, Options.model_validate(launch.options), directory, 1), indent=2) + "\n"


KIND = LauncherKind(
    name="sagemaker",
    description="A training job of Amazon SageMaker, on spot instances if asked.",
    make=SageMaker,
    params=Options,
    preview=_preview,
)
