"""Signed, numbered, chained, append-only records: releases, policies, taints, exclusions, decisions.

    FOLDER/00001.json    one record (`log_record`), with the SHA-256 of the previous file

An edited record does not verify. A removed, inserted or moved record breaks the chain. A record with an earlier time
than the previous record is rejected, so a revoked key cannot sign records with a past time. Removal or replacement of
the newest record is detected because this machine stores the number and SHA-256 of the last verified record outside
the workspace. For machines that have not verified any record, a signed head can name the newest record (`LogHead`).

    records    all records, read and hashed; signatures are verified only after the last verified record
    newest     the last record; only the last verified record and later records are read
    back       records from newest to oldest, read on demand
    append     append a record; it is verified before it is written

Verification depends on the root. After a change of the root, such as a revoked key, every signature is verified again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from plinth.errors import ConflictError, SignatureError, WorkspaceError
from plinth.records import Frozen
from plinth.storage.objects import Folder, Objects, at_once
from plinth.storage.state import State
from plinth.trust import dsse
from plinth.trust.dsse import now
from plinth.trust.log_record import LogRecord, RecordForm
from plinth.trust.root import SEEN, Proof, Trust

_FILE = re.compile(r"([0-9]{5,})\.json")


class _Opened(NamedTuple):
    """A log that is being read: trust, files, the last record that this machine has verified, and the number of
    files."""

    trust: Trust
    objects: Objects
    last: Proof
    length: int

    def data(self, number: int) -> bytes:
        try:
            found = self.objects.get(_file(number))
        except WorkspaceError as error:
            what = f"{self.where(number)} is not a plain file"
            raise SignatureError(what, found=error.found, expected="a plain file", remedy=error.remedy) from error
        if found is None:
            raise SignatureError(f"{self.where(number)} is missing", remedy="restore the file from a backup")
        return found.data

    def where(self, number: int) -> str:
        return self.objects.where(_file(number))

    @property
    def proved(self) -> int:
        """Number of the last verified record; 0 if that record or the root has changed after the verification."""
        number, sha256, root = self.last
        current = 0 < number <= self.length and root == self.trust.root.digest()
        return number if current and _sha256(self.data(number)) == sha256 else 0


@dataclass(frozen=True)
class SignedLog(RecordForm):
    """Signed log of a workspace: its folder, the format of its records, and the roles that sign them.

    Args:
        shared: True if the log is stored with the workspace's references, possibly in an object store.
    """

    shared: bool = False

    def folder(self, ctx: State) -> Path:
        """Return the folder of the log. A shared log is in this folder only if the workspace is a local folder."""
        return ctx.workspace.root / self.name

    def path(self, ctx: State, number: int) -> Path:
        """Return the path of a record's file."""
        return self.folder(ctx) / _file(number)

    def records(self, ctx: State, *, whole: bool = False) -> tuple[LogRecord, ...]:
        """Return every record, oldest first.

        Args:
            whole: True verifies every signature again, including signatures that this machine has already verified.

        Raises:
            SignatureError: a record was edited, removed or moved, or signed with a key that may not sign it.
        """
        opened = self._opened(ctx)
        if opened is None:
            return ()
        files = list(at_once(opened.objects, opened.data, range(1, opened.length + 1)))
        try:
            found = self._chained(opened, files, 0 if whole else opened.proved)
        except SignatureError:
            found = self._chained(opened, files, 0)  # the error names the invalid record
        return self._kept(ctx, opened, found)

    def newest(self, ctx: State) -> LogRecord | None:
        """Return the last record. Verification starts at the last record that this machine has already verified.

        Raises:
            SignatureError: the last verified record was changed, a later record is invalid, or a record is missing. A
                replaced older record is detected only when all records are read (`records`).
        """
        opened = self._opened(ctx)
        if opened is None or not (proved := opened.proved):
            return next(reversed(self.records(ctx)), None)
        found = [self.opened(opened.trust, opened.data(proved), opened.where(proved), proved=True)]
        for number in range(proved + 1, opened.length + 1):
            found.append(self.next(opened.trust, opened.data(number), opened.where(number), found[-1]))
        return self._kept(ctx, opened, found)[-1]

    def newest_after(self, ctx: State, anchor: Mapping[str, Any] | None) -> LogRecord | None:
        """Return the last record after verifying that the log continues from an anchor. All records after the anchor
        are read.

        Raises:
            SignatureError: one of these records is invalid, or anchored records are missing or replaced.
        """
        self.require_after(self.back(ctx), anchor)
        return self.newest(ctx)

    def back(self, ctx: State) -> Iterator[LogRecord]:
        """Yield records from the newest to the oldest. Each record is read on demand.

        Raises:
            SignatureError: a record that was read is invalid.
        """
        record, opened = self.newest(ctx), self._opened(ctx)
        while opened and record:
            yield record
            if record.number == 1:
                return
            data, where = opened.data(record.number - 1), opened.where(record.number - 1)
            if _sha256(data) != record.prior:
                raise self.broken(where, _sha256(data), str(record.prior))
            record = self.opened(opened.trust, data, where, proved=True)

    def append(
        self,
        ctx: State,
        body: Mapping[str, Any],
        subjects: Mapping[str, str],
        role: str,
        owner: str | None = None,
        *,
        at: str | None = None,
        number: int | None = None,
    ) -> LogRecord:
        """Sign and write the next record as a role. `owner` is required if this machine has keys of several owners for
        the role.

        Args:
            at: time of the recorded event; default: now.
            number: required record number, if the content refers to earlier records.

        Raises:
            SignatureError: the log is invalid, or there is no key of that role on this machine.
            ConflictError: another process has already written a record with that number.
        """
        trust, objects = Trust.of(ctx.workspace), self._objects(ctx)
        signer = trust.signer(role, owner)
        while True:
            before = self.newest(ctx)
            name = _file(before.number + 1 if before else 1)
            data = self.sealed(signer, before, at or now(), body, subjects)
            made = self.next(trust, data, objects.where(name), before)
            if number in (None, made.number) and objects.put(name, data, None):
                trust.remember(self._seen_as(ctx)[0], made.number, made.sha256)
                return made
            if number is not None:
                raise ConflictError(
                    f"another process has written {objects.where(name)}", remedy="run the same command again"
                )

    def require_after(self, records: Iterable[LogRecord], anchor: Mapping[str, Any] | None) -> None:
        """Require that the records contain an anchor: a record's number and SHA-256, as named in a signed statement.

        Raises:
            SignatureError: anchored records are missing or replaced.
        """
        number = int(anchor["number"]) if anchor else 0
        if not anchor or not number:
            return
        found = next((each for each in records if each.number == number), None)
        self._require_anchored(found.sha256 if found else None, anchor)

    def _require_anchored(self, sha256: str | None, anchor: Mapping[str, Any]) -> None:
        if sha256 != anchor["sha256"]:
            raise SignatureError(
                f"{self.plural} are missing or were replaced",
                found=f"record {anchor['number']} is {sha256 or 'missing'}",
                expected=f"SHA-256 {anchor['sha256']}, which a signed record or head names",
                remedy=f"restore {self.name}/ from a backup; releasing and loading models is blocked until then",
            )

    def require_file(self, ctx: State, anchor: Mapping[str, Any]) -> None:
        """Require that one record matches an anchor, without reading other records.

        Raises:
            SignatureError: the record is missing or differs.
        """
        if anchor:
            found = self._objects(ctx).get(_file(int(anchor["number"])))
            self._require_anchored(_sha256(found.data) if found else None, anchor)

    def _chained(self, opened: _Opened, files: Sequence[bytes], proved: int) -> list[LogRecord]:
        found: list[LogRecord] = []
        for number, data in enumerate(files, start=1):
            before, where = found[-1] if found else None, opened.where(number)
            found.append(self.next(opened.trust, data, where, before, proved=number <= proved))
        return found

    def _kept(self, ctx: State, opened: _Opened, found: Sequence[LogRecord]) -> tuple[LogRecord, ...]:
        """Check that no record after the last verified record is missing, remember the newest record, and return all
        records."""
        last, number = opened.last, found[-1].number if found else 0
        if number < last.number:
            anew = f". If the whole workspace was deleted on purpose, move {opened.trust.folder} away with its keys"
            raise SignatureError(
                f"the newest {self.plural} are missing",
                found=f"{number} records",
                expected=f"at least {last.number} records, which this machine has seen",
                remedy=f"restore {self.name}/ from a backup; releasing and loading models is blocked until then"
                + (anew if not number else ""),
            )
        for each in found:
            if each.number == last.number and last.sha256 not in ("", each.sha256):
                raise self.broken(
                    opened.where(each.number), each.sha256, f"SHA-256 {last.sha256}, which this machine has seen"
                )
        if found:
            opened.trust.remember(self._seen_as(ctx)[0], number, found[-1].sha256)
        return tuple(found)

    def _opened(self, ctx: State) -> _Opened | None:
        """Return the opened log, or None if it is empty and this machine has never verified a signed record.

        For an empty log without verified records, no root is needed. The memory of verified records is read before the
        files are counted, so that a record added in between is not reported as missing.
        """
        objects, seen = self._objects(ctx), (ctx.workspace.trust_folder / SEEN).exists()
        if not seen and not any(objects.names()):
            return None
        trust = Trust.of(ctx.workspace)
        last = trust.proved(*self._seen_as(ctx))
        return _Opened(trust, objects, last, self._count(objects))

    def _count(self, objects: Objects) -> int:
        """Return the number of record files, after checking that they are numbered without gaps."""
        names = [name for name in objects.names() if "/" not in name]
        for name in names:
            if not _FILE.fullmatch(name):
                raise SignatureError(
                    f"{objects.where(name)} is not a signed record",
                    expected="a file whose name is a number",
                    remedy=f"move the file out of {self.name}/; recreate a taint of version 0.3 with `plinth release "
                    "taint mark TARGET --by PERSON --reason TEXT`",
                )
        for number, name in enumerate(sorted(names, key=lambda each: int(each.removesuffix(".json"))), start=1):
            if name != _file(number):
                raise self.broken(objects.where(name), name, _file(number))
        return len(names)

    def _objects(self, ctx: State) -> Objects:
        return ctx.workspace.objects(self.name) if self.shared else Folder(self.folder(ctx))

    def _seen_as(self, ctx: State) -> tuple[str, ...]:
        return tuple(f"{self.name} of {place}" for place in ctx.workspace.places)


def anchor_of(record: LogRecord | None) -> dict[str, Any]:
    """Return the number and SHA-256 of a record, or an empty dict if the record is None."""
    return {"number": record.number, "sha256": record.sha256} if record else {}


def _file(number: int) -> str:
    return f"{number:05d}.json"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Signed head of a log: its newest record, an expiry, and the newest records of other logs.
#
#     FOLDER/head    a DSSE envelope: number and SHA-256 of the newest record, time, expiry; those of every other log
#
# The newest record cannot be removed while the head exists, and an old head cannot be restored: a machine that has
# verified more records refuses it, and other machines refuse it once it has expired. A crash can leave a record whose
# head was not signed. The log may therefore be one record longer than its head; the next writer first signs the head.

FILE: Final = "head"


class HeadStatement(Frozen):
    """Content of a signed head."""

    number: int
    sha256: str
    at: str
    expires: str
    logs: Mapping[str, Mapping[str, Any]] = {}


@dataclass(frozen=True)
class LogHead:
    """Head of a log, signed by the role that signs the log's records.

    Args:
        log: the log.
        kind: predicate type of the head.
        days: validity of a head in days.
        remedy: instructions in error messages on how to sign the head again.
    """

    log: SignedLog
    kind: str
    days: int
    remedy: str

    def path(self, ctx: State) -> Path:
        """Return the path of the head's file."""
        return self.log.folder(ctx) / FILE

    def read(self, ctx: State) -> HeadStatement | None:
        """Return the verified head, or None if no head was signed yet.

        Raises:
            SignatureError: the head was changed, or signed with another key.
        """
        path = self.path(ctx)
        if not path.exists():
            return None
        signed = dsse.read(path, Trust.of(ctx.workspace).authority(self.log.roles[0]), self.kind)["predicate"]
        try:
            return HeadStatement.model_validate(signed)
        except ValidationError as error:
            raise SignatureError(f"{path} is not the head of a log", found=error) from error

    def require(self, ctx: State, newest: LogRecord | None, *, expired: bool = False) -> HeadStatement | None:
        """Require that a record is the newest record according to the head.

        If the log has one record more than the head, it is accepted, because a crash can cause this.

        Args:
            expired: True accepts a head that has expired.

        Raises:
            SignatureError: the head names a different or a later record, is missing, or has expired.
        """
        head, number = self.read(ctx), newest.number if newest else 0
        ahead = number - (head.number if head else 0)
        if ahead not in (0, 1):
            raise SignatureError(
                f"the newest {self.log.plural} are missing"
                if ahead < 0
                else f"the head is older than the newest of the {self.log.plural}",
                found=f"{number} records, the head has {head.number if head else 'none'}",
                expected="the head that was signed with the last record",
                remedy=f"restore {self.log.name}/ from a backup; releases are blocked until then",
            )
        if head and newest and (newest.prior if ahead else newest.sha256) != head.sha256:
            raise SignatureError(
                f"the head does not name the newest of the {self.log.plural}", found=newest.sha256, expected=head.sha256
            )
        if head and now() >= head.expires and not expired:
            raise SignatureError(
                f"the head of {self.log.name}/ has expired",
                found=f"signed {head.at}, valid until {head.expires}",
                expected=f"a newer head signed by {self.log.roles[0]}",
                remedy=self.remedy,
            )
        return head

    def sign(self, ctx: State, newest: LogRecord, others: Iterable[SignedLog]) -> None:
        """Sign a head that names the newest record of this log and of the other logs.

        Raises:
            SignatureError: another log is invalid or lacks records that it had before, or there is no usable key.
        """
        at = now()
        until = datetime.fromisoformat(at) + timedelta(days=self.days)
        stated = HeadStatement(
            number=newest.number,
            sha256=newest.sha256,
            at=at,
            expires=until.isoformat(timespec="seconds"),
            logs=self.heads(ctx, others),
        )
        content = dsse.statement(self.kind, {"record": newest.sha256}, stated.model_dump(mode="json"))
        dsse.write(self.path(ctx), content, Trust.of(ctx.workspace).signer(self.log.roles[0]))

    def refresh(self, ctx: State, others: Iterable[SignedLog], days: int, *, expired: bool = False) -> bool:
        """Sign the head again if it is older than `days`, or if any log has a newer record. Return True if the head was
        signed.

        Raises:
            SignatureError: a log is invalid, or the key cannot be used.
        """
        newest = self.log.newest(ctx)
        head = self.require(ctx, newest, expired=expired)
        if newest is None:
            return False
        fresh = datetime.fromisoformat(now()) - timedelta(days=days)
        current = head is not None and head.number == newest.number and datetime.fromisoformat(head.at) > fresh
        if head and current and self.heads(ctx, others) == head.logs:
            return False
        self.sign(ctx, newest, others)
        return True

    def heads(self, ctx: State, others: Iterable[SignedLog]) -> dict[str, Mapping[str, Any]]:
        """Return the newest record of every other log that has records, after verifying that each log continues from
        the current head.

        Raises:
            SignatureError: a log is invalid, or lacks records that it had before.
        """
        anchors = self._anchors(ctx)
        newest = {log.name: anchor_of(log.newest_after(ctx, anchors.get(log.name))) for log in others}
        return {name: anchor for name, anchor in newest.items() if anchor}

    def newest_of(self, ctx: State, log: SignedLog) -> LogRecord | None:
        """Return the newest record of another log after verifying that the log continues from this head.

        Raises:
            SignatureError: the log is invalid, or lacks records that it had before.
        """
        return log.newest_after(ctx, self._anchors(ctx).get(log.name))

    def records_of(self, ctx: State, log: SignedLog) -> tuple[LogRecord, ...]:
        """Return the records of another log after verifying that the records continue from this head.

        Raises:
            SignatureError: a record was edited, removed or moved. A change of the newest record is detected only if a
                head was signed after that record was written.
        """
        found = log.records(ctx)
        log.require_after(found, self._anchors(ctx).get(log.name))
        return found

    def _anchors(self, ctx: State) -> Mapping[str, Mapping[str, Any]]:
        head = self.read(ctx)
        return head.logs if head else {}
