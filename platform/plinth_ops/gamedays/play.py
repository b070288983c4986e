"""Execution of a game day: prepare once, inject the fault at every instant, compare the end states, give a verdict.

    play(day, seed, instants, outside)   -> GameDayRecord
    scratch()      a folder with its own root of trust, without access to the caller's workspace, keys and servers
    InstantWatch   abort of an instant on a timeout, changes outside the scratch folder, or leftover processes

Instant n of a seed always draws the same random numbers, so that the instant can be repeated alone (`first`). An
unexpected exception fails the instant in which it is raised, and does not end the game day.
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
from types import FrameType
from typing import Any, Final

import psutil
from pydantic import ValidationError

import plinth
from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import RequestError, SignatureError
from plinth.report.page import StateTile, template
from plinth.storage.atomic import write_bytes
from plinth.storage.off_limits import KEY_VARIABLE
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import enrolment
from plinth.trust.dsse import EVALUATOR
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog
from plinth_jobs.index_tiles import AddedTile, page_link, some
from plinth_ops.gamedays.gameday import Chooser, GameDay, GameDayRecord, Instant, Outcome

#: Approver of a scratch root.
PERSON = "game-day@example.org"

#: Environment variables with state of the caller (servers, buckets, keys), which are removed for a game day.
_OURS = ("PLINTH_WORKSPACE", TRUST_VARIABLE, "PLINTH_RECIPE", "MLFLOW_TRACKING_URI", "DAGSTER_HOME")


class Aborted(BaseException):
    """Abort of an instant. It is a BaseException, so that no `except Exception` in the tested code catches it."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder with a demo root of trust.

    Within the block, the environment variables of the caller's setup are hidden.
    """
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
    """Watch for the conditions that abort an instant.

    Args:
        outside: folders that a game day must not change, such as the caller's workspace and keys.
    """

    def __init__(self, outside: tuple[Path, ...]) -> None:
        self.outside, self._before = outside, _stamps(outside)
        self.begin()

    def begin(self) -> None:
        """Exclude all processes that already run from the watch, such as servers that all instants share."""
        self._known = {process.pid for process in _children()}

    @contextmanager
    def instant(self, limit_s: float) -> Iterator[None]:
        """Abort the block after `limit_s` seconds, and kill the processes that the block started.

        Raises:
            Aborted: the block took too long.
        """

        def ring(number: int, frame: FrameType | None) -> None:
            raise Aborted(f"timeout after {limit_s:g} s")

        if threading.current_thread() is not threading.main_thread():  # alarms work only in the main thread
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
        """Return live processes that were started after `begin`, except servers that fork ranks for all instants."""
        return [one for one in _children() if one.pid not in self._known and not _serves(one)]

    def damage(self) -> str:
        """Describe the changes outside the scratch folder, or return an empty string if there are none."""
        after = _stamps(self.outside)
        changed = sorted(path for path in {*after, *self._before} if after.get(path) != self._before.get(path))
        return f"{len(changed)} files outside the scratch folder changed, such as {changed[0]}" if changed else ""


def _children() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _serves(process: psutil.Process) -> bool:
    """Return True if the process is a `multiprocessing` server, which all instants share."""
    with suppress(psutil.Error):
        command = " ".join(process.cmdline())
        direct = process.ppid() == os.getpid()
        return direct and ("multiprocessing.forkserver" in command or "multiprocessing.resource_tracker" in command)
    return True


def _stamps(folders: tuple[Path, ...]) -> dict[str, tuple[int, int]]:
    """Return the size and modification time of every file in `folders` and their subfolders, by path."""
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
    """Set environment variables within the block, and restore them at its end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


#: Default number of instants.
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
    """Run a game day at the instants `first` to `first + instants - 1` of a seed.

    Args:
        outside: folders that must not change; a change aborts the remaining instants.

    Raises:
        RequestError: the number of instants is below 1, or this machine cannot run the game day.
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
                    break  # further instants could damage more
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
    """Check that this machine can run the game day.

    Raises:
        RequestError: the number of instants is below 1, or this machine cannot run the game day.
    """
    if instants < 1:
        raise RequestError("too few instants", found=instants, expected="1 or more")
    if why := day.missing():
        raise RequestError(f"game day {day.name} cannot run on this machine", found=why, remedy="see docs/gamedays.md")


def _instant(day: GameDay, prepared: Any, folder: Path, watch: InstantWatch, seed: int, number: int) -> Instant:
    begun, own = time.monotonic(), folder / f"instant-{number}"
    own.mkdir()
    chooser = Chooser(f"{day.name} {seed} {number}")
    chooser.number = number

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
        return ended("", (Outcome(what="the instant was completed", passed=False, seen=words),))
    if damage := watch.damage():
        return ended(struck.where, struck.findings, aborted=damage)
    left = [f"{one.pid}" for one in watch.left()]
    clean = Outcome(what="no process is left", passed=not left, seen=", ".join(left) or "none")
    return ended(struck.where, (*struck.findings, clean), alert_s=struck.alert_s, phases=struck.phases)


def _longest(played: list[Instant]) -> dict[str, float]:
    """Return the maximum seconds of each phase over all instants, in the order of the phases."""
    names = dict.fromkeys(name for one in played for name in one.phases)
    return {name: max(one.phases.get(name, 0.0) for one in played) for name in names}


# Records of game days in a workspace: a signed, chained log, and a page with the newest record of each game day,
# `reports/gameday-NAME.html`.

#     append(ctx, record)    sign the next record as evaluator, the role that signs measurements
#     records(ctx)           all verified records, oldest first
#     untouched(ctx)         folders that a game day must not change

_UNTOUCHED = ("refs", "manifests", "records", "releases", "taint", "trust", "policies", "attestations", "approvals")

GAMEDAYS: Final = SignedLog("gamedays", (EVALUATOR,), keeps_revoked=True)


def append(ctx: Context, record: GameDayRecord) -> LogRecord:
    """Sign a game day record, and append it to the workspace's log of game days.

    Raises:
        SignatureError: the log fails verification, or this machine has no evaluator key.
        ConflictError: another process has written the same record number.
    """
    body = {**record.model_dump(mode="json"), "passed": record.passed}
    return GAMEDAYS.append(ctx, body, {f"gameday/{record.name}": fingerprint.digest(body)}, EVALUATOR)


def require_signer(ctx: Context) -> None:
    """Check that this machine can sign a game day record. Call this before a long game day.

    Raises:
        SignatureError: no root of trust is pinned, or this machine has no evaluator key.
    """
    Trust.of(ctx.workspace).signer(EVALUATOR)


def records(ctx: Context) -> list[tuple[LogRecord, GameDayRecord]]:
    """Return all game day records of the workspace, oldest first.

    Raises:
        SignatureError: a record was edited, removed or moved, or is not a game day record.
    """
    return [(one, _content(one)) for one in GAMEDAYS.records(ctx)]


def _content(record: LogRecord) -> GameDayRecord:
    body = dict(record.body)
    try:
        passed, found = body.pop("passed"), GameDayRecord.model_validate(body)
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"record {record.number} of gamedays/ is not a game day record", found=error) from error
    if passed != found.passed:
        raise SignatureError(f"record {record.number} of gamedays/ is inconsistent", found=passed)
    return found


def untouched(ctx: Context) -> tuple[Path, ...]:
    """Return the folders that a game day must not change: published and signed content, and keys."""
    root = ctx.workspace.root
    return (*(root / name for name in _UNTOUCHED), ctx.workspace.trust_folder)


def tile(ctx: Context) -> StateTile:
    """Return the index tile with the last result of each game day."""
    last = {record.name: record for _, record in records(ctx)}
    if not last:
        return StateTile(label="Game days", value="none", note="plinth ops gameday list")
    failed = sorted(name for name, record in last.items() if not record.passed)
    shown = failed[0] if failed else list(last)[-1]
    return StateTile(
        label="Game days",
        value=f"{len(last) - len(failed)} of {len(last)} passed",
        note=some(failed),
        standing="bad" if failed else "good",
        href=page_link(ctx, f"gameday-{shown}.html"),
    )


TILE: Final = AddedTile("game_days", tile)


def page(record: GameDayRecord, signed: str) -> str:
    """Return the page of a game day record as HTML. The same record gives the same bytes.

    Args:
        signed: name of the signed record, or the reason why there is none.
    """
    checks = dict.fromkeys(one.what for instant in record.instants for one in instant.findings)
    return template("page.html.j2", __package__).render(
        day=record, signed=signed, checks=checks, title=f"Game day: {record.name}"
    )


def path_of(ctx: Context, name: str) -> Path:
    """Return the path of a game day's page."""
    return ctx.workspace.reports / f"gameday-{name}.html"


def write(ctx: Context, record: GameDayRecord, signed: str) -> Path:
    """Write the page of a game day record (`page`); return the path of the page."""
    path = path_of(ctx, record.name)
    write_bytes(path, page(record, signed).encode())
    return path
