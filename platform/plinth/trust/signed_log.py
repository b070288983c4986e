"""Signed, numbered, chained records that are only ever added: releases, policies, marks, exclusions, decisions.

    FOLDER/00001.json    one record (`log_record`), which names the SHA-256 of the file before

A record that was edited does not verify; one that was taken out, put in or moved breaks the chain; a time before that
of the record before it is refused, so that a revoked key cannot sign for the past. The newest record cannot be removed
or replaced unnoticed either: this machine remembers number and SHA-256 of the last record that it proved, outside the
workspace, and a signed head can name it for machines that have proved none (`log_head`).

    records    all, read and hashed; those up to the last proved one are chained to it, so their signatures need no look
    newest     the last one: opens the last proved one and those after it, however many there are
    back       from the newest one to older ones, as far as somebody reads
    append     the next one, verified before it is written

Proof is of one root: under another (a key was revoked) every signature is verified again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plinth.errors import ConflictError, SignatureError, WorkspaceError
from plinth.storage.objects import Folder, Objects, at_once
from plinth.storage.state import State
from plinth.trust.authority import now
from plinth.trust.log_record import LogRecord, RecordForm
from plinth.trust.root import SEEN, Proof, Trust

_FILE = re.compile(r"([0-9]{5,})\.json")


class _Opened(NamedTuple):
    """A log that is being read: its files, how many they are, and the last record that was proved here before."""

    trust: Trust
    objects: Objects
    last: Proof
    length: int

    def data(self, number: int) -> bytes:
        try:
            found = self.objects.get(_file(number))
        except WorkspaceError as error:
            what = f"{self.where(number)} is not read"
            raise SignatureError(what, found=error.found, expected="a plain file", remedy=error.remedy) from error
        if found is None:
            raise SignatureError(f"{self.where(number)} is gone", remedy="restore it from a backup")
        return found.data

    def where(self, number: int) -> str:
        return self.objects.where(_file(number))

    @property
    def proved(self) -> int:
        """How many records the last proof covers: none where its record is another now, or the root is."""
        number, sha256, root = self.last
        current = 0 < number <= self.length and root == self.trust.root.digest()
        return number if current and _sha256(self.data(number)) == sha256 else 0


@dataclass(frozen=True)
class SignedLog(RecordForm):
    """A log of a workspace: its folder there, the form of its records, and who may sign them.

    Args:
        shared: it lies where the workspace's references lie, also in an object store.
    """

    shared: bool = False

    def folder(self, ctx: State) -> Path:
        """Where the log lies; of a shared one, when the workspace is a folder."""
        return ctx.workspace.root / self.name

    def path(self, ctx: State, number: int) -> Path:
        """The file of a record."""
        return self.folder(ctx) / _file(number)

    def records(self, ctx: State, *, whole: bool = False) -> tuple[LogRecord, ...]:
        """Every record, oldest first.

        Args:
            whole: verify every signature, also those that were verified on this machine before.

        Raises:
            SignatureError: a record was edited, removed, moved, or signed by somebody who may not.
        """
        opened = self._opened(ctx)
        if opened is None:
            return ()
        files = list(at_once(opened.objects, opened.data, range(1, opened.length + 1)))
        try:
            found = self._chained(opened, files, 0 if whole else opened.proved)
        except SignatureError:
            found = self._chained(opened, files, 0)  # names the record that does not hold
        return self._kept(ctx, opened, found)

    def newest(self, ctx: State) -> LogRecord | None:
        """The last record, proved from the last one that was proved on this machine before.

        Raises:
            SignatureError: that one was changed, one since does not hold, or any is missing. That an older one was
                replaced shows when all are read (`records`).
        """
        opened = self._opened(ctx)
        if opened is None or not (proved := opened.proved):
            return next(reversed(self.records(ctx)), None)
        found = [self.opened(opened.trust, opened.data(proved), opened.where(proved), proved=True)]
        for number in range(proved + 1, opened.length + 1):
            found.append(self.next(opened.trust, opened.data(number), opened.where(number), found[-1]))
        return self._kept(ctx, opened, found)[-1]

    def newest_after(self, ctx: State, anchor: Mapping[str, Any] | None) -> LogRecord | None:
        """The last record, proved to continue from an anchor; reads those between.

        Raises:
            SignatureError: one of these does not hold, or records that were there then are missing or others.
        """
        self.require_after(self.back(ctx), anchor)
        return self.newest(ctx)

    def back(self, ctx: State) -> Iterator[LogRecord]:
        """Records from the newest to the oldest, each read when it is asked for.

        Raises:
            SignatureError: one of those that were asked for does not hold.
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
        """Sign and write the next record as a role, with the key of an owner where there are several.

        Args:
            at: when what it records was done; now, unless given.
            number: that it must get, where its content speaks of earlier records.

        Raises:
            SignatureError: the log does not hold, or there is no key of that role here.
            ConflictError: another process has written that number meanwhile.
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
        """Records continue from an anchor: number and SHA-256 of one of them, which somebody signed.

        Raises:
            SignatureError: records that were there then are missing or others.
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
                found=f"record {anchor['number']} is {sha256 or 'not there'}",
                expected=f"{anchor['sha256']}, which a signed record or head names",
                remedy=f"restore {self.name}/ from a backup; nothing is released or loaded until then",
            )

    def require_file(self, ctx: State, anchor: Mapping[str, Any]) -> None:
        """One record is the one that an anchor names; reads no other.

        Raises:
            SignatureError: it is missing or another.
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
        """Records up to the newest one, which is not older than the last that was proved here; that is kept."""
        last, number = opened.last, found[-1].number if found else 0
        if number < last.number:
            anew = f". Where the whole workspace was deleted on purpose, move {opened.trust.folder} away with its keys"
            raise SignatureError(
                f"the newest {self.plural} are missing",
                found=f"{number} records",
                expected=f"{last.number}, which this machine has seen",
                remedy=f"restore {self.name}/ from a backup; nothing is released or loaded until then"
                + (anew if not number else ""),
            )
        for each in found:
            if each.number == last.number and last.sha256 not in ("", each.sha256):
                raise self.broken(
                    opened.where(each.number), each.sha256, f"{last.sha256}, which this machine has seen"
                )
        if found:
            opened.trust.remember(self._seen_as(ctx)[0], number, found[-1].sha256)
        return tuple(found)

    def _opened(self, ctx: State) -> _Opened | None:
        """None of an empty log on a machine that has seen no record of any: it hides nothing, and needs no root.

        What was seen is read before the files are counted: a record that another process adds meanwhile is not missed.
        """
        objects, seen = self._objects(ctx), (ctx.workspace.trust_folder / SEEN).exists()
        if not seen and not any(objects.names()):
            return None
        trust = Trust.of(ctx.workspace)
        last = trust.proved(*self._seen_as(ctx))
        return _Opened(trust, objects, last, self._count(objects))

    def _count(self, objects: Objects) -> int:
        """How many files there are, numbered without a gap."""
        names = [name for name in objects.names() if "/" not in name]
        for name in names:
            if not _FILE.fullmatch(name):
                raise SignatureError(
                    f"{objects.where(name)} is not a signed record",
                    expected="a number as its name",
                    remedy=f"move it out of {self.name}/; a mark of version 0.3 is stated again with "
                    "`plinth release taint mark TARGET --by PERSON --reason TEXT`",
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
    """Number and SHA-256 of a record; empty where there is none."""
    return {"number": record.number, "sha256": record.sha256} if record else {}


def _file(number: int) -> str:
    return f"{number:05d}.json"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
