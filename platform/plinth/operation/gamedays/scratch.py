"""Where a game day is played: a folder of its own, with a root of trust of its own, and a watch on everything else.

    scratch(outside)   the folder; while it lasts, workspace, keys and servers of the caller are out of reach
    InstantWatch              what an instant may not do: outlast its time, change what lies outside, leave processes

Does not belong here: faults.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

from plinth.storage.off_limits import KEY_VARIABLE
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import enrolment

#: The approver of a scratch root.
PERSON = "game-day@example.org"

#: Variables that name state of the caller: servers, buckets, keys. None reaches a game day.
_OURS = ("PLINTH_WORKSPACE", TRUST_VARIABLE, "PLINTH_RECIPE", "MLFLOW_TRACKING_URI", "DAGSTER_HOME")


class Aborted(BaseException):
    """An instant met its abort condition. No `except Exception` of what is tested may hold it."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of this game day, with a demo root of trust and none of the caller's state; it is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="plinth-gameday-"))
    hidden = [name for name in os.environ if name in _OURS or name.startswith(KEY_VARIABLE)]
    before = {name: os.environ.pop(name) for name in hidden}
    os.environ[TRUST_VARIABLE] = str(folder / "trust")
    try:
        enrolment.initialise(Workspace(folder / "root"), "game day", [PERSON], demo=True)
        yield folder
    finally:
        del os.environ[TRUST_VARIABLE]
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


class InstantWatch:
    """The abort condition of instants.

    Args:
        outside: folders that no game day may change, such as the caller's workspace and keys.
    """

    def __init__(self, outside: tuple[Path, ...]) -> None:
        self.outside, self._before = outside, _stamps(outside)
        self.begin()

    def begin(self) -> None:
        """What was started until now, such as a server of all instants, is none's own."""
        self._known = {process.pid for process in _children()}

    @contextmanager
    def instant(self, limit_s: float) -> Iterator[None]:
        """Raise `Aborted` in the block after `limit_s` seconds; processes that it started are ended.

        Raises:
            Aborted: it took too long.
        """

        def ring(number: int, frame: FrameType | None) -> None:
            raise Aborted(f"it took more than {limit_s:g} s")

        if threading.current_thread() is not threading.main_thread():  # no alarm can be set there
            yield
            return
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield
        except Aborted:
            for process in self.left():
                with suppress(psutil.Error):
                    process.kill()
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def left(self) -> list[psutil.Process]:
        """Living processes that were started since; servers that fork ranks are no instant's own."""
        return [one for one in _children() if one.pid not in self._known and not _serves(one)]

    def damage(self) -> str:
        """What has changed outside, in words; empty where nothing has."""
        after = _stamps(self.outside)
        changed = sorted(path for path in {*after, *self._before} if after.get(path) != self._before.get(path))
        return f"{len(changed)} files outside the scratch folder changed, the first {changed[0]}" if changed else ""


def _children() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _serves(process: psutil.Process) -> bool:
    """Whether it is a process of `multiprocessing` that serves all instants."""
    with suppress(psutil.Error):
        command = " ".join(process.cmdline())
        direct = process.ppid() == os.getpid()
        return direct and ("multiprocessing.forkserver" in command or "multiprocessing.resource_tracker" in command)
    return True


def _stamps(folders: tuple[Path, ...]) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file below some folders."""
    found: dict[str, tuple[int, int]] = {}
    for folder in folders:
        for root, _, files in os.walk(folder):
            for name in files:
                with suppress(FileNotFoundError):
                    status = os.lstat(os.path.join(root, name))
                    found[os.path.join(root, name)] = (status.st_size, status.st_mtime_ns)
    return found
