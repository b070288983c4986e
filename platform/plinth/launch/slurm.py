"""Slurm jobs: a script in the run's directory, submitted once, requeued until the run has finished.

On status 75 (stopped by a signal, state committed) the job requeues itself, after a preemption or a time limit. Any
other status ends the job. A canceled job is not requeued (`Requeue=0` is set before it is asked to stop).

The calling machine needs sbatch, squeue, scancel and scontrol. The workspace must be in a bucket, or on a file system
shared by all nodes. The launcher was tested with Slurm 22.05.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from plinth import processes
from plinth.errors import LaunchError
from plinth.launch import base
from plinth.launch.base import (
    EVERY_S,
    EXCLUDED,
    Handle,
    JobStatus,
    LauncherKind,
    StatusCache,
    read_handle,
    submit_once,
    tail,
)
from plinth.launch.parameters import NORMAL, Launch
from plinth.storage.atomic import write_bytes

SCRIPT = "job.sbatch"

TIMEOUT_S = 60.0

#: States in which a job has no nodes yet, but will get them (squeue(1), JOB STATE CODES).
_WAITING = "CONFIGURING PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"

_ENDED = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"

_UNKNOWN_JOB = "Invalid job id"


class SlurmLauncher:
    """Launcher that identifies a job by the identifier and name in `squeue`."""

    def __init__(self, launch: Launch, grace_s: float, every_s: float = EVERY_S) -> None:
        self._launch, self._grace_s = launch, grace_s
        self.poll = StatusCache(self._ask, every_s)

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Submit the job, or return the live job, even if its handle was never written."""
        directory, log = directory.absolute(), log.absolute()
        self.poll.forget()
        return submit_once(
            directory, self.find, self._ask, lambda: _queued(directory) or self._submit(command, directory, log)
        )

    def find(self, directory: Path) -> Handle | None:
        """Return the handle in `directory`, or if there is only a script, the handle of the job submitted from it."""
        handle = read_handle(directory)
        if handle is not None and handle.started != job_name(directory):  # a file in the workspace: any job's number
            handle = None
        if handle is None and (directory / SCRIPT).exists():
            return _queued(directory.absolute())
        return handle

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Send SIGTERM to the supervisors; after `grace_s`, call `scancel`. The job is not requeued."""
        status = self._ask(handle)
        self.poll.forget()
        if status is JobStatus.RUNNING:
            _call("scontrol", "update", f"JobId={handle.id}", "Requeue=0", check=False)
            _call("scancel", "--batch", "--signal=TERM", handle.id, check=False)
            until = time.monotonic() + grace_s
            while status is JobStatus.RUNNING and time.monotonic() < until:
                time.sleep(0.5)
                status = self._ask(handle)
        if status.alive:
            _call("scancel", handle.id, check=False)

    def logs(self, log: Path, lines: int = 50) -> str:
        """Return the last lines of `log`, to which all nodes write, or an empty string if there is no log."""
        return tail(log, lines)

    def _ask(self, handle: Handle) -> JobStatus:
        done = _call("squeue", "--noheader", "--states=all", f"--jobs={handle.id}", "--format=%T|%j", check=False)
        if done.returncode and _UNKNOWN_JOB in done.stderr:
            return JobStatus.GONE
        if done.returncode:
            raise _refused("squeue", done)
        state, _, name = done.stdout.strip().partition("|")
        return _status(state) if name == handle.started else JobStatus.GONE

    def _submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        path = directory / SCRIPT
        write_bytes(path, sbatch_script(self._launch, self._grace_s, command, directory, log).encode())
        try:
            done = _call("sbatch", "--parsable", str(path))
        except LaunchError:
            time.sleep(1.0)
            found = _queued(directory)  # the job may exist although the response was lost
            if found is None:
                raise
            return found
        identifier, _, cluster = done.stdout.strip().partition(";")
        return Handle(launcher="slurm", id=identifier, started=job_name(directory), host=cluster or _cluster())


def sbatch_script(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
    """Return the batch script: options, the supervisor of each node, then the decision to requeue."""
    asked, nodes = launch.slurm, launch.machines
    options = {
        "job-name": job_name(directory),
        "comment": str(directory),
        "nodes": nodes,
        "ntasks-per-node": 1,
        # in a shared workspace, the supervisor of each node writes its own log
        "output": "/dev/null" if base.is_shared(directory) else str(log).replace("%", "%%"),
        "open-mode": "append",
        # Slurm checks the remaining time once a minute (sbatch(1), --signal)
        "signal": f"B:TERM@{int(grace_s) + 60}",
    }
    lines = ["#!/bin/bash", "#SBATCH --requeue"]
    lines += [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items() if value]
    spares = [_KEEP] if launch.spares else []
    lines += [f"#SBATCH {line}" for line in (*_queueing(launch), *spares, *asked.sbatch)]
    lines += ["", "cd /", "export PYTHONSAFEPATH=1", 'export PLINTH_HOST="$SLURMD_NODENAME"', *asked.setup]
    words = shlex.join(command)
    result = shlex.quote(str(directory / "result.json"))
    lines += [_BEFORE.format(result=result)] if launch.spares else []
    if nodes > 1:
        lines += [*_ADDRESS, f"export PLINTH_NODES={nodes}"]
        into = _NOWHERE if base.is_shared(directory) else ""
        words = f"{_SRUN.format(nodes=nodes, more=''.join(f' {option}' for option in spares), into=into)} {words}"
    lines += base.waiting(words, _ASK_ALL if nodes > 1 else base.TERMINATE)
    lines += ["kill $(jobs -p) 2>/dev/null"] if nodes > 1 else []
    lines += [_OUTCOME.format(result=result)] if launch.spares else []
    lines += [f'if [ "$status" = {base.LEFT} ]; then', *_requeue(directory), "fi", 'exit "$status"', ""]
    return "\n".join(lines)


def _queueing(launch: Launch) -> list[str]:
    """Return the options for account and quality of service, which decide limits, order and preemption; the recipe's
    own options take precedence."""
    asked = launch.queueing
    wanted = {"account": asked.team, "qos": "" if asked.priority == NORMAL else asked.priority}
    short = {"account": "-A", "qos": "-q"}
    return [
        f"--{name}={value}"
        for name, value in wanted.items()
        if value and not any(re.match(rf"--{name}\b|{short[name]}", line) for line in launch.slurm.sbatch)
    ]


#: Address by which Slurm itself reaches the first node of the allocation.
_ADDRESS = (
    'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    "PLINTH_ADDRESS=$(scontrol --oneliner show node \"$first\" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')",
    'export PLINTH_ADDRESS="${PLINTH_ADDRESS:-$first}"',
)

#: Runs one supervisor per node. The first supervisor decides when all end, so srun must not end one because another
#: has exited.
_SRUN = (
    "srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --input=none{more} "
    "${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} "
    "bash -c 'PLINTH_NODE=$SLURM_NODEID PLINTH_HOST=$SLURMD_NODENAME exec \"$@\"{into}' node"
)


#: Replaces the pipe to srun, so that the supervisor of each node sees that nothing else writes its log.
_NOWHERE = " >/dev/null 2>&1"

#: Option by which Slurm keeps the allocation after the loss of a node.
_KEEP = "--no-kill"

#: Notes which outcome an earlier job has recorded.
_BEFORE = "before=$(stat -c '%i %y' {result} 2>/dev/null)"

#: Replaces the status of srun, which is that of a lost node, by the outcome that node 0 has recorded in this job.
_OUTCOME = """[ "$(stat -c '%i %y' {result} 2>/dev/null)" = "$before" ] ||
case "$(sed -n 's/^ "status": "\\(.*\\)",$/\\1/p' {result} 2>/dev/null)" in
finished) status=0 ;;
stopped) [ "$status" = 0 ] || status=75 ;;
esac"""


def _requeue(directory: Path) -> list[str]:
    """Return lines that requeue the job, never onto an excluded machine (`training.supervision.host_checks`).

    Slurm accepts a new list of excluded nodes only for a pending job, so the job is requeued on hold, given the list,
    and released. When it is requeued, Slurm sends this script SIGTERM and, after KillWait, SIGKILL; it keeps running
        until then.
    """
    excluded = shlex.quote(str(directory / EXCLUDED))
    return [
        f"  if [ -s {excluded} ]; then",
        "    trap '' TERM INT",
        '    scontrol requeuehold "$SLURM_JOB_ID"',
        f'    scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$(paste -s -d, {excluded})"',
        '    scontrol release "$SLURM_JOB_ID"',
        '  else scontrol requeue "$SLURM_JOB_ID"; fi',
    ]


#: In the background: scancel repeats its request for 95 s for a job that Slurm is about to requeue; one is enough.
_ASK_ALL = 'scancel --signal=TERM "$SLURM_JOB_ID" &'


def job_name(directory: Path) -> str:
    """Return the job's name. A job whose handle was lost is found by this name and by the directory in its comment."""
    return f"plinth-{directory.name}"


def _queued(directory: Path) -> Handle | None:
    """Return the live job of this directory, or None."""
    done = _call("squeue", "--noheader", "--me", f"--name={job_name(directory)}", "--format=%i|%T|%k")
    for line in done.stdout.splitlines():
        identifier, state, comment = line.strip().split("|", 2)
        if os.path.realpath(comment) == os.path.realpath(directory) and _status(state).alive:
            return Handle(launcher="slurm", id=identifier, started=job_name(directory), host=_cluster())
    return None


def _status(state: str) -> JobStatus:
    if state in _ENDED.split() or not state:
        return JobStatus.GONE
    return JobStatus.PENDING if state in _WAITING.split() else JobStatus.RUNNING


def _cluster() -> str:
    """Return the cluster's name for display. Queries go to the cluster that this machine is configured for."""
    for line in _call("scontrol", "show", "config").stdout.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "ClusterName":
            return value.strip()
    return "slurm"


def _call(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        # sbatch passes its own environment to the job
        done: subprocess.CompletedProcess[str] = processes.run(
            words, *processes.JOB, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise LaunchError(
            f"no {words[0]} on this machine",
            expected="Slurm's client programs on the PATH",
            remedy="run the command on a login node, or install slurm-client",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{words[0]} did not answer within {TIMEOUT_S:g} s", remedy="is slurmctld up?") from error
    if check and done.returncode:
        raise _refused(words[0], done)
    return done


def _refused(program: str, done: subprocess.CompletedProcess[str]) -> LaunchError:
    return LaunchError(
        f"Slurm's {program} failed",
        found=" ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}",
        remedy="check training.launch.slurm in the recipe, and the output of `sinfo`",
    )


KIND = LauncherKind("slurm", "A batch job of Slurm.", SlurmLauncher, preview=sbatch_script)
