"""All lines of all checklists, their evaluation, and signed waivers.

    check-waivers/00001.json    one waiver: a record of a signed log, as `policy`

Every line is evaluated, whatever the others give. The newest waiver of a line counts until its date; what it covers
stays visible with its evidence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.progress import metered
from plinth.errors import CheckFailedError, MissingError, PlinthError, RequestError, SignatureError, TrustError
from plinth.extensions import Catalogue, nearest
from plinth.operation.workspace_files import read_settings
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth.trust.dsse import POLICY, time_of
from plinth.trust.log_record import LogRecord
from plinth_registry.audit_log import CHECK_WAIVERS

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe
    from plinth.training.config import RunConfig


# One line of a checklist and its answer, the settings of a workspace, and the scope that a line is evaluated over.
#
# pass            the claim holds; the evidence says what was seen
# warn            it holds, and will not for long, or holds by a default that was not chosen
# fail            it does not hold
# undetermined    it could not be seen: never a pass
# not applicable  the claim is about something that is not here
# waived          it does not hold, and the owner of the policy has accepted that until a date, signed
#
# `checklists.yaml` of a workspace has the people behind the roles and the bounds of some lines.

FILE = "checklists.yaml"


class ChecklistSettings(Frozen):
    """Without the file: roles without people, and these bounds."""

    owners: Mapping[str, str] = Field(default_factory=dict, description="By role: who answers for its lines.")
    expiry_days: int = Field(30, ge=1, description="Warn so many days before root or release head expire.")
    free_checkpoints: int = Field(3, ge=1, description="Free space for so many more checkpoints.")
    interval_factor: float = Field(
        3.0, gt=1, description="Times the best interval of saves, or the inverse, beyond which a line warns."
    )
    clock_s: float = Field(1.0, gt=0, description="Seconds that two clocks may differ by.")
    backups: str = Field("", description="Folder or s3:// place of the backups; empty: nobody has said where.")
    backup_hours: float = Field(26.0, gt=0, description="Hours that the newest backup may be old.")
    idle_hours: float = Field(8.0, gt=0, description="Hours without use after which a server runs for nobody.")


def settings_of(workspace: Workspace) -> ChecklistSettings:
    """The settings of a workspace.

    Raises:
        RequestError: the file has none that can be used.
    """
    path = workspace.root / FILE
    return read_settings(path, ChecklistSettings, "has no settings of checklists", "docs/checklists.md")


@dataclass(frozen=True)
class CheckScope:
    """A workspace with its recipe.

    Args:
        recipe: None where the workspace has none yet.
        recipe_path: its file.
        now: Unix seconds.
    """

    ctx: Context
    recipe: Recipe | None = None
    recipe_path: Path | None = None
    settings: ChecklistSettings = field(default_factory=ChecklistSettings)
    now: float = field(default_factory=time.time)

    @cached_property
    def runs(self) -> tuple[RunConfig, ...]:
        """The runs of the workspace, the newest timeline last.

        Raises:
            TrainingError: a configuration is broken.
        """
        from plinth.training import config as configuration

        found = [configuration.load(path) for path in sorted(self.ctx.workspace.runs.glob("*/config.json"))]
        begun = [config for config in found if config.directory.events.exists()]
        return tuple(sorted(begun, key=lambda config: config.directory.events.stat().st_mtime))

    @property
    def newest_run(self) -> RunConfig | None:
        """The run that was trained last."""
        return self.runs[-1] if self.runs else None


Outcome = Literal["pass", "warn", "fail", "undetermined", "not applicable", "waived"]
ChecklistName = Literal["preproduction", "readiness", "incident", "security"]
CHECKLISTS: Final[tuple[ChecklistName, ...]] = get_args(ChecklistName)

#: What each checklist answers.
PURPOSES: Final[dict[ChecklistName, str]] = {
    "preproduction": "May a long run of this recipe begin?",
    "readiness": "May this workspace be relied on, and called in the night for?",
    "incident": "What still holds, and what can be returned to?",
    "security": "Is what SECURITY.md rests on in place here?",
}


class CheckAnswer(NamedTuple):
    """What a line's function saw. `evidence` names it: a path, a number, a person."""

    outcome: Outcome
    evidence: str


def passed(evidence: str) -> CheckAnswer:
    """The claim holds."""
    return CheckAnswer("pass", evidence)


def warned(evidence: str) -> CheckAnswer:
    """It holds, and will not for long, or by a default."""
    return CheckAnswer("warn", evidence)


def failed(evidence: str) -> CheckAnswer:
    """It does not hold."""
    return CheckAnswer("fail", evidence)


def undetermined(evidence: str) -> CheckAnswer:
    """It could not be seen; `evidence` says why."""
    return CheckAnswer("undetermined", evidence)


def not_applicable(evidence: str) -> CheckAnswer:
    """Nothing here that the claim is about."""
    return CheckAnswer("not applicable", evidence)


@dataclass(frozen=True)
class Check:
    """One line.

    Args:
        name: lower-case letters, digits and `-`.
        claim: what has to hold, as a sentence.
        owner: a role that answers for it; `checklists.yaml` has the people.
        lists: checklists that have it.
        remedy: what to do where it does not hold.
        examine: gives outcome and evidence. It reads only, ends within seconds and starts no server. An error of trust
            is a fail; any other error leaves the line undetermined.
        waivable: whether a signed waiver counts. Not for what waivers themselves rest on.
    """

    name: str
    claim: str
    owner: str
    lists: tuple[ChecklistName, ...]
    remedy: str
    examine: Callable[[CheckScope], CheckAnswer]
    waivable: bool = True


class CheckedLine(Frozen):
    """A line, evaluated. `waiver` is who has waived it, until when and why; `seen` the outcome under the waiver."""

    name: str
    claim: str
    outcome: Outcome
    evidence: str
    remedy: str
    owner: str
    seconds: float
    waiver: str = ""
    seen: Outcome | None = None


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
