"""Anchors of a signed log: heads whose signatures an external transparency log has accepted.

    FOLDER/anchors/00003-1f0c….json    {"head": DSSE envelope of the head, "entry": the log's entry}

A holder of the signing key could rewrite or truncate a log and sign a new head. A machine that has verified the log
detects this from its own memory. An anchor proves it to every other machine: the head existed at the time in the entry,
so the record that it names must still be in the log. The transparency log, not the signer, states this time: a head
that was logged after its key was revoked is refused, whatever time the head states.

    require    every anchored head is part of the history; cheap, with every reading of the history
    verified   also the entries themselves, with the pinned key of the transparency log, and the other logs in each head

Anchors that were removed together with records are detected only with a copy of an anchor that was kept elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from plinth.errors import MissingError, SignatureError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.state import State
from plinth.trust import dsse, transparency
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import HeadStatement, LogHead, SignedLog
from plinth.trust.transparency import Signed

FOLDER: Final = "anchors"


class Anchor(Frozen):
    """Verified anchor: the anchored record, and the place of the head in the transparency log."""

    file: str
    number: int
    sha256: str
    signed_at: str
    log: str
    name: str
    log_index: int
    logged_at: str


class _Stored(NamedTuple):
    """Anchor whose head verifies. The entry is not verified yet."""

    where: str
    envelope: Any
    head: HeadStatement
    signed: Signed
    entry: Any


@dataclass(frozen=True)
class LogAnchors:
    """Anchors of a log's head."""

    head: LogHead

    def folder(self, ctx: State) -> Path:
        """Return the folder of the anchors, next to the log's records."""
        return self.head.log.folder(ctx) / FOLDER

    def add(self, ctx: State, url: str, records: Sequence[LogRecord]) -> Anchor:
        """Submit the current head to the Rekor server at `url`, verify the returned entry and store it. A head that is
        already anchored is not submitted again.

        Args:
            records: verified records of the log.

        Raises:
            MissingError: the log has no head.
            TrustError: the server does not answer, or refuses the entry.
            SignatureError: the head does not name the newest record, no key of a transparency log is pinned, the
                returned entry is invalid, or the file of this anchor has another head.
        """
        place = self.head.path(ctx)
        if not place.exists():
            raise MissingError(f"{place} does not exist", remedy="anchor the head after the first release")
        envelope, trust = dsse.envelope_of(place), Trust.of(ctx.workspace)
        keys = transparency.pinned(trust.folder)
        signed, head = self._opened(trust, envelope, str(place))
        if not records or head.sha256 != records[-1].sha256:
            raise SignatureError(
                f"{place} does not name the newest of the {self.head.log.plural}",
                found=f"record {head.number}",
                expected=f"record {len(records)}",
                remedy=self.head.remedy,
            )
        path = self.folder(ctx) / f"{head.number:05d}-{signed.sha256[:16]}.json"
        if not path.exists():
            entry = transparency.submit(url, signed)
            transparency.verify(entry, keys, signed, f"the answer of {url}")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, json.dumps({"head": envelope, "entry": entry}, indent=1, sort_keys=True).encode())
        stored = self._read(trust, path)
        if stored.signed.data != signed.data:  # otherwise, an old anchor under this name would replace the new one
            raise SignatureError(
                f"{path} is the anchor of another head",
                found=f"a head of record {stored.head.number}, signed at {stored.head.at}",
                expected=f"the head in {place}",
                remedy="move the file away and anchor the head again",
            )
        return self._verified(trust, stored, keys)

    def require(self, ctx: State, records: Sequence[LogRecord]) -> None:
        """Require that the log still has the record that each anchored head names.

        Raises:
            SignatureError: the log was rewritten or truncated before an anchored head, or an anchor was changed.
        """
        for stored in self._stored(ctx, ()):
            _require_same(stored.where, stored.head.model_dump(), self.head.log, records)

    def verified(
        self, ctx: State, records: Sequence[LogRecord], others: Iterable[SignedLog], also: Iterable[Path] = ()
    ) -> tuple[Anchor, ...]:
        """Verify every anchor offline, oldest first: its entry, and that the log and the other logs still have the
        records that its head names.

        Args:
            records: verified records of the log.
            others: the other logs that heads may name.
            also: copies of anchors that were kept outside the workspace.

        Raises:
            SignatureError: a log was rewritten or truncated before an anchored head, or an anchor is invalid.
        """
        stored = list(self._stored(ctx, also))
        if not stored:
            return ()
        trust, keys = Trust.of(ctx.workspace), transparency.pinned(ctx.workspace.trust_folder)
        known = {log.name: (log, log.records(ctx)) for log in others}
        for each in stored:
            _require_same(each.where, each.head.model_dump(), self.head.log, records)
            for name, newest in each.head.logs.items():
                _require_same(each.where, newest, *known.get(name, (SignedLog(name, ()), ())))
        return tuple(self._verified(trust, each, keys) for each in stored)

    def _stored(self, ctx: State, also: Iterable[Path]) -> Iterator[_Stored]:
        paths = [*sorted(self.folder(ctx).glob("*.json")), *also]
        if paths:
            trust = Trust.of(ctx.workspace)
            yield from (self._read(trust, path) for path in paths)

    def _read(self, trust: Trust, path: Path) -> _Stored:
        content = dsse.envelope_of(path)
        if set(content) != {"head", "entry"}:
            raise SignatureError(f"{path} is not an anchor", found=sorted(content), expected="head and entry")
        signed, head = self._opened(trust, content["head"], str(path))
        return _Stored(str(path), content["head"], head, signed, content["entry"])

    def _opened(self, trust: Trust, envelope: Any, where: str) -> tuple[Signed, HeadStatement]:
        """Verify a head, and return its signed bytes with one valid signature."""
        authority = trust.authority(self.head.log.roles[0])
        content = dsse.opened(envelope, authority, self.head.kind, where)
        data, signatures = dsse.parts(envelope, where)
        key_id = min(dsse.holding(envelope, authority, where))
        try:
            head = HeadStatement.model_validate(content["predicate"])
        except ValidationError as error:
            raise SignatureError(f"{where} has no head of a log", found=error) from error
        return Signed(data, signatures[key_id], authority.keys[key_id].public), head

    def _verified(self, trust: Trust, stored: _Stored, keys: tuple[str, ...]) -> Anchor:
        logged = transparency.verify(stored.entry, keys, stored.signed, stored.where)
        authority = trust.authority(self.head.log.roles[0])
        dsse.opened(stored.envelope, authority, self.head.kind, f"{stored.where}, logged at {logged.at}", at=logged.at)
        return Anchor(
            file=stored.where,
            number=stored.head.number,
            sha256=stored.head.sha256,
            signed_at=stored.head.at,
            log=logged.log,
            name=logged.name,
            log_index=logged.log_index,
            logged_at=logged.at,
        )


def _require_same(where: str, named: Mapping[str, Any], log: SignedLog, records: Sequence[LogRecord]) -> None:
    """Require that a log still has the record that an anchored head names."""
    number = int(named["number"])
    found = records[number - 1].sha256 if 0 < number <= len(records) else "missing"
    if found != named["sha256"]:
        raise SignatureError(
            f"the {log.plural} were rewritten or truncated before an anchored head",
            found=f"record {number} is {found}",
            expected=f"SHA-256 {named['sha256']}, as in {where}",
            remedy=f"restore {log.name}/ from a backup; if its signing key was stolen, revoke the key",
        )
