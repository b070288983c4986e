"""Jobs of a Ray cluster, through its Jobs API (REST, Ray 2.x), detached from the submitting process.

The submission id is a function of the run's directory and a count, and the cluster refuses an id that it has seen, so
concurrent submitters cannot start the same job twice. Requests are plain HTTP: Ray's own client waits forever for an
unresponsive head, and the submitter needs no Ray.

Ray does not requeue jobs: after a preemption or a lost node, the same command submits the job again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plinth.errors import LaunchError
from plinth.launch import base
from plinth.launch.base import (
    EVERY_S,
    EXCLUDED,
    LEFT,
    Handle,
    JobStatus,
    LauncherKind,
    StatusCache,
    read_handle,
    submit_once,
    tail,
)
from plinth.launch.parameters import NORMAL, Launch, Ray
from plinth.launch.ray_nodes import EXCLUDED_VARIABLE
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import TRUST_VARIABLE

TIMEOUT_S = 30.0

POLL_S = 0.5

#: Seconds added to the recipe's grace period, for the supervisor to record the end of the job.
LEAVE_S = 30

#: Ray's own variable for the address of its Jobs API.
ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"

#: In the run's directory: the last canceled submission.
CANCELLED = "cancelled"

#: Refusal of a head whose agents are still starting.
_NOT_YET = "No available agent"

_STATUS = {"PENDING": JobStatus.PENDING, "RUNNING": JobStatus.RUNNING}

_ENDED = ("STOPPED", "SUCCEEDED", "FAILED")


class RayLauncher:
    """Launcher that identifies a job by its submission identifier and its marker in the cluster."""

    def __init__(self, launch: Launch, grace_s: float, every_s: float = EVERY_S) -> None:
        self._launch, self._grace_s = launch, grace_s
        self._address = launch.ray.address.rstrip("/")
        self.poll = StatusCache(self._ask, every_s)

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Submit the job, or return the live job, even if its handle was never written."""
        directory, log = directory.absolute(), log.absolute()
        self.poll.forget()
        return submit_once(directory, self.find, self._ask, lambda: self._submit(command, directory, log))

    def find(self, directory: Path) -> Handle | None:
        """Return the handle in `directory`, or else the live job of this directory."""
        handle = read_handle(directory)
        if handle is not None:
            return handle
        alive = [job for job in self._jobs(base_name(directory.absolute())) if job["status"] in _STATUS]
        return self._handle(alive[0]) if alive else None

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Send SIGTERM to all processes of the job. The cluster kills processes that outlive the recipe's grace period.

        The cluster refuses to stop a job that was submitted a moment ago; the request is then repeated. If the request
        comes even earlier, the cluster starts the entry point and then signals it; the entry point therefore reads a
        file first.
        """
        self.poll.forget()
        until, asked = time.monotonic() + grace_s, False
        found = _found(handle)
        if found is not None and (directory := Path(found["metadata"]["plinth_directory"])).is_dir():
            write_bytes(directory / CANCELLED, handle.id.encode())
        while self._ask(handle).alive:
            asked = asked or bool(_request(handle.host, "POST", f"{handle.id}/stop")["stopped"])
            if time.monotonic() >= until:
                return
            time.sleep(POLL_S)

    def logs(self, log: Path, lines: int = 50) -> str:
        """Return the last lines of the run's log, or of the cluster's own log if the run's log does not exist yet."""
        written = tail(log, lines)
        handle = read_handle(log.parent)
        if written or handle is None:
            return written
        said = _request(handle.host, "GET", f"{handle.id}/logs") or {"logs": ""}
        return "\n".join(str(said["logs"]).splitlines()[-lines:])

    def _submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        name = base_name(directory)
        earlier = self._jobs(name)
        for job in earlier:
            if job["status"] in _STATUS:
                return self._handle(job)
        number = 1 + max((int(job["submission_id"].rpartition("-")[2]) for job in earlier), default=0)
        body = self._body(command, directory, log, f"{name}-{number:04d}")
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                _request(self._address, "POST", "", body)
                break
            except LaunchError as error:
                # the job may exist although the response was lost
                found = _request(self._address, "GET", body["submission_id"])
                if found is not None and found["status"] in _STATUS:
                    return self._handle(found)
                if _NOT_YET not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(POLL_S)
        return Handle(
            launcher="ray", id=body["submission_id"], started=body["metadata"]["plinth_mark"], host=self._address
        )

    def _body(self, command: Sequence[str], directory: Path, log: Path, name: str) -> dict[str, Any]:
        asked, python = self._launch.ray, self._launch.python or sys.executable
        words = [python, *command[1:]] if command[0] == sys.executable else list(command)
        own = {name: amount for name, amount in asked.resources.items() if name not in ("CPU", "GPU", "memory")}
        needs = {
            "entrypoint_num_cpus": asked.resources.get("CPU", 1.0),
            "entrypoint_num_gpus": asked.resources.get("GPU", 0.0),
            "entrypoint_memory": int(asked.resources.get("memory", 0)) or None,
            "entrypoint_resources": own or None,
        }
        if self._launch.nodes > 1:  # resources belong to the bundles of nodes, not to the entry point
            each = ["bash", "-c", base.logged(words, log)]
            nodes, bundle = str(self._launch.machines), json.dumps(_bundle(asked))
            words, needs = [python, "-P", "-m", "plinth.launch.ray_nodes", nodes, bundle, *each], {}
        unless = f'if [ "$(cat {shlex.quote(str(directory / CANCELLED))} 2>/dev/null)" = {name} ]; then exit {LEFT}; fi'
        return {
            # `exec`: Ray runs this by a shell and stops what it sees below it at that moment; dash would fork once more
            "entrypoint": "exec " + shlex.join(["bash", "-c", f"{unless}\n{base.logged(words, log)}"]),
            "submission_id": name,
            "metadata": {"plinth_directory": str(directory), "plinth_mark": uuid.uuid4().hex, **self._queueing()},
            "runtime_env": {"env_vars": self._environment(directory)},
            **needs,
        }

    def _queueing(self) -> dict[str, str]:
        """Return the owner as metadata for people, since Ray has no accounts and does not order jobs."""
        asked = self._launch.queueing
        team = {"plinth_team": asked.team} if asked.team else {}
        return team | ({"plinth_priority": asked.priority} if asked.priority != NORMAL else {})

    def _environment(self, directory: Path) -> dict[str, str]:
        # the job's processes must not import from their working directory
        wait = {"PYTHONSAFEPATH": "1", "RAY_JOB_STOP_WAIT_TIME_S": str(int(self._grace_s) + LEAVE_S)}
        return {**wait, EXCLUDED_VARIABLE: str(directory / EXCLUDED), **_trust()}

    def _jobs(self, name: str) -> list[dict[str, Any]]:
        """Return all jobs of this directory that the cluster still lists, in the order of their numbers."""
        jobs = _request(self._address, "GET", "") or []
        pattern = re.compile(re.escape(name) + r"-\d+")
        found = [job for job in jobs if pattern.fullmatch(job.get("submission_id") or "")]
        return sorted(found, key=lambda job: int(job["submission_id"].rpartition("-")[2]))

    def _handle(self, job: dict[str, Any]) -> Handle:
        mark = job["metadata"].get("plinth_mark", "")
        return Handle(launcher="ray", id=job["submission_id"], started=mark, host=self._address)

    @staticmethod
    def _ask(handle: Handle) -> JobStatus:
        found = _found(handle)
        if found is None or found["status"] in _ENDED:
            return JobStatus.GONE
        return _STATUS.get(found["status"], JobStatus.RUNNING)


def _found(handle: Handle) -> dict[str, Any] | None:
    """Return the cluster's record of a handle's job, or None if the id belongs to another job or to no job."""
    found: dict[str, Any] | None = _request(handle.host, "GET", handle.id)
    same = found is not None and (found["metadata"] or {}).get("plinth_mark") == handle.started
    return found if same else None


def _trust() -> dict[str, str]:
    """Return the variable with the folder of the pinned root, if it is set, because the cluster's processes do not
    inherit it."""
    return {name: os.environ[name] for name in (TRUST_VARIABLE,) if name in os.environ}


def _bundle(asked: Ray) -> dict[str, float]:
    """Return one node's resources as a bundle for a placement group. Ray refuses an empty bundle."""
    return {name: amount for name, amount in {"CPU": 1.0, **asked.resources}.items() if amount} or {"CPU": 0.001}


def base_name(directory: Path) -> str:
    """Return the common prefix of the identifiers of a run's submissions from this workspace."""
    return f"plinth-{directory.name}-{hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()[:8]}"


def _request(address: str, method: str, what: str, body: dict[str, Any] | None = None) -> Any:
    """Send one request to the Jobs API; return its answer, or None if there is nothing with this name.

    Raises:
        LaunchError: the cluster refuses, or cannot be reached.
    """
    url = f"{address}/api/jobs/{what}"
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **_token(address)}
    try:
        asked = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.build_opener(_NoRedirects).open(asked, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404 and method == "GET":
            return None
        said = error.read().decode(errors="replace").strip().splitlines() or [""]
        raise LaunchError(
            f"Ray refused {method} {url}",
            found=f"{error.code} {error.reason}: {said[-1]}",
            remedy=f"check training.launch.ray in the recipe; if the cluster requires a token, set RAY_AUTH_TOKEN and "
            f"{ADDRESS_VARIABLE}={address}",
        ) from error
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"no response from the Ray cluster at {address}",
            found=error,
            expected="the address of its dashboard, which serves the Jobs API",
            remedy="check that the cluster is running with `ray[default]` installed, and check "
            "training.launch.ray.address",
        ) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects, which would send the cluster's token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _token(address: str) -> dict[str, str]:
    """Return the cluster's token from the place where Ray itself looks: a variable, a file that a variable names, or a
    file in the home folder. Files of a run can name any address, so the token is sent to that of the variable only."""
    named = os.environ.get(ADDRESS_VARIABLE, "").rstrip("/")
    if os.environ.get("RAY_AUTH_MODE", "token") == "disabled" or named != address:
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if not token and path.exists():
        token = path.read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


KIND = LauncherKind("ray", "A job of a Ray cluster.", RayLauncher)
