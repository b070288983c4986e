"""Waivers of checklist lines: the owner of the policy lets one stay unmet here, until a date, for a reason.

    check-waivers/00001.json    one record of a signed log, as `policy`

The newest record of a line counts; one whose date has come is none. What it covers stays visible with its evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import RequestError, SignatureError
from plinth.operation.checklists.check import Check
from plinth.records import Frozen
from plinth.trust.authority import POLICY, time_of
from plinth.trust.log_record import LogRecord
from plinth.trust.signed_log import SignedLog

CHECK_WAIVERS: Final = SignedLog("check-waivers", (POLICY,))

#: Characters of a reason.
SHORTEST_REASON = 10


class CheckWaiver(Frozen):
    """What is waived, why, until when (UTC, ISO 8601), by whom."""

    check: str
    reason: str = Field(min_length=SHORTEST_REASON)
    until: str
    by: str
    at: str

    @property
    def said(self) -> str:
        """The waiver in words."""
        return f"waived by {self.by} until {self.until}: {self.reason}"


def sign(ctx: Context, check: Check, until: str, reason: str, owner: str | None = None) -> CheckWaiver:
    """Sign the next waiver of a line; it replaces an earlier one. One that ends now lifts it.

    Raises:
        RequestError: the line cannot be waived, the time has no zone, or there is no reason in a sentence.
        SignatureError: no key as `policy` on this machine, or the log does not hold.
    """
    problem = "" if check.waivable else "waivers rest on it themselves"
    try:
        time_of(until)
    except ValueError as error:
        problem = str(error)
    if len(reason.strip()) < SHORTEST_REASON:
        problem = f"the reason {reason!r} is no sentence"
    if problem:
        raise RequestError(
            f"no waiver of {check.name}",
            found=problem,
            expected="a line that can be waived, a time with its zone, and a reason",
        )
    body = {"check": check.name, "reason": reason.strip(), "until": until}
    return _waiver(CHECK_WAIVERS.append(ctx, body, {"check": fingerprint.digest(check.name)}, POLICY, owner))


def standing(ctx: Context, now: float) -> Mapping[str, CheckWaiver]:
    """The waivers that count at a time (Unix seconds), by line.

    Raises:
        SignatureError: a record was edited, removed or forged.
    """
    newest = {waiver.check: waiver for waiver in map(_waiver, CHECK_WAIVERS.records(ctx))}
    return {name: waiver for name, waiver in newest.items() if time_of(waiver.until).timestamp() > now}


def _waiver(record: LogRecord) -> CheckWaiver:
    try:
        found = CheckWaiver(by=", ".join(record.owners), at=record.at, **record.body)
        time_of(found.until)
    except (TypeError, ValueError, ValidationError) as error:
        raise SignatureError(f"record {record.number} of check-waivers/ is no waiver", found=error) from error
    return found
