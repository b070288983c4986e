"""Incidents: opened, noted and closed by people in a signed log. While an incident is open, nothing is promoted.

    open     report a problem and its scope; promotions are frozen from then on
    note     an observation or action, with time
    close    compliance states that it is resolved; promotions resume

Records form one signed log (`incidents/`). No record can be edited, removed or forged unnoticed, and a log that does
not verify also stops promotions. Opening and noting need the key of compliance or the promoter. Closing needs the key
of compliance, so that the promoter cannot lift the freeze alone. Rollback and withdrawal of a canary are never frozen.

The facts of a postmortem do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import GateError, MissingError, RequestError, SignatureError
from plinth.records import Frozen
from plinth.trust.dsse import COMPLIANCE
from plinth.trust.log_record import LogRecord
from plinth_registry import audit_log, consumers, releases
from plinth_registry.audit_log import INCIDENTS, AuditedAction

IncidentAction = Literal["open", "note", "close"]


class IncidentStatement(Frozen):
    """Body of a record: an incident opens with `runs` and `targets`; later records name the `incident`."""

    action: IncidentAction
    text: str
    by: str
    incident: int | None = None
    runs: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None


class IncidentRecord(Frozen):
    """Verified record of the incident log: the statement, its signer and its time."""

    number: int
    incident: int
    action: IncidentAction
    text: str
    by: str
    at: str
    signed_by: tuple[str, ...]


class Incident(Frozen):
    """Incident with its records. `runs` and `targets` name what the incident affects."""

    number: int
    title: str
    opened: str
    runs: tuple[str, ...]
    targets: tuple[str, ...]
    records: tuple[IncidentRecord, ...]
    closed: str | None = None


def declare(ctx: Context, title: str, by: str, runs: Iterable[str] = (), targets: Iterable[str] = ()) -> Incident:
    """Open an incident, which freezes promotions from now on.

    Args:
        runs: names of affected training runs.
        targets: affected artifacts, as targets of `plinth release impact`.

    Raises:
        RequestError: the title is empty.
        SignatureError: no key of compliance or promoter is on this machine, or the log does not verify.
    """
    if not title.strip():
        raise RequestError("an incident needs a title", remedy="describe the problem in one line")
    about = {"runs": tuple(sorted(set(runs))), "targets": tuple(sorted(set(targets)))}
    stated = IncidentStatement(action="open", text=title.strip(), by=by, **about)
    made = _append(ctx, stated, consumers.signing_role(ctx))
    return find(ctx, made.number)


def note(ctx: Context, number: int, text: str, by: str) -> Incident:
    """Add a note to an incident, which may be open or closed.

    Raises:
        MissingError: there is no such incident.
        RequestError: the text is empty.
        SignatureError: no key of compliance or promoter is on this machine, or the log does not verify.
    """
    found = find(ctx, number)
    if not text.strip():
        raise RequestError("a note needs a text")
    stated = IncidentStatement(action="note", incident=found.number, text=text.strip(), by=by)
    _append(ctx, stated, consumers.signing_role(ctx))
    return find(ctx, number)


def close(ctx: Context, number: int, reason: str, by: str) -> Incident:
    """Close an incident, signed with the compliance key. Promotions resume if no other incident is open.

    Raises:
        MissingError: there is no such incident, or it is closed.
        RequestError: the reason is empty.
        SignatureError: no compliance key is on this machine, or the log does not verify.
    """
    with audit_log.audited(ctx, AuditedAction("close incident", f"incident {number}", by, reason)):
        found = find(ctx, number)
        if found.closed is not None:
            raise MissingError(f"incident {number} was closed at {found.closed}")
        if not reason.strip():
            raise RequestError("closing an incident needs a reason", remedy="state the fix and how it was verified")
        _append(ctx, IncidentStatement(action="close", incident=number, text=reason.strip(), by=by), COMPLIANCE)
    return find(ctx, number)


def incidents(ctx: Context) -> tuple[Incident, ...]:
    """Return all incidents, oldest first.

    Raises:
        SignatureError: a record was edited, removed or forged, or a role other than compliance closed an incident.
    """
    found: dict[int, Incident] = {}
    for record in releases.log_records(ctx, INCIDENTS):
        read = _read(record)
        if read.action == "open":
            found[read.number] = _opened(record, read)
            continue
        known = found.get(read.incident)
        if known is None or (read.action == "close" and (record.role != COMPLIANCE or known.closed is not None)):
            raise SignatureError(
                f"record {record.number} of incidents/ may not {read.action} incident {read.incident}",
                found=f"signed as {record.role}",
                expected=f"an open incident, and a closing record that {COMPLIANCE} signed",
                remedy="find the owner of that key; restore incidents/ from a backup",
            )
        closed = read.at if read.action == "close" else known.closed
        found[read.incident] = known.model_copy(update={"records": (*known.records, read), "closed": closed})
    return tuple(found.values())


def open_ones(ctx: Context) -> tuple[Incident, ...]:
    """Return all open incidents, oldest first.

    Raises:
        SignatureError: a record was edited, removed or forged, or a role other than compliance closed an incident.
    """
    return tuple(one for one in incidents(ctx) if one.closed is None)


def find(ctx: Context, number: int | None) -> Incident:
    """Return an incident by number. If the number is None, return the newest open incident. If none is open, return the
    newest incident.

    Raises:
        MissingError: there is no such incident.
    """
    known = incidents(ctx)
    ordered = sorted(known, key=lambda one: (one.closed is None, one.number))
    found = next((one for one in reversed(ordered) if number in (None, one.number)), None)
    if found is None:
        raise MissingError(
            f"no incident {number}" if number else "no incident was opened in this workspace",
            found=", ".join(str(one.number) for one in known) or "none",
            remedy='open an incident with `plinth ops incident open "TITLE"`',
        )
    return found


def require_none(ctx: Context) -> None:
    """Raise an error if an incident is open.

    Raises:
        GateError: an incident is open (the error names it).
        SignatureError: the log does not verify.
    """
    found = open_ones(ctx)
    if found:
        raise GateError(
            "promotions are frozen while an incident is open",
            found="; ".join(f"incident {one.number} since {one.opened}: {one.title}" for one in found),
            expected="no open incident",
            remedy=f"after the incident is resolved, run `plinth ops incident close {found[0].number} --reason TEXT`, "
            "signed by compliance",
        )


def _append(ctx: Context, stated: IncidentStatement, role: str) -> LogRecord:
    body = stated.model_dump(mode="json", exclude_none=True)
    return INCIDENTS.append(ctx, body, {"incident": fingerprint.digest(body)}, role)


def _opened(record: LogRecord, read: IncidentRecord) -> Incident:
    body = record.body
    return Incident(
        number=read.number,
        title=read.text,
        opened=read.at,
        runs=tuple(map(str, body.get("runs", ()))),
        targets=tuple(map(str, body.get("targets", ()))),
        records=(read,),
    )


def _read(record: LogRecord) -> IncidentRecord:
    body = record.body
    try:
        return IncidentRecord(
            number=record.number,
            incident=int(body.get("incident", record.number)),
            action=body["action"],
            text=body["text"],
            by=body["by"],
            at=record.at,
            signed_by=record.owners,
        )
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise SignatureError(f"record {record.number} of incidents/ is invalid", found=error) from error
