"""Play a game day: prepare once, strike at every instant, compare, judge.

    play(day, seed, instants, outside)   -> GameDayRecord
    scratch()      a folder with a root of trust of its own; workspace, keys and servers of the caller are out of reach
    InstantWatch   what an instant may not do: outlast its time, change what is outside, leave processes

Instant n of a seed draws the same numbers whatever was played before it, so that one can be played again alone
(`first`). An error that is not one of Plinth's own is a failed instant with its words, never the end of the game day.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import psutil

import plinth
from plinth.errors import RequestError
from plinth.storage.off_limits import KEY_VARIABLE
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import enrolment
from plinth_ops.gamedays.gameday import GameDay, GameDayRecord, Instant, Outcome

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


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set these within the block; afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


#: Instants of a game day, unless said otherwise.
INSTANTS = 3


def play(
    day: GameDay,
    *,
    seed: int = 0,
    instants: int = INSTANTS,
    first: int = 0,
    outside: tuple[Path, ...] = (),
    on_instant: Callable[[Instant], None] = lambda instant: None,
) -> GameDayRecord:
    """Play instants `first` to `first + instants - 1` of a seed.

    Args:
        outside: folders that must not change meanwhile; a change aborts what is left.

    Raises:
        RequestError: no instant was asked for, or this machine lacks what the game day needs.
    """
    require_playable(day, instants)
    begun, played = time.monotonic(), list[Instant]()
    with scratch() as folder:
        watch = InstantWatch(outside)
        prepared = day.prepare(folder / "prepared")
        watch.begin()
        mechanism = day.mechanism(prepared)
        try:
            for number in range(first, first + instants):
                played.append(_instant(day, prepared, folder, watch, seed, number))
                on_instant(played[-1])
                if watch.damage():
                    break  # every further instant would damage more
        finally:
            day.end(prepared)
    return GameDayRecord(
        name=day.name,
        hypothesis=day.hypothesis,
        fault=day.fault,
        blast_radius=day.blast_radius,
        abort=day.abort,
        protection=day.protection,
        alerts=day.alerts,
        seed=seed,
        mechanism=mechanism,
        version=plinth.__version__,
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        instants=tuple(played),
        phases=_longest(played),
        seconds=round(time.monotonic() - begun, 3),
    )


def require_playable(day: GameDay, instants: int) -> None:
    """Refuse what cannot be played here.

    Raises:
        RequestError: no instant was asked for, or this machine lacks what the game day needs.
    """
    if instants < 1:
        raise RequestError("a game day needs an instant", found=instants, expected="1 or more")
    if why := day.missing():
        raise RequestError(f"game day {day.name} cannot be played here", found=why, remedy="see docs/gamedays.md")


def _instant(day: GameDay, prepared: Any, folder: Path, watch: InstantWatch, seed: int, number: int) -> Instant:
    begun, own = time.monotonic(), folder / f"instant-{number}"
    own.mkdir()
    chooser = Random(f"{day.name} {seed} {number}")

    def ended(where: str, findings: tuple[Outcome, ...] = (), **more: Any) -> Instant:
        seconds = round(time.monotonic() - begun, 3)
        return Instant(number=number, struck=where, findings=findings, seconds=seconds, **more)

    try:
        with watch.instant(day.abort_s):
            struck = day.play(prepared, own, chooser)
    except Aborted as reason:
        return ended("", aborted=str(reason))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return ended("", (Outcome(what="the instant could be played", passed=False, seen=words),))
    if damage := watch.damage():
        return ended(struck.where, struck.findings, aborted=damage)
    left = [f"{one.pid}" for one in watch.left()]
    clean = Outcome(what="no process is left over", passed=not left, seen=", ".join(left) or "none")
    return ended(struck.where, (*struck.findings, clean), alert_s=struck.alert_s, phases=struck.phases)


def _longest(played: list[Instant]) -> dict[str, float]:
    """The longest time of every phase, phases in their order."""
    names = dict.fromkeys(name for one in played for name in one.phases)
    return {name: max(one.phases.get(name, 0.0) for one in played) for name in names}
