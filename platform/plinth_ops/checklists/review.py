"""All checks of all checklists, their evaluation, and signed waivers.

    check-waivers/00001.json    one waiver: a record of a signed log, signed as `policy`

Every check is evaluated, even if other checks fail. The newest waiver of a check is valid until its end date. The
outcome of a waived check stays visible with its evidence.
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


# A check and its answer, the settings of a workspace, and the scope of an evaluation.
#
# pass            the requirement is met; the evidence has the observation
# warn            it is met, but not for long, or only by a default
# fail            it is not met
# undetermined    it could not be observed: never a pass
# not applicable  the workspace has no subject for the check
# waived          it is not met, and the policy owner accepted that until a date, signed
#
# `checklists.yaml` of a workspace has the people for each role and the limits of some checks.

FILE = "checklists.yaml"


class ChecklistSettings(Frozen):
    """Settings in `checklists.yaml`. Without this file, roles have no people and the default limits apply."""

    owners: Mapping[str, str] = Field(default_factory=dict, description="Responsible person by role.")
    expiry_days: int = Field(
        30, ge=1, description="Warn this many days before the root of trust or the release head expires."
    )
    free_checkpoints: int = Field(3, ge=1, description="Minimum free disk space, as a number of checkpoints.")
    interval_factor: float = Field(
        3.0, gt=1, description="Maximum factor by which the checkpoint interval may differ from the optimal interval."
    )
    clock_s: float = Field(1.0, gt=0, description="Maximum difference between two clocks, in seconds.")
    backups: str = Field("", description="Folder or s3:// URL of the backups; empty if not configured.")
    backup_hours: float = Field(26.0, gt=0, description="Maximum age of the newest backup, in hours.")
    idle_hours: float = Field(
        8.0, gt=0, description="Hours without a request after which an MLflow server counts as idle."
    )


def settings_of(workspace: Workspace) -> ChecklistSettings:
    """Read the checklist settings of a workspace.

    Raises:
        RequestError: the file is invalid.
    """
    path = workspace.root / FILE
    return read_settings(path, ChecklistSettings, "has no valid checklist settings", "docs/checklists.md")


@dataclass(frozen=True)
class CheckScope:
    """Workspace and recipe for which checks are evaluated.

    Args:
        recipe: recipe of the workspace, or None if the workspace has none yet.
        recipe_path: file of the recipe.
        now: time of the evaluation in Unix seconds.
    """

    ctx: Context
    recipe: Recipe | None = None
    recipe_path: Path | None = None
    settings: ChecklistSettings = field(default_factory=ChecklistSettings)
    now: float = field(default_factory=time.time)

    @cached_property
    def runs(self) -> tuple[RunConfig, ...]:
        """Runs of the workspace, sorted by the time of the last event.

        Raises:
            TrainingError: a configuration is broken.
        """
        from plinth.training import config as configuration

        found = [configuration.load(path) for path in sorted(self.ctx.workspace.runs.glob("*/config.json"))]
        begun = [config for config in found if config.directory.events.exists()]
        return tuple(sorted(begun, key=lambda config: config.directory.events.stat().st_mtime))

    @property
    def newest_run(self) -> RunConfig | None:
        """Run of the workspace with the latest event."""
        return self.runs[-1] if self.runs else None


Outcome = Literal["pass", "warn", "fail", "undetermined", "not applicable", "waived"]
ChecklistName = Literal["preproduction", "readiness", "incident", "security"]
CHECKLISTS: Final[tuple[ChecklistName, ...]] = get_args(ChecklistName)

#: Question that each checklist answers.
PURPOSES: Final[dict[ChecklistName, str]] = {
    "preproduction": "Is this recipe ready for a long run?",
    "readiness": "Is this workspace ready for production and on-call?",
    "incident": "Is the workspace intact, and is there a version to roll back to?",
    "security": "Are the controls of SECURITY.md in place?",
}


class CheckAnswer(NamedTuple):
    """Outcome of a check and its evidence, such as a path, a number or a person."""

    outcome: Outcome
    evidence: str


def passed(evidence: str) -> CheckAnswer:
    """Return the outcome "pass": the requirement is met."""
    return CheckAnswer("pass", evidence)


def warned(evidence: str) -> CheckAnswer:
    """Return the outcome "warn": the requirement is met, but only for a short time or only by default."""
    return CheckAnswer("warn", evidence)


def failed(evidence: str) -> CheckAnswer:
    """Return the outcome "fail": the requirement is not met."""
    return CheckAnswer("fail", evidence)


def undetermined(evidence: str) -> CheckAnswer:
    """Return an undetermined outcome; `evidence` contains the reason."""
    return CheckAnswer("undetermined", evidence)


def not_applicable(evidence: str) -> CheckAnswer:
    """Return the outcome for a requirement that does not apply to this workspace."""
    return CheckAnswer("not applicable", evidence)


@dataclass(frozen=True)
class Check:
    """Check in a checklist.

    Args:
        name: lower-case letters, digits and `-`.
        claim: requirement, as a sentence.
        owner: responsible role; `checklists.yaml` names the person.
        lists: checklists that include the check.
        remedy: instruction for a failure.
        examine: function that returns the outcome. It only reads, takes a few seconds and starts no server. If it
            raises a trust error, the check fails; if it raises any other error, the outcome is undetermined.
        waivable: True if a signed waiver is accepted. False for checks that waivers themselves depend on.
    """

    name: str
    claim: str
    owner: str
    lists: tuple[ChecklistName, ...]
    remedy: str
    examine: Callable[[CheckScope], CheckAnswer]
    waivable: bool = True


class CheckedLine(Frozen):
    """Result of an evaluated check. `waiver` describes the waiver, if any; `seen` is the outcome without the waiver."""

    name: str
    claim: str
    outcome: Outcome
    evidence: str
    remedy: str
    owner: str
    seconds: float
    waiver: str = ""
    seen: Outcome | None = None


#: Minimum length of a reason, in characters.
SHORTEST_REASON = 10


class CheckWaiver(Frozen):
    """Signed waiver of a check, with reason, end time (UTC, ISO 8601) and signer."""

    check: str
    reason: str = Field(min_length=SHORTEST_REASON)
    until: str
    by: str
    at: str

    @property
    def said(self) -> str:
        """Description of the waiver as text."""
        return f"waived by {self.by} until {self.until}: {self.reason}"


def sign(ctx: Context, check: Check, until: str, reason: str, owner: str | None = None) -> CheckWaiver:
    """Sign a waiver of a check. It replaces an earlier waiver of the check.

    To remove a waiver, sign a waiver that ends now.

    Raises:
        RequestError: the check cannot be waived, the time has no time zone, or the reason is too short.
        SignatureError: this machine has no `policy` key, or the log of waivers fails verification.
    """
    problem = "" if check.waivable else "waivers depend on this check"
    try:
        time_of(until)
    except ValueError as error:
        problem = str(error)
    if len(reason.strip()) < SHORTEST_REASON:
        problem = f"the reason {reason!r} is too short"
    if problem:
        raise RequestError(
            f"cannot waive {check.name}",
            found=problem,
            expected="a check that can be waived, a time with a time zone, and a reason",
        )
    body = {"check": check.name, "reason": reason.strip(), "until": until}
    return _waiver(CHECK_WAIVERS.append(ctx, body, {"check": fingerprint.digest(check.name)}, POLICY, owner))


def standing(ctx: Context, now: float) -> Mapping[str, CheckWaiver]:
    """Return the waivers that are valid at a time (Unix seconds), by the name of the check.

    Raises:
        SignatureError: a record in the log of waivers was edited, removed or forged.
    """
    newest = {waiver.check: waiver for waiver in map(_waiver, CHECK_WAIVERS.records(ctx))}
    return {name: waiver for name, waiver in newest.items() if time_of(waiver.until).timestamp() > now}


def _waiver(record: LogRecord) -> CheckWaiver:
    try:
        found = CheckWaiver(by=", ".join(record.owners), at=record.at, **record.body)
        time_of(found.until)
    except (TypeError, ValueError, ValidationError) as error:
        raise SignatureError(f"record {record.number} of check-waivers/ is not a waiver", found=error) from error
    return found


#: Modules of this package with a table `CHECKS`, in the order in which to repair failures.
TABLES: Final = ("trust_checks", "place_checks", "run_checks", "release_checks")

#: Entry-point group for checks of other packages.
OTHERS: Final = Catalogue("plinth.checks", "check", Check, {})


def checks(name: ChecklistName | None = None) -> tuple[Check, ...]:
    """Return the checks of a checklist, or the checks of all checklists if `name` is None."""
    return tuple(check for check in _all() if name is None or name in check.lists)


def find(name: str) -> Check:
    """Return a check by name.

    Raises:
        RequestError: there is no such check.
    """
    known = {check.name: check for check in _all()}
    if name not in known:
        raise RequestError(
            f"no check is named {name!r}",
            remedy=nearest(name, known) or "list all checks: `plinth ops check list`",
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
    """Return an undetermined check in place of a plug-in check that cannot be loaded, so that the error is visible."""

    def examine(scope: CheckScope) -> CheckAnswer:
        return undetermined(why)

    return Check(name, f"the plug-in check {name} can be loaded", "platform", CHECKLISTS, "repair the package", examine)


#: Outcomes that a waiver covers.
WAIVED_FROM = ("warn", "fail", "undetermined")


def evaluate(scope: CheckScope, lines: Iterable[Check]) -> list[CheckedLine]:
    """Evaluate checks in order and return the results.

    If the log of waivers fails verification, no waiver is accepted.
    """
    try:
        waived = standing(scope.ctx, scope.now)
    except SignatureError:
        waived = {}
    wanted = tuple(lines)
    return [_line(scope, check, waived) for check in metered(scope.ctx.progress, "checks", wanted, len(wanted))]


def require(lines: Sequence[CheckedLine]) -> None:
    """Check that no check failed and that every check was determined.

    Raises:
        CheckFailedError: at least one check failed.
        MissingError: no check failed, but at least one check could not be determined.
    """
    for outcome, error in (("fail", CheckFailedError), ("undetermined", MissingError)):
        found = [line for line in lines if line.outcome == outcome]
        if found:
            raise error(
                f"{len(found)} of {len(lines)} checks {'failed' if outcome == 'fail' else 'could not be determined'}",
                found=", ".join(line.name for line in found),
                expected="pass, warn, not applicable, or a signed waiver",
                remedy="follow the remedy of each check, or accept it: "
                "`plinth ops check waive CHECK --until DATE --reason TEXT`",
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
    """Evaluate a check; return its answer and remedy.

    If the evaluation raises an error with its own remedy, that remedy is returned instead of the check's remedy.
    """
    try:
        return check.examine(scope), check.remedy
    except TrustError as error:
        return failed(error.brief), error.remedy or check.remedy
    except PlinthError as error:
        return undetermined(error.brief), error.remedy or check.remedy
    except Exception as error:  # also in plug-ins: one error must not hide the other checks
        return undetermined(f"the check raised an error: {type(error).__name__}: {error}"), check.remedy
