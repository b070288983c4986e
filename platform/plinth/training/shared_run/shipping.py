"""Copies of a run's files: by its supervisor into the bucket, and from the bucket onto any machine.

    submitter ── give ──▶ bucket ──▶ supervisor of node 0: claim, Shipper ──▶ bucket ──▶ refresh, on any machine

Does not belong here: the form of files in the bucket (files), checkpoints (checkpoint.shares), the head (head).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from plinth.errors import IntegrityError, LaunchError, MissingError, PlinthError, StorageError
from plinth.launch.base import HANDLE, read_handle
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.objects import S3Objects, at_once
from plinth.storage.workspace import Workspace, folder_of
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.shared_run.files import EVENTS, NAME, GrowingFile, fetch
from plinth.training.shared_run.head import (
    CONFIG,
    LEASE_S,
    SESSION,
    HeadVersion,
    RecordedFile,
    RunHead,
    SharedRun,
    is_active,
    note_change,
)

#: Patterns of the small files, relative to the run's folder.
SMALL = (
    *("result.json", "resume.json", "measured.json", "excluded_hosts"),
    *("attempts/*.json", "audits/*.json"),
)
#: Seconds between two copies into the bucket, which are also renewals of the claim.
EVERY_S = 5.0

#: Variables with other values of `LEASE_S` and `EVERY_S`, for tests.
LEASE, EVERY = "PLINTH_LEASE_S", "PLINTH_SHIP_S"

#: Object with the allowance of the run's jobs (`supervise.result`).
ALLOWANCE = "allowance.json"

_RUN, _CHECKPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*"), re.compile(r"step-\d{8}")

#: Attempts to ship the last events of an ended job.
LAST_TRIES = 4

#: File with the tag of the head from which the copy on this machine was made.
NOTE = "head.tag"
#: File with the session of the last supervisor on this machine.
SESSION_NOTE = "session"


class Shipper:
    """Thread of node 0's supervisor. It renews the claim, and ships what has changed in the run's folder.

    Args:
        shared: the run, claimed by this session. The copy on this machine is current (`refresh`).
    """

    def __init__(self, shared: SharedRun, head: RunHead) -> None:
        self._shared, self._every_s = shared, float(os.environ.get(EVERY, EVERY_S))
        self.session, self.place = shared.session, shared.objects.uri
        run, log = shared.run, f"logs/{shared.session}.log"
        written = run.log.stat().st_size if run.log.exists() else 0
        self._growing = (
            GrowingFile(shared, EVENTS, run.events, 0, head.files.get(EVENTS)),
            GrowingFile(shared, log, run.log, written, None),
        )
        self._earlier = {name: one for name, one in head.files.items() if name.startswith("logs/")}
        self._seen: dict[str, tuple[tuple[int, int], RecordedFile]] = {}  # small files: time and size, record
        self._lock, self._stop, self._fails = threading.Lock(), threading.Event(), False
        self.lost: LaunchError | None = None  # another session has claimed the run
        self._thread = threading.Thread(target=self._follow, name="plinth-shipper", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Ship what has changed.

        Raises:
            LaunchError: another session has claimed the run.
            StorageError: the bucket is unreachable. The files stay on this machine and are shipped later.
        """
        self._ship(ended=False)

    def end(self) -> bool:
        """Ship the rest and release the claim. Return False if the bucket is unreachable or another session has the
        claim: then this machine's next job of the run ships the rest."""
        self._stop.set()
        self._thread.join()
        for left in reversed(range(LAST_TRIES)):
            try:
                self._ship(ended=True)
            except StorageError as error:
                print(f"the last events are not in the bucket: {error.brief}", file=sys.stderr, flush=True)
                if not left:
                    return False
            except PlinthError as error:
                print(error.brief, file=sys.stderr, flush=True)
                return False
            else:
                return True
        return False

    def _follow(self) -> None:
        while not self._stop.wait(self._every_s) and self.lost is None:
            try:
                _take_allowance(self._shared, self._ship(ended=False))
                self._fails = False
            except LaunchError as error:
                self.lost = error
            except (PlinthError, OSError) as error:  # an outage: training continues, and its saves wait
                if not self._fails:
                    print(f"the timeline is not shipped: {error}", file=sys.stderr, flush=True)
                self._fails = True

    def _ship(self, *, ended: bool) -> RunHead:
        with self._lock:
            growing = {one.name: file for one in self._growing if (file := one.ship()) is not None}
            files = self._earlier | growing | self._small_files()

            def changed(head: RunHead) -> RunHead:
                return head.model_copy(update={"files": files, "ended": ended})

            return self._shared.change(changed)

    def _small_files(self) -> dict[str, RecordedFile]:
        root, found = self._shared.run.root, {}
        for path in _small_files(self._shared.run):
            name = path.relative_to(root).as_posix()
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                stat = path.stat()
                seen = self._seen.get(name)
                if seen is None or seen[0] != (stat.st_mtime_ns, stat.st_size):
                    made = self._shared.upload(path.read_bytes())
                    seen = self._seen[name] = (stat.st_mtime_ns, stat.st_size), made
                found[name] = seen[1]
        return found


def refresh(run: RunDirectory, *, own: bool = False, quick: bool = False) -> HeadVersion | None:
    """Bring this machine's copy of a run's files up to date. Return the head, or None if the workspace is a folder or
    no supervisor has claimed the run yet.

    A machine whose supervisor writes the files has the newest ones, and only `own=True` of that supervisor compares
    them. With `quick`, an unchanged head is the only request.

    Raises:
        IntegrityError: a file in the bucket differs from its digest in the head.
        StorageError: the bucket is unreachable.
    """
    shared = SharedRun.of(run)
    if shared is None:
        return None
    run.root.mkdir(parents=True, exist_ok=True)
    with atomic.locked(run.root / "refresh.lock"):
        if not own and atomic.held(run.lock):
            return None
        found, note = shared.read(), run.root / NOTE
        same = found is not None and not own and note.exists() and note.read_text() == found.tag
        if same and quick:
            return found
        if found is None:
            return None
        for name, recorded in found.head.given.items():
            if name != ALLOWANCE:
                fetch(shared.objects, run.root, name, recorded, given=True)
        if same:
            return found
        for name, recorded in found.head.files.items():
            fetch(shared.objects, run.root, name, recorded)
        if not own:
            _fetch_records(shared, found.head)
        if _session_here(run) != found.head.session:
            _move_aside_unshipped(run, found.head)
        write_bytes(note, found.tag.encode())
    return found


def _move_aside_unshipped(run: RunDirectory, head: RunHead) -> None:
    """Keep small files that this machine did not ship before another one continued the run, under another name: an
    attempt that the others do not know would break the chain of attempts."""
    for path in _small_files(run):
        if path.relative_to(run.root).as_posix() not in head.files:
            path.rename(path.with_name(f"{path.name}.unshipped"))


def _small_files(run: RunDirectory) -> list[Path]:
    found = sorted(path for pattern in SMALL for path in run.root.glob(pattern))
    return [path for path in found if NAME.fullmatch(path.relative_to(run.root).as_posix())]


def _fetch_records(shared: SharedRun, head: RunHead) -> None:
    """Fetch the commit records of all checkpoints, whose files stay in the bucket until they are read."""
    folder = shared.run.checkpoints
    if _session_here(shared.run) == head.session or not head.commits:
        return  # this machine has them, or they are an external trainer's
    for path in [*folder.glob("step-????????.json"), *folder.glob("step-????????")]:
        if path.name.removesuffix(".json") not in head.commits:
            path.unlink() if path.suffix else shutil.rmtree(path)
    for name, number in head.commits.items():
        if _CHECKPOINT.fullmatch(name) is None:
            raise IntegrityError(f"the record of run {shared.run.root.name} lists what is not a checkpoint", found=name)
        record = shared.objects.get(f"{name}.{number}.json")
        if record is None:  # retired meanwhile
            continue
        path = folder / f"{name}.json"
        if not path.exists() or path.read_bytes() != record.data:
            if (folder / name).exists():
                shutil.rmtree(folder / name)  # of an earlier save of the step
            folder.mkdir(exist_ok=True)
            write_bytes(path, record.data)


def newest_log(run: RunDirectory) -> Path:
    """Return the log of the newest job: that of this machine, or the copy of another machine's."""
    copies = sorted((run.root / "logs").glob("*.log"), key=lambda path: path.stat().st_mtime)
    here = run.log.stat().st_mtime if run.log.exists() else 0.0
    return copies[-1] if copies and copies[-1].stat().st_mtime > here else run.log


@contextlib.contextmanager
def claimed(config: RunConfig) -> Iterator[None]:
    """Claim a run for a command that adds evidence to it, and ship that at the end. The caller has the lock of the
    run's folder. Do nothing if the workspace is a folder.

    Raises:
        LaunchError: a supervisor on another machine is active on the run.
    """
    made = claim(config, uuid.uuid4().hex, trains=False)
    shipper = Shipper(*made) if made is not None else None
    try:
        yield
    finally:
        if shipper is not None:
            shipper.end()
            del os.environ[SESSION]


def claim(
    config: RunConfig, session: str, lease_s: float = LEASE_S, *, trains: bool = True, ended: bool = True
) -> tuple[SharedRun, RunHead] | None:
    """Claim a run for a supervisor that has the lock of its folder, and bring the folder up to date. Return None if the
    workspace is a folder. The last arguments are those of `SharedRun.claim`.

    Raises:
        LaunchError: another supervisor has claimed the run, and is alive; or the run needs a common file system.
        IntegrityError, StorageError: the run's files cannot be fetched.
    """
    run = config.directory
    shared = SharedRun.of(run, session)
    if shared is None:
        return None
    if config.launch.nodes > 1 and (config.trainer is not None or config.checkpoints.upload is not None):
        asked = "trainer" if config.trainer is not None else "checkpoints.upload"
        raise LaunchError(
            f"training.{asked} needs a file system that all nodes share",
            found=f"{config.launch.nodes} nodes and the workspace {shared.objects.uri.partition('/runs/')[0]}",
            remedy=f"use a workspace in a shared folder, one node, or no training.{asked}",
        )
    found = shared.read()
    here = found is not None and found.head.session == _session_here(run)  # its supervisor had this folder's lock
    head = shared.claim(-1.0 if here else float(os.environ.get(LEASE, lease_s)), trains=trains, ended=ended)
    if not here:
        refresh(run, own=True)
    write_bytes(run.root / SESSION_NOTE, session.encode())
    if here:  # what this machine did not ship yet is this session's
        refresh(run, own=True)
    _take_allowance(shared, head)
    os.environ[SESSION] = session  # of the ranks
    return shared, head


def _session_here(run: RunDirectory) -> str:
    """Return the session of the last supervisor that claimed the run on this machine, or an empty text."""
    with contextlib.suppress(FileNotFoundError):
        return (run.root / SESSION_NOTE).read_text()
    return ""


def refresh_all(workspace: Workspace) -> None:
    """Bring this machine's copies of all runs of a shared workspace up to date."""
    if not workspace.uri:
        return
    objects = S3Objects(f"{workspace.uri}/runs")
    names = [name for name in objects.folders() if _RUN.fullmatch(name)]

    def one(name: str) -> None:
        try:
            refresh(RunDirectory(workspace.runs / name), quick=True)
        except IntegrityError as error:  # the other runs are not affected
            print(error.brief, file=sys.stderr, flush=True)

    for _ in at_once(objects, one, names):
        pass


def is_shared(run: RunDirectory) -> bool:
    """Return True if the state of a run is in the bucket of a shared workspace."""
    return bool(Workspace(run.workspace).uri)


def require_free(run: RunDirectory) -> None:
    """Check that no supervisor on another machine is active on a run.

    Raises:
        LaunchError: one is.
    """
    if host := active_elsewhere(run):
        raise LaunchError(
            f"run {run.root.name} is active on {host}",
            expected="no job of the run, or a job on this machine",
            remedy="run the command there, or follow the job with `plinth run timeline RUN`; if its machine is lost, "
            "try again in a minute",
        )


def active_elsewhere(run: RunDirectory) -> str:
    """Return the host of the supervisor that is active on a run on another machine, or an empty text."""
    shared = SharedRun.of(run)
    found = shared.read() if shared is not None else None
    away = found is not None and is_active(found) and found.head.session != _session_here(run)
    return found.head.host if found is not None and away else ""


def give(run: RunDirectory, *names: str) -> None:
    """Give files of the run's folder to the machines of its jobs, and take back those that do not exist. Do nothing if
    the workspace is a folder.

    Raises:
        LaunchError: another machine has given another contract with the same number.
    """
    shared = SharedRun.of(run)
    if shared is not None:
        kept = {name: run.root / name for name in names if not (name == HANDLE and _is_local(run.root))}
        found = {name: path.read_bytes() for name, path in kept.items() if path.exists()}
        shared.give({name: found.get(name) for name in names})


def _take_allowance(shared: SharedRun, head: RunHead) -> None:
    """Copy the allowance to the machine of the supervisor, or remove it if the submitter gives none."""
    recorded = head.given.get(ALLOWANCE)
    if recorded is not None:
        fetch(shared.objects, shared.run.root, ALLOWANCE, recorded, given=True)
    else:
        (shared.run.root / ALLOWANCE).unlink(missing_ok=True)


def fetch_config(place: str, change: int = 0) -> Path:
    """Return the path of a configuration on this machine: `place` itself, or a copy of `s3://…/runs/RUN/config.json`.

    Args:
        change: number of changes of the run's head that the submitter had seen. An older head is refused.

    Raises:
        MissingError: there is no such run.
        SealError, IntegrityError: this machine cannot tell who has written the configuration.
    """
    if "://" not in place:
        return Path(place)
    uri, runs, run_id = place.removesuffix(f"/{CONFIG}").rsplit("/", 2)
    if runs != "runs":
        raise MissingError(f"{place} is not the configuration of a run", expected="s3://…/runs/RUN/config.json")
    run = RunDirectory(Workspace(folder_of(uri)).ensure().runs / run_id)
    shared = SharedRun.of(run)
    if shared is not None:
        shared.require_seal()
        run.root.mkdir(exist_ok=True)
        note_change(run, change)
        shared.known()
    refresh(run)
    if not run.config.exists():
        raise MissingError(f"no run configuration {place}", remedy="submit the run again to write the file")
    return run.config


def _is_local(root: Path) -> bool:
    """Return True if the handle in a run's folder names a process of this machine, which others cannot look up."""
    with contextlib.suppress(LaunchError):
        handle = read_handle(root)
        return handle is None or handle.launcher == "local"
    return True
