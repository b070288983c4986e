"""Evaluate a checklist: every line, whatever the others give, with its waiver and its time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from plinth.compute.progress import metered
from plinth.errors import CheckFailedError, MissingError, PlinthError, SignatureError, TrustError
from plinth.operation.checklists import waivers
from plinth.operation.checklists.check import Check, CheckAnswer, CheckedLine, failed, undetermined
from plinth.operation.checklists.scope import CheckScope
from plinth.operation.checklists.waivers import CheckWaiver

#: Outcomes that a waiver covers.
WAIVED_FROM = ("warn", "fail", "undetermined")


def evaluate(scope: CheckScope, lines: Iterable[Check]) -> list[CheckedLine]:
    """Every line, in order. A log of waivers that does not hold waives nothing."""
    try:
        standing = waivers.standing(scope.ctx, scope.now)
    except SignatureError:
        standing = {}
    wanted = tuple(lines)
    return [_line(scope, check, standing) for check in metered(scope.ctx.progress, "checks", wanted, len(wanted))]


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
