"""SkyPilot managed jobs, through the `sky` program.

SkyPilot gives each job a number and does not refuse a name that exists. The name of a job therefore has a random mark,
which proves that a number still means the same job, and the lock in the run's directory prevents a second job.

SkyPilot recovers a job after a preemption or a lost node, and after exit status 75. When a job is canceled, the
launcher first asks it through a file in the run's directory to save and leave, because SkyPilot does not wait.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from plinth import processes
from plinth.errors import LaunchError
from plinth.launch import base
from plinth.launch.base import Handle, JobStatus, LauncherKind, StatusCache, read_handle, submit_once, tail
from plinth.launch.manifest import job_name
from plinth.launch.parameters import Launch
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes

#: Maximum delay of noticing a finished job, in seconds. Each question starts `sky`, which takes seconds.
EVERY_S = 30.0

POLL_S = 1.0

#: A submission may have to start the controller of managed jobs first.
SUBMIT_S, TIMEOUT_S = 1800.0, 120.0

#: In the run's directory: the task of the last submission.
TASK = "skypilot.yaml"

_WAITING = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
_RUNNING = ("RUNNING", "WINDING_DOWN", "CANCELLING")

#: Answer of `sky jobs queue` if there is no controller, and so no job.
_NO_JOBS = "No in-progress managed jobs"

#: Maximum length of the part of a name that is derived from the directory.
_NAME_CHARACTERS = 24


#: In the run's directory: the name of the last canceled job. SkyPilot does not wait until a canceled job has saved.
CANCELLED = "cancelled"


class Options(Frozen):
    """Parameters of the launcher, below `training.launch.options`."""

    resources: Mapping[str, Any] = Field(
        default_factory=dict,
        description="Resources of each node in SkyPilot's format, for example {accelerators: 'H100:8', infra: k8s}.",
    )
    volumes: Mapping[str, str] = Field(
        default_factory=dict,
        description="SkyPilot volumes by mount path, for example {/mnt/workspace: plinth}. The workspace must have the "
        "same path on the submitting machine.",
    )
    file_mounts: Mapping[str, Any] = Field(
        default_factory=dict, description="File mounts in SkyPilot's format, for example of a bucket."
    )
    setup: str = Field("", description="Shell commands that prepare a node, for example `pip install plinth[train]`.")
    envs: Mapping[str, str] = Field(default_factory=dict, description="Environment variables of the job. No secrets.")


def task(launch: Launch, command: Sequence[str], directory: Path, log: Path, name: str) -> dict[str, Any]:
    """Return the task of a run.

    Args:
        command: command of the supervisor; `launch.python` replaces its interpreter.
        name: name of the managed job.
    """
    options = Options.model_validate(launch.options)
    recovery: dict[str, Any] = {"recover_on_exit_codes": [base.LEFT]}
    if isinstance(own := options.resources.get("job_recovery"), Mapping):
        codes = own.get("recover_on_exit_codes") or []
        own_codes = [codes] if isinstance(codes, int) else codes  # SkyPilot takes a number or a list
        recovery = {**own, "recover_on_exit_codes": [base.LEFT, *(code for code in own_codes if code != base.LEFT)]}
    elif own:
        recovery = {"strategy": own, **recovery}
    found: dict[str, Any] = {
        "name": name,
        "num_nodes": launch.machines,
        "resources": {**options.resources, "job_recovery": recovery},
        "run": script(launch, command, directory, log, name),
    }
    for key in ("envs", "volumes", "file_mounts", "setup"):
        if given := getattr(options, key):
            found[key] = dict(given) if isinstance(given, Mapping) else given
    return found


def script(launch: Launch, command: Sequence[str], directory: Path, log: Path, name: str) -> str:
    """Return the script that each node runs. It ends the job if `CANCELLED` names the job; SkyPilot then does not
    recover it."""
    words = [launch.python or "python", *command[1:]]
    lines = [
        f'canceled() {{ [ "$(cat {shlex.quote(str(directory / CANCELLED))} 2>/dev/null)" = {shlex.quote(name)} ]; }}',
        "if canceled; then exit 0; fi",
        'export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PLINTH_HOST="$(hostname)"',
    ]
    if launch.nodes > 1:
        address = 'PLINTH_ADDRESS="$(printf \'%s\\n\' "$SKYPILOT_NODE_IPS" | head -n 1)"'
        lines.append(f'export PLINTH_NODES={launch.machines} PLINTH_NODE="$SKYPILOT_NODE_RANK" {address}')
    lines += [
        "cd /",
        "( while ! canceled; do sleep 0.5; done; kill -TERM $$ ) >/dev/null 2>&1 &",
        "watcher=$!",
        *base.waiting(f"{shlex.join(['bash', '-c', base.logged(words, log)])} </dev/null"),
        'kill "$watcher" 2>/dev/null',
        "if canceled; then exit 0; fi",
        'exit "$status"',
    ]
    return "\n".join(lines) + "\n"


class SkyPilotLauncher:
    """Launcher that identifies a job by the number and name of its managed job. `started` in a handle is the name and
    the run's directory."""

    def __init__(self, launch: Launch, grace_s: float, every_s: float = EVERY_S) -> None:
        Options.model_validate(launch.options)
        self._launch = launch
        self.poll = StatusCache(_ask, every_s)

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Submit the job, or return the live job, even if its handle was never written."""
        directory, log = directory.absolute(), log.absolute()
        self.poll.forget()
        return submit_once(
            directory, self.find, _ask, lambda: _alive(directory) or self._submit(command, directory, log)
        )

    def find(self, directory: Path) -> Handle | None:
        """Return the handle in `directory`, or else the live job of this directory."""
        return read_handle(directory) or _alive(directory.absolute())

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Ask the job to save and leave; after `grace_s`, cancel the managed job, which ends its machines."""
        self.poll.forget()
        status = _ask(handle)
        if not status.alive:
            return
        name, _, directory = handle.started.partition(" ")
        with contextlib.suppress(OSError):  # the directory was moved: the job gets no time to save
            write_bytes(Path(directory) / CANCELLED, name.encode())
        until = time.monotonic() + grace_s
        while status is JobStatus.RUNNING and time.monotonic() < until:
            time.sleep(POLL_S)
            status = _ask(handle)
        if status.alive:
            _sky("jobs", "cancel", "--yes", handle.id)

    def logs(self, log: Path, lines: int = 50) -> str:
        """Return the last lines of the run's log, or of SkyPilot's log if the run's log does not exist yet."""
        written, handle = tail(log, lines), read_handle(log.parent)
        if written or handle is None or not handle.id.isdigit():  # `sky` would read another id as an option
            return written
        done = _sky("jobs", "logs", "--no-follow", handle.id, check=False)
        return "\n".join(done.stdout.splitlines()[-lines:])

    def _submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        name = f"{job_name(directory, _NAME_CHARACTERS)}-{uuid.uuid4().hex[:8]}"
        path = directory / TASK
        write_bytes(path, _yaml(task(self._launch, command, directory, log, name)).encode())
        try:
            _sky("jobs", "launch", "--yes", "--detach-run", "--name", name, str(path), timeout_s=SUBMIT_S)
        except LaunchError:
            if found := _alive(directory):  # the job may exist although the response was lost
                return found
            raise
        for job in _jobs():
            if job["job_name"] == name:
                return _handle(job, directory)
        raise LaunchError(
            f"SkyPilot does not list the job {name}",
            found="`sky jobs launch` succeeded",
            remedy="see `sky jobs queue`, and run the command again",
        )


def _handle(job: dict[str, Any], directory: Path) -> Handle:
    started = f"{job['job_name']} {directory}"
    return Handle(launcher="skypilot", id=str(job["job_id"]), started=started, host="skypilot")


def _alive(directory: Path) -> Handle | None:
    """Return the live job of this directory, or None."""
    stem = job_name(directory, _NAME_CHARACTERS)
    for job in _jobs():
        if (job["job_name"] or "").rpartition("-")[0] == stem and _state(job).alive:
            return _handle(job, directory)
    return None


def _ask(handle: Handle) -> JobStatus:
    name = handle.started.partition(" ")[0]
    for job in _jobs():
        if (str(job["job_id"]), job["job_name"]) == (handle.id, name):
            return _state(job)
    return JobStatus.GONE


def _state(job: dict[str, Any]) -> JobStatus:
    if job["status"] in _RUNNING:
        return JobStatus.RUNNING
    return JobStatus.PENDING if job["status"] in _WAITING else JobStatus.GONE


def _jobs() -> list[dict[str, Any]]:
    """Return all managed jobs of the user that SkyPilot still lists, the newest first."""
    done = _sky("jobs", "queue", "--all", "--output", "json", check=False)
    if done.returncode and _NO_JOBS in done.stdout + done.stderr:
        return []
    if done.returncode:
        raise _refused("jobs queue", done)
    text = done.stdout[done.stdout.find("[\n") :] if "[\n" in done.stdout else "[]"  # after notices of the program
    try:
        found: list[dict[str, Any]] = json.loads(text)
    except ValueError as error:
        raise LaunchError(
            "`sky jobs queue --output json` did not print JSON",
            found=done.stdout[-500:],
            expected="SkyPilot 0.14 or later",
            remedy="pip install --upgrade skypilot",
        ) from error
    return found


def _sky(*words: str, check: bool = True, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    try:
        # `sky` reads the credentials of the clouds
        done: subprocess.CompletedProcess[str] = processes.run(
            ["sky", *words], *processes.ALL, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise LaunchError(
            "SkyPilot is not installed",
            expected="the program `sky` on the PATH",
            remedy="install it in its own environment: `uv tool install skypilot` or `pipx install skypilot`, with the "
            "extra of your cloud",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"sky {' '.join(words[:2])} did not end within {timeout_s:g} s", remedy="check `sky api status`"
        ) from error
    if check and done.returncode:
        raise _refused(" ".join(words[:2]), done)
    return done


def _refused(what: str, done: subprocess.CompletedProcess[str]) -> LaunchError:
    return LaunchError(
        f"sky {what} failed",
        found=" ".join((done.stderr or done.stdout).split())[-500:] or f"status {done.returncode}",
        remedy="check training.launch.options in the recipe, and the output of `sky check`",
    )


def _yaml(found: dict[str, Any]) -> str:
    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True))


def _preview(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
    """Return the task for `sky jobs launch`, with the name of a job without its mark."""
    return _yaml(task(launch, command, directory, log, job_name(directory, _NAME_CHARACTERS)))


KIND = LauncherKind(
    name="skypilot",
    description="A managed job of SkyPilot, on any cloud or cluster that it knows.",
    make=SkyPilotLauncher,
    params=Options,
    preview=_preview,
)
