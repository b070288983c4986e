"""Head of a run in a shared workspace: one object with the files and checkpoints of the run, and its claimant.

    runs/RUN/head.json                         the head, sealed by the workspace's workers
    runs/RUN/files/SHA256                      a small file, by content
    runs/RUN/pieces/SESSION/NAME/000000        a piece of a growing file: the timeline, or node 0's log
    runs/RUN/step-00000100.SAVE/               files of a checkpoint, uploaded in one save (checkpoint.shares)

The submitter of a job lists in the head what it gives to the job's machines: `config.json`, the allowance, contracts.
A supervisor claims the run by writing its session into the head, and renews the claim by increasing `beat`. Each change
of the head names the tag of the version that it replaces and is made only while the session is the claimant's. What a
supervisor without a claim still uploads therefore stays invisible: it has its own session or save in its name, and no
head lists it. The store's clock decides if a claim has expired, so machines need no common clock. A machine refuses an
older head than it has seen (`head.seen`), or than its job's submitter had seen, so who can write the bucket cannot make
it forget checkpoints, or return to an earlier configuration. Without the workers' secret, no job runs from a bucket:
anyone could give it orders.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.errors import IntegrityError, LaunchError, SealError, StorageError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.objects import S3Objects
from plinth.storage.seal import Seal, load
from plinth.storage.workspace import Workspace
from plinth.training.directory import RunDirectory

HEAD, CONFIG = "head.json", "config.json"

#: Folder of the contracts that a submitter gives.
CONTRACTS = "contracts/"

#: File with the number of changes of the newest head that this machine has seen.
SEEN = "head.seen"

#: Environment variable with the session for which a rank writes.
SESSION = "PLINTH_SESSION"

#: Seconds without a renewal after which a claim expires.
LEASE_S = 60.0

#: Seconds between two checks of another supervisor's claim.
POLL_S = 0.5

#: Seconds for which a save, or the start of ranks, waits for an unreachable bucket.
PATIENCE_S = 300.0

T = TypeVar("T")

_SESSION = r"[0-9a-f]{8,64}"


class RecordedFile(Frozen):
    """Length and digest of a file of the run. A growing file has its pieces: the number of the first piece that a
    session wrote, and the session; a later session wrote the pieces from its own first number on."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    pieces: tuple[tuple[int, str], ...] = ()


class RunHead(Frozen):
    """State of record of a run.

    Args:
        address: address and port of the supervisor, for the other nodes of its job.
        session: session of the last supervisor; empty before the first one.
        secret: secret of the job, hidden by the workers' secret.
        beat: number of changes. It increases while the session's supervisor is alive, and never decreases.
        ended: True if no supervisor is active: none has started, it has ended in order, or its claim has expired.
        given: files that the submitter has given to the machines of the run's jobs, by path.
        files: files of the run's directory, by path in it.
        commits: for each committed checkpoint, such as `step-00000100`, the number of the save that uploaded it.
    """

    session: str = Field("", pattern=f"^({_SESSION})?$")
    host: str = ""
    address: str = ""
    secret: str = ""
    beat: int = Field(0, ge=0)
    ended: bool = False
    given: Mapping[str, RecordedFile] = {}
    files: Mapping[str, RecordedFile] = {}
    commits: Mapping[str, str] = {}


class HeadVersion(Frozen):
    """A head as read: its tag, and its age according to the store."""

    head: RunHead
    tag: str
    age_s: float


@dataclass
class SharedRun:
    """A run in a shared workspace, as one process sees it. A process without a session only reads."""

    run: RunDirectory
    objects: S3Objects
    session: str = ""

    @classmethod
    def of(cls, run: RunDirectory, session: str = "") -> Self | None:
        """Return the run in the bucket, or None if the workspace is a folder."""
        uri = Workspace(run.workspace).uri
        return cls(run, S3Objects(f"{uri}/runs/{run.root.name}"), session) if uri else None

    def read(self) -> HeadVersion | None:
        """Return the head, or None if no supervisor has claimed the run yet.

        Raises:
            IntegrityError: the object is not a head that a worker of this workspace wrote.
            StorageError: the bucket is unreachable.
        """
        seen = seen_change(self.run)  # before the request: another process may change the head during it
        found = self.objects.get(HEAD)
        if found is None:
            return None
        try:
            content = json.loads(found.data)
            head = RunHead.model_validate(content["head"])
            if not self._seal.holds(content["seal"], *self._sealed(head)):
                raise ValueError("its seal is wrong")
            if head.beat < seen:
                raise ValueError(f"change {head.beat}; this machine, or its job's submitter, has seen change {seen}")
        except (ValueError, TypeError, KeyError, ValidationError) as error:
            raise IntegrityError(
                f"{self.objects.where(HEAD)} is not the record of this run",
                found=error,
                expected="a record sealed by a worker of this workspace",
                remedy="find out who wrote it; restore its newest version, or delete it, and the run's folder on each "
                "machine, to start over",
            ) from error
        note_change(self.run, head.beat)
        return HeadVersion(head=head, tag=found.tag, age_s=max(0.0, found.read - found.modified))

    def known(self) -> HeadVersion | None:
        """Return the head before a change of the run, or None if there never was one.

        Raises:
            IntegrityError: the head is gone. Without it, the run would start over.
        """
        found = self.read()
        if found is None and (seen := seen_change(self.run)):
            raise IntegrityError(
                f"{self.objects.where(HEAD)} does not exist",
                found=f"this machine, or its job's submitter, has seen change {seen} of it",
                expected="the record of the run",
                remedy="restore it from a version of the bucket, or delete the run's folder on each machine to start "
                "over",
            )
        return found

    def give(self, files: Mapping[str, bytes | None]) -> None:
        """Give files to the machines of the run's jobs, and take back those without content.

        Raises:
            LaunchError: another machine has given another contract with the same number.
        """
        made = {name: None if data is None else self.upload(data) for name, data in files.items()}
        while True:
            found = self.known()
            head = found.head if found else RunHead(ended=True)
            given = {name: one for name, one in {**head.given, **made}.items() if one is not None}
            if any(name.startswith(CONTRACTS) and head.given.get(name, one) != one for name, one in given.items()):
                raise LaunchError(
                    f"another machine signs a contract of run {self.run.root.name} at the same time",
                    remedy="run the same command again",
                )
            # this write renews the time of the head: a claim that has expired must not seem alive again
            ended = head.ended or not is_active(found)
            if given == head.given or self._put(
                head.model_copy(update={"given": given, "ended": ended}), found.tag if found else None
            ):
                return

    def upload(self, data: bytes) -> RecordedFile:
        """Upload a small file by content, and return its record."""
        made = RecordedFile(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        self.objects.replace(content_name(made), data)
        return made

    def require_seal(self) -> None:
        """Check that this machine has the workers' secret.

        Raises:
            SealError: it has none.
        """
        if not self._seal:
            raise SealError(
                f"{self.objects.where(HEAD)} cannot be trusted, because this machine has no secret of the workers",
                found="no file `seal` in the trust folder",
                expected="the secret that all machines of the workspace share",
                remedy="copy the file `seal` from the trust folder of another machine, mode 600",
            )

    def claim(self, lease_s: float = LEASE_S, *, trains: bool = True, ended: bool = True) -> RunHead:
        """Claim the run for this session. An earlier claim must be released, or expire meanwhile. It is renewed by its
        supervisor's changes, not by the commits of saves, which their writers finish after the supervisor is killed.

        Args:
            lease_s: seconds without a renewal after which an earlier claim expires.
            trains: True for a job, which has no result yet.
            ended: False to refuse a run whose last supervisor has released its claim.

        Raises:
            LaunchError: the supervisor of another session is alive, or has ended and is not succeeded.
            IntegrityError: the head is gone, or no worker of this workspace wrote it.
        """
        first: RunHead | None = None
        while True:
            found = self.known()
            if found is None:
                head = RunHead(session=self.session, host=socket.gethostname())
            else:
                head = found.head.model_copy(
                    update={
                        **{"session": self.session, "host": socket.gethostname(), "ended": False},
                        **{"address": "", "secret": ""},
                        **({"files": _without_result(found.head)} if trains else {}),
                    }
                )
                first = first or found.head
                free = found.head.ended or found.age_s > lease_s
                if found.head.ended and not ended:
                    raise self._taken(found.head)
                renewed = found.head.beat != first.beat and found.head.commits == first.commits
                if not free and (found.head.session != first.session or renewed):
                    raise self._taken(found.head)
                first = found.head
                if not free:
                    time.sleep(POLL_S)
                    continue
            if self._put(head, found.tag if found else None):
                return head

    def change(self, change: Callable[[RunHead], RunHead]) -> RunHead:
        """Change the head of this session's run.

        Args:
            change: returns the new head for the current one. It is called again if another process of the session has
                changed the head meanwhile.

        Raises:
            LaunchError: another session has claimed the run, so this process may no longer act for it.
        """
        while True:
            found = self.read()
            if found is None or found.head.session != self.session:
                raise self._taken(found.head if found else None)
            made = change(found.head)
            if self._put(made, found.tag):
                return made

    def hidden(self, secret: str, session: str) -> str:
        """Return a job's secret of 64 hexadecimal digits as the head has it, or a secret in the head as it is. Only a
        worker of this workspace can tell one from the other.

        Raises:
            SealError: this machine has no secret of the workers.
        """
        self.require_seal()
        pad = self._seal.of("job secret", self.run.root.name, session)
        return f"{int(secret, 16) ^ int(str(pad), 16):064x}"

    def _put(self, head: RunHead, tag: str | None) -> bool:
        head = head.model_copy(update={"beat": head.beat + 1})
        content = {"head": head.model_dump(mode="json"), "seal": self._seal.of(*self._sealed(head))}
        done = self.objects.put(HEAD, fingerprint.canonical(content), tag)
        if done:
            note_change(self.run, head.beat)
        return done

    @cached_property
    def _seal(self) -> Seal:
        return load(Workspace(self.run.workspace).trust_folder)

    def _sealed(self, head: RunHead) -> tuple[str, str, str]:
        return "run head", self.run.root.name, fingerprint.digest(head.model_dump(mode="json"))

    def _taken(self, head: RunHead | None) -> LaunchError:
        return LaunchError(
            f"another supervisor has claimed run {self.run.root.name}",
            found=f"session {head.session} on {head.host}" if head else "no claim",
            expected="at most one active supervisor per run",
            remedy="follow its job, or cancel it first; the claim of a lost machine expires by itself",
        )


def seen_change(run: RunDirectory) -> int:
    """Return the number of changes of the newest head that this machine has seen, or 0."""
    try:
        return int((run.root / SEEN).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def note_change(run: RunDirectory, change: int) -> None:
    """Note that this machine refuses heads with fewer changes from now on."""
    if change > seen_change(run) and run.root.exists():
        write_bytes(run.root / SEEN, str(change).encode())


def content_name(recorded: RecordedFile) -> str:
    """Return the name of a small file in the bucket."""
    return f"files/{recorded.sha256}"


def _without_result(head: RunHead) -> dict[str, RecordedFile]:
    return {name: one for name, one in head.files.items() if name != "result.json"}


def is_active(found: HeadVersion | None, lease_s: float = LEASE_S) -> bool:
    """Return True if a supervisor has claimed the run, has not ended, and has renewed its claim lately."""
    return found is not None and not found.head.ended and found.age_s <= lease_s


def patiently(request: Callable[[], T]) -> T:
    """Repeat a request while the bucket is unreachable, for some minutes: training continues meanwhile.

    Raises:
        StorageError: the bucket stays unreachable.
    """
    until, pause_s = time.monotonic() + PATIENCE_S, 1.0
    while True:
        try:
            return request()
        except StorageError:
            if time.monotonic() > until:
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 15.0)
