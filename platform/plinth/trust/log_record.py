"""One record of a signed log, and its verification as the successor of the previous record.

    {"number": 2, "prior": SHA-256 of the file before, "at": time, "role": who signs, "body": content}

is the predicate of a DSSE envelope. A `flat` record has the fields of its content at the same level as the number, and
its log has a single role. A `readable` record is `{"record": predicate, "envelope": envelope}`. The predicate is for
people to read; only the envelope is trusted.

The location of records and the memory of verified records do not belong here (see `signed_log`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plinth import fingerprint
from plinth.errors import SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import ROOT, Authority, revoked_at, time_of
from plinth.trust.root import Trust
from plinth.trust.signers import Signer

_OWN = ("number", "prior", "at")


@dataclass(frozen=True)
class LogRecord:
    """Verified record: number, SHA-256 of its file and of the previous file, signers, role, time, content, and
    subjects."""

    number: int
    sha256: str
    prior: str | None
    at: str
    role: str
    owners: tuple[str, ...]
    body: Mapping[str, Any]
    subjects: Mapping[str, str]


@dataclass(frozen=True)
class RecordForm:
    """Format of a log's records, and the roles that are allowed to sign them.

    Args:
        name: the log's folder in a workspace.
        roles: roles that are allowed to sign records.
        keeps_revoked: True accepts records whose key was revoked before the record's time. These records have no owner.
            Use it for records of past events. A record that others act on must become invalid when its key is revoked.
        kind: predicate type; by default derived from the name.
        title: name of the records in error messages.
        flat, readable: formats of records, described in the module's docstring.
    """

    name: str
    roles: tuple[str, ...]
    keeps_revoked: bool = False
    kind: str = ""
    title: str = ""
    flat: bool = False
    readable: bool = False

    @property
    def predicate(self) -> str:
        """Predicate type of a record."""
        return self.kind or f"urn:plinth:log:{self.name}:v1"

    @property
    def plural(self) -> str:
        """Name of the log's records in error messages, in the plural."""
        return self.title or f"records of {self.name}/"

    def sealed(
        self, signer: Signer, before: LogRecord | None, at: str, body: Mapping[str, Any], subjects: Mapping[str, str]
    ) -> bytes:
        """Return the file content of the next record, signed."""
        own = {"number": before.number + 1 if before else 1, "prior": before.sha256 if before else None, "at": at}
        content = {**own, **body, **own} if self.flat else {**own, "role": signer.role, "body": dict(body)}
        envelope = dsse.seal(dsse.statement(self.predicate, subjects, content), signer)
        whole = {"record": content, "envelope": envelope} if self.readable else envelope
        return json.dumps(whole, indent=1).encode()

    def next(
        self, trust: Trust, data: bytes, where: str, before: LogRecord | None, *, proved: bool = False
    ) -> LogRecord:
        """Verify a record as the successor of another. If `before` is None, the record must be the log's first record.

        Args:
            proved: True if this root verified the signature of these bytes, or of a later record with their digest.

        Raises:
            SignatureError: this is not a record of this log, it is signed with another key, or a record between the
                two is missing.
        """
        record = self.opened(trust, data, where, proved=proved)
        self._require_next(where, record, before)
        return record

    def opened(self, trust: Trust, data: bytes, where: str, *, proved: bool = False) -> LogRecord:
        """Verify a record independently of its predecessor. The arguments have the same meaning as for `next`.

        Raises:
            SignatureError: this is not a record of this log, or it is signed with another key.
        """
        envelope, shown = self._parsed(data, where)
        content = dsse.unverified(envelope, where)
        role = self._role(content, where)
        if not proved:
            content = dsse.opened(envelope, self._ever(trust, role), self.predicate, where)
        signed = content["predicate"]
        if self.readable and _differs(shown, signed):
            raise SignatureError(
                f"{where} differs from its signed record",
                found=sorted(key for key in {*shown, *signed} if shown.get(key) != signed.get(key)),
                expected="the record that was signed",
                remedy="restore the file from a backup",
            )
        try:
            return self._record(trust, hashlib.sha256(data).hexdigest(), role, content, envelope, where)
        except (KeyError, TypeError, ValueError) as error:
            raise SignatureError(f"{where} is not one of the {self.plural}", found=repr(error)) from error

    def _record(
        self, trust: Trust, sha256: str, role: str, content: Mapping[str, Any], envelope: Any, where: str
    ) -> LogRecord:
        signed, authority = content["predicate"], trust.authority(role)
        at = str(signed["at"])
        time_of(at)
        if self.keeps_revoked:
            kept = {key_id: key for key_id, key in authority.keys.items() if not revoked_at(key, at)}
            authority = authority.model_copy(update={"keys": kept})
        return LogRecord(
            number=int(signed["number"]),
            sha256=sha256,
            prior=signed["prior"],
            at=at,
            role=role,
            owners=_owners(envelope, authority, where),
            body={key: signed[key] for key in signed if key not in _OWN} if self.flat else dict(signed["body"]),
            subjects=dsse.subjects(content),
        )

    def _parsed(self, data: bytes, where: str) -> tuple[Any, Mapping[str, Any]]:
        """Return the unverified envelope and, for a readable record, the predicate that people read."""
        try:
            found = json.loads(data, object_pairs_hook=fingerprint.unique)
        except (ValueError, RecursionError) as error:
            raise SignatureError(f"{where} is not a DSSE envelope", found=error) from error
        if not self.readable:
            return found, {}
        if not isinstance(found, dict) or set(found) != {"record", "envelope"} or not isinstance(found["record"], dict):
            raise SignatureError(f"{where} is not one of the {self.plural}", expected="a record and its envelope")
        return found["envelope"], found["record"]

    def _role(self, content: Mapping[str, Any], where: str) -> str:
        """Return the role that a record claims, without verifying it."""
        stated = self.roles[0] if self.flat else content.get("predicate", {}).get("role")
        if stated not in self.roles:
            raise SignatureError(
                f"{where} is not a record of this signed log",
                found=f"role {stated!r}",
                expected=" or ".join(self.roles),
                remedy=f"restore {self.name}/ from a backup",
            )
        return str(stated)

    def _ever(self, trust: Trust, role: str) -> Authority:
        """Return the keys whose signatures are accepted for a role.

        If the log keeps revoked records, these are all keys that ever had the role. Revoked root keys are added,
        because they are no longer listed under their role.
        """
        authority = trust.authority(role)
        if not self.keeps_revoked:
            return authority
        gone = {key_id: key for key_id, key in trust.root.keys.items() if role == ROOT and key.revoked_from}
        known = {**gone, **authority.keys}
        kept = {key_id: key.model_copy(update={"revoked_from": None}) for key_id, key in known.items()}
        return authority.model_copy(update={"keys": kept, "threshold": 1})

    def _require_next(self, where: str, record: LogRecord, before: LogRecord | None) -> None:
        number, prior = (before.number + 1, before.sha256) if before else (1, None)
        if (record.number, record.prior) != (number, prior):
            raise self.broken(where, f"number {record.number} after {record.prior}", f"number {number} after {prior}")
        if before and time_of(record.at) < time_of(before.at):
            raise SignatureError(
                f"{where} is older than its predecessor",
                found=record.at,
                expected=f"{before.at} or later",
                remedy="a key signed a record with a time in the past: revoke the key, and restore the log from a "
                "backup",
            )

    def broken(self, where: str, found: str, expected: str) -> SignatureError:
        """Return the error for a log in which a record is missing, moved or replaced."""
        return SignatureError(
            f"the {self.plural} are broken at {where.rpartition('/')[2]}",
            found=f"{found}, in {where}",
            expected=expected,
            remedy=f"restore the missing records of {self.name}/ from a backup",
        )


def _owners(envelope: Mapping[str, Any], authority: Authority, where: str) -> tuple[str, ...]:
    """Return the owners of valid signatures. If there are several signatures, all are checked here; a single signature
    has already been checked."""
    known = {one["keyid"] for one in envelope["signatures"]} & set(authority.keys)
    if len(known) > 1:
        return dsse.signed_by(envelope, authority, where)
    return tuple(authority.keys[key_id].owner for key_id in known)


def _differs(shown: Mapping[str, Any], signed: Mapping[str, Any]) -> bool:
    """Return True if two records differ as JSON text. Python treats 1, 1.0 and true as equal, but their JSON text
    differs."""
    try:
        return fingerprint.canonical(shown) != fingerprint.canonical(signed)
    except ValueError:  # not a number
        return True
