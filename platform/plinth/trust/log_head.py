"""The signed head of a log: its newest record, until when that is believed, and the newest of other logs.

    FOLDER/head    a DSSE envelope: number and SHA-256 of the newest record, time, expiry; those of every other log

The newest record cannot be removed with the head in place, and an old head cannot be put back: a machine that has
proved more records refuses it, and every other machine refuses it once it has expired. A crash can leave a record
without its head; so the log may be one record longer, and the next writer signs the head first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.storage.state import State
from plinth.trust import dsse
from plinth.trust.authority import now
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog, anchor_of

FILE: Final = "head"


class HeadStatement(Frozen):
    """What a head states."""

    number: int
    sha256: str
    at: str
    expires: str
    logs: Mapping[str, Mapping[str, Any]] = {}


@dataclass(frozen=True)
class LogHead:
    """The head of a log, signed by the role that signs its records.

    Args:
        days: for how long a head that nobody has signed again is believed.
        remedy: how it is signed again, in errors.
    """

    log: SignedLog
    kind: str
    days: int
    remedy: str

    def path(self, ctx: State) -> Path:
        """Its file."""
        return self.log.folder(ctx) / FILE

    def read(self, ctx: State) -> HeadStatement | None:
        """The head, or None before any was signed.

        Raises:
            SignatureError: it was changed, or signed by somebody else.
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
        """The last record is the newest that there is; one more than the head names was written before a crash.

        Args:
            expired: also under a head that has expired.

        Raises:
            SignatureError: the head names another or a later record, is missing, or has expired.
        """
        head, number = self.read(ctx), newest.number if newest else 0
        ahead = number - (head.number if head else 0)
        if ahead not in (0, 1):
            raise SignatureError(
                f"the newest {self.log.plural} are missing" if ahead < 0 else f"the {self.log.plural} outgrew the head",
                found=f"{number} records, a head that names {head.number if head else 'none'}",
                expected="the head that was signed with the last record",
                remedy=f"restore {self.log.name}/ from a backup; nothing of this workspace is released until then",
            )
        if head and newest and (newest.prior if ahead else newest.sha256) != head.sha256:
            raise SignatureError(
                f"the head names another of the {self.log.plural}", found=newest.sha256, expected=head.sha256
            )
        if head and now() >= head.expires and not expired:
            raise SignatureError(
                f"the head of {self.log.name}/ has expired",
                found=f"signed {head.at}, valid until {head.expires}",
                expected=f"a head that was signed since by {self.log.roles[0]}",
                remedy=self.remedy,
            )
        return head

    def sign(self, ctx: State, newest: LogRecord, others: Iterable[SignedLog]) -> None:
        """Sign the head of a log that ends with a record, and those of other logs.

        Raises:
            SignatureError: another log does not hold, or lacks records that were there before; no usable key.
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
        """Sign the head again when it is older than some days, or a record of any log behind. Returns whether it was.

        Raises:
            SignatureError: a log does not hold, or the key is not usable.
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
        """The newest record of every other log that has one, proved to continue from what the present head names.

        Raises:
            SignatureError: a log does not hold, or lacks records that were there before.
        """
        anchors = self._anchors(ctx)
        newest = {log.name: anchor_of(log.newest_after(ctx, anchors.get(log.name))) for log in others}
        return {name: anchor for name, anchor in newest.items() if anchor}

    def newest_of(self, ctx: State, log: SignedLog) -> LogRecord | None:
        """The newest record of another log, proved to continue from the one that this head names.

        Raises:
            SignatureError: the log does not hold, or lacks records that were there then.
        """
        return log.newest_after(ctx, self._anchors(ctx).get(log.name))

    def records_of(self, ctx: State, log: SignedLog) -> tuple[LogRecord, ...]:
        """The records of another log, proved to continue from the one that this head names.

        Raises:
            SignatureError: one was edited, removed or moved; the newest too, if a head was signed since.
        """
        found = log.records(ctx)
        log.require_after(found, self._anchors(ctx).get(log.name))
        return found

    def _anchors(self, ctx: State) -> Mapping[str, Mapping[str, Any]]:
        head = self.read(ctx)
        return head.logs if head else {}
