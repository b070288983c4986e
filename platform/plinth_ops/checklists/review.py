"""All lines of all checklists, their evaluation, and signed waivers.

    check-waivers/00001.json    one waiver: a record of a signed log, as `policy`

Every line is evaluated, whatever the others give. The newest waiver of a line counts until its date; what it covers
stays visible with its evidence.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.progress import metered
from plinth.errors import CheckFailedError, MissingError, PlinthError, RequestError, SignatureError, TrustError
from plinth.extensions import Catalogue, nearest
from plinth.records import Frozen
from plinth.trust.authority import POLICY, time_of
from plinth.trust.log_record import LogRecord
from plinth_ops.checklists.check import (
    CHECKLISTS,
    Check,
    CheckAnswer,
    CheckedLine,
    ChecklistName,
    CheckScope,
    failed,
    undetermined,
)
from plinth_registry.signed_log import CHECK_WAIVERS

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


#: Modules of this package, each with a table `CHECKS`, in the order in which to repair what fails.
TABLES: Final = ("trust_checks", "place_checks", "run_checks", "release_checks")

#: Lines of other packages.
OTHERS: Final = Catalogue("plinth.checks", "check", Check, {})


def checks(name: ChecklistName | None = None) -> tuple[Check, ...]:
    """The lines of a checklist, or all."""
    return tuple(check for check in _all() if name is None or name in check.lists)


def find(name: str) -> Check:
    """A line by name.

    Raises:
        RequestError: there is none.
    """
    known = {check.name: check for check in _all()}
    if name not in known:
        raise RequestError(
            f"no checklist has a line {name!r}",
            remedy=nearest(name, known) or f"`plinth ops check list` has them, of {', '.join(CHECKLISTS)}",
        )
    return known[name]


def _all() -> Iterator[Check]:
    for table in TABLES:
        yield from import_module(f"{__package__}.{table}").CHECKS
    for name in OTHERS:
        try:
            yield OTHERS[name]
        except PlinthError as error:
            yield _unusable(name, error.brief)


def _unusable(name: str, why: str) -> Check:
    """A line for a plug-in whose own cannot be used: it must not vanish from every checklist."""

    def examine(scope: CheckScope) -> CheckAnswer:
        return undetermined(why)

    return Check(name, f"the plug-in's line {name} can be used", "platform", CHECKLISTS, "repair the package", examine)


#: Outcomes that a waiver covers.
WAIVED_FROM = ("warn", "fail", "undetermined")


def evaluate(scope: CheckScope, lines: Iterable[Check]) -> list[CheckedLine]:
    """Every line, in order. A log of waivers that does not hold waives nothing."""
    try:
        waived = standing(scope.ctx, scope.now)
    except SignatureError:
        waived = {}
    wanted = tuple(lines)
    return [_line(scope, check, waived) for check in metered(scope.ctx.progress, "checks", wanted, len(wanted))]


def require(lines: Sequence[CheckedLine]) -> None:
    """Pass only where no line failed and every line could be determined.

    Raises:
        CheckFailedError: lines that failed, by name.
        MissingError: none failed, and some could not be determined.
    """
    for outcome, error in (("fail", CheckFailedError), ("undetermined", MissingError)):
        found = [line for line in lines if line.outcome == outcome]
        if found:
            raise error(
                f"{len(found)} of {len(lines)} checks {'failed' if outcome == 'fail' else 'could not be determined'}",
                found=", ".join(line.name for line in found),
                expected="pass, warn, not applicable, or a signed waiver",
                remedy="each line has its remedy; to accept one: `plinth ops check waive LINE --until DATE --reason "
                "TEXT`",
            )


def _line(scope: CheckScope, check: Check, standing: Mapping[str, CheckWaiver]) -> CheckedLine:
    begun = time.monotonic()
    answer, remedy = _answer(scope, check)
    waiver = standing.get(check.name) if check.waivable and answer.outcome in WAIVED_FROM else None
    return CheckedLine(
        name=check.name,
        claim=check.claim,
        outcome="waived" if waiver else answer.outcome,
        evidence=answer.evidence,
        remedy=remedy,
        owner=scope.settings.owners.get(check.owner, check.owner),
        seconds=round(time.monotonic() - begun, 3),
        waiver=waiver.said if waiver else "",
        seen=answer.outcome if waiver else None,
    )


def _answer(scope: CheckScope, check: Check) -> tuple[CheckAnswer, str]:
    """What a line gives, and the remedy; a check that breaks has seen nothing. What broke it knows its own remedy: that
    of the line is for a claim that was looked at."""
    try:
        return check.examine(scope), check.remedy
    except TrustError as error:
        return failed(error.brief), error.remedy or check.remedy
    except PlinthError as error:
        return undetermined(error.brief), error.remedy or check.remedy
    except Exception as error:  # plug-ins too: one line must not hide the others
        return undetermined(f"the check itself failed: {type(error).__name__}: {error}"), check.remedy
