"""Jobs as detached processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from plinth import processes
from plinth.errors import LaunchError
from plinth.launch.base import HANDLE, Handle, JobStatus, LauncherKind, read_handle, submit_once, tail
from plinth.storage.atomic import append_to, named_failures

#: Environment variable with a job's directory, to find a job without a handle.
DIRECTORY = "PLINTH_JOB_DIRECTORY"


class LocalLauncher:
    """Launcher of detached processes. Each process has its own session, so it survives the submitting process."""

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Start `command` with its output appended to `log`, or return the job that already runs there."""
        return submit_once(directory, self.find, self.poll, lambda: self._start(command, directory, log))

    def find(self, directory: Path) -> Handle | None:
        """Return the handle in `directory`. If there is none, return a handle for a live job whose submitter died
        before it wrote a handle."""
        handle = read_handle(directory)
        if handle is None or not _is_of(handle, directory):  # any writer of the file could name any process
            return _without_handle(directory)
        return handle

    def poll(self, handle: Handle) -> JobStatus:
        """Return ALIVE if a process with this id and start time exists and is not a zombie.

        Raises:
            LaunchError: the job was submitted on another machine.
        """
        if handle.host != socket.gethostname():
            raise LaunchError(
                f"job {handle.id} belongs to another machine",
                found=f"this is {socket.gethostname()}",
                expected=f"host {handle.host}",
                remedy="run the command there",
            )
        process = _process(handle)
        return JobStatus.RUNNING if process is not None else JobStatus.GONE

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Send SIGTERM to the job's leader, which forwards it to its children; after `grace_s` seconds, send SIGKILL
        to the group."""
        if self.poll(handle) is JobStatus.GONE:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(handle.id), signal.SIGTERM)
        until = time.monotonic() + grace_s
        while time.monotonic() < until:
            if self.poll(handle) is JobStatus.GONE:
                return
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(handle.id), signal.SIGKILL)

    def logs(self, log: Path, lines: int = 50) -> str:
        """Return the last lines of `log`, or an empty string if there is no log."""
        return tail(log, lines)

    def _start(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        with named_failures(log):
            (directory / HANDLE).unlink(missing_ok=True)  # of an ended job, which must not hide the new one
        with append_to(log) as stream:
            try:
                process: subprocess.Popen[bytes] = processes.start(
                    command,
                    *processes.JOB,
                    own={DIRECTORY: str(directory.resolve())},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_default_signals,
                )
            except OSError as error:
                raise LaunchError(f"cannot start {command[0]}", found=error) from error
        _children.append(process)
        return _handle(psutil.Process(process.pid))


def _handle(process: psutil.Process) -> Handle:
    return Handle(launcher="local", id=str(process.pid), started=_began(process), host=socket.gethostname())


def _is_of(handle: Handle, directory: Path) -> bool:
    """Return False for a live process of this user that is not the job of this directory.

    If a directory was moved while its job runs, the job still belongs to the directory. Finished jobs are not checked.
    """
    process = _process(handle) if handle.host == socket.gethostname() else None
    if process is None:
        return True
    try:
        place = process.environ().get(DIRECTORY)
    except psutil.Error:  # another user's process: alive, and cannot be ended
        return True
    if place is None:
        return False
    return not Path(place).exists() or Path(place).samefile(directory)


def _without_handle(directory: Path) -> Handle | None:
    """Return the live job of a directory: a session leader with the directory in its environment."""
    wanted = str(directory.resolve())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            if os.getsid(process.pid) == process.pid and process.environ().get(DIRECTORY) == wanted:
                return _handle(process)
    return None


#: Children of this process. They are reaped so that an ended child does not count as alive.
_children: list[subprocess.Popen[bytes]] = []


def _default_signals() -> None:
    """Restore default signal handling, because a shell's background job ignores SIGINT and SIGTERM and its children
    inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _process(handle: Handle) -> psutil.Process | None:
    """Return the live process of a handle, or None. A recycled process id is recognized by its start time."""
    for child in _children:
        child.poll()
    try:
        process = psutil.Process(int(handle.id))
        alive = _began(process) == handle.started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if alive else None


def _began(process: psutil.Process) -> str:
    """Return the start time of the process: clock ticks since boot with the boot's id, immune to clock changes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        if not Path("/proc").exists():
            return f"{process.create_time():.2f}"
        raise psutil.NoSuchProcess(process.pid) from None
    return f"{boot}:{ticks}"


KIND = LauncherKind("local", "A detached process on this machine.", lambda launch, grace_s: LocalLauncher())
