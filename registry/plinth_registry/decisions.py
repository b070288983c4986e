"""Unreleased candidates, and decisions about candidates and releases.

This module evaluates current gates, approvals and ready candidates, and connects promotion, rollback and withdrawal to
MLflow. Taints (`freeze`) and functions for assets and sensors (`api`) do not belong here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import GateError, MissingError, TrustError
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth_registry import (
    approval,
    audit_log,
    candidate,
    incidents,
    judgement,
    policy,
    promotion,
    registration,
    releases,
    verified,
)
from plinth_registry.audit_log import AuditedAction
from plinth_registry.candidate import Candidate
from plinth_registry.gates import GateResult, blocking, is_open
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.origin import approvals, not_counted
from plinth_registry.gates.settings import APPROVALS, ApprovalPolicy
from plinth_registry.mlflow import connection
from plinth_registry.mlflow import settings as login
from plinth_registry.promotion import CANARY, CHAMPION, Stage
from plinth_registry.registration import ANSWER
from plinth_registry.releases import ReleaseHistory, ReleaseRecord


class CandidateStatus(Frozen):
    """Candidate with the current results of its gates."""

    model: str
    version: str
    checkpoint: str
    gates: tuple[GateResult, ...]
    error: str | None = None

    @property
    def ready(self) -> bool:
        """True if no gate blocks promotion, including the gate of approvals."""
        return self.error is None and is_open(self.gates)

    @property
    def refusal(self) -> str:
        """Reason why the candidate cannot be promoted."""
        return self.error or "; ".join(f"{gate.name}: {gate.reason}" for gate in blocking(self.gates))

    @property
    def waits_for_approval(self) -> bool:
        """True if only approvals are missing, and no one has rejected the candidate."""
        held = blocking(self.gates)
        return self.error is None and [(gate.name, gate.state) for gate in held] == [(APPROVALS, "pending")]


@connection.named("judge the candidates")
def pending(ctx: Context, recipe: Recipe) -> tuple[CandidateStatus, ...]:
    """Return the candidates that have not reached their final stage, oldest first, with gates evaluated now."""
    client = connection.connect(ctx.workspace)
    return tuple(_status(ctx, client, recipe, version) for version in _unsettled(ctx, client, recipe))


@connection.named("judge a candidate")
def status(ctx: Context, recipe: Recipe, version: str | None) -> CandidateStatus:
    """Return a candidate version with its gates, evaluated now, even if the version was already promoted or rolled
    back. If `version` is None, the newest version is used.

    Raises:
        MissingError: there is no such candidate.
    """
    return _status(ctx, None, recipe, version_of(connection.connect(ctx.workspace), recipe, version))


@connection.named("read a candidate")
def find_candidate(ctx: Context, recipe: Recipe, version: str | None) -> Candidate:
    """Return a candidate version after verifying its signature and lineage. If `version` is None, the newest version is
    used.

    Raises:
        MissingError: there is no such candidate.
        SignatureError, LineageError: a file, a statement or the chain was changed.
    """
    found = candidate.read(ctx, version_of(connection.connect(ctx.workspace), recipe, version))
    candidate.verify_candidate(ctx, found)
    return found


@connection.named("read a candidate")
def approve(
    ctx: Context,
    recipe: Recipe,
    version: str | None,
    by: str,
    reason: str,
    decision: approval.Decision = "approved",
) -> Path:
    """Sign a person's decision about a candidate version, and return the statement's path. If `version` is None, the
    newest version is used.

    Raises:
        GateError: no gate policy is signed, or the current policy does not let this person approve.
        MissingError: there is no such candidate.
        SignatureError: the candidate or the person's key cannot be used.
    """
    action, person = "approve" if decision == "approved" else "reject", by.strip()
    with audit_log.audited(ctx, AuditedAction(action, _named(recipe, version), person, reason, owner=person)) as asked:
        signed = policy.current(ctx, recipe.required_release().name)
        allowed = signed.policy.approvals.approvers
        if allowed and person not in allowed:
            raise GateError(
                f"{by} may not approve {recipe.required_release().name}", expected=f"one of {', '.join(allowed)}"
            )
        client = connection.connect(ctx.workspace)
        found = candidate.read(ctx, version_of(client, recipe, version))
        asked.subject = found.title
        candidate.verify_candidate(ctx, found)
        return approval.sign(ctx, found, by, reason, decision, signed.digest)


@connection.named("read a candidate")
def waive(
    ctx: Context, recipe: Recipe, version: str | None, gate: str, reason: str, expires: str, owner: str | None = None
) -> judgement.Waiver:
    """Sign a waiver that lets a candidate version pass one gate until a date, with the key of the role `policy`. If
    `version` is None, the newest version is used.

    Raises:
        GateError: no policy is signed, or this gate cannot be waived; see `judgement.sign_waiver`.
        MissingError: there is no such candidate.
        SignatureError: the candidate or the key cannot be used.
    """
    subject = f"{gate} of {_named(recipe, version)} until {expires}"
    with audit_log.audited(ctx, AuditedAction("waive", subject, owner or "", reason, owner)) as asked:
        found = candidate.read(ctx, version_of(connection.connect(ctx.workspace), recipe, version))
        asked.subject = f"{gate} of {found.title} until {expires}"
        governing = policy.current(ctx, recipe.required_release().name)
        return judgement.sign_waiver(ctx, governing, gate, found.key, reason, expires, owner)


@connection.named("judge the approved candidates")
def ready(ctx: Context, recipe: Recipe) -> tuple[CandidateStatus, ...]:
    """Return the candidates that can be promoted now. Weights are read only for approved candidates.

    An approved candidate that a gate blocks is recorded in the audit log, once per reason. If the policy requires a
    canary trial, candidates wait until the trial of the current canary has ended. While an incident is open, all
    candidates wait. If approval tags do not count, the reason is written on their version in MLflow.
    """
    client = connection.connect(ctx.workspace)
    approved = [version for version in _unsettled(ctx, client, recipe) if _is_approved(ctx, client, recipe, version)]
    if next_stage(ctx, recipe) is None or incidents.open_ones(ctx):
        return ()
    judged = [_status(ctx, client, recipe, version, whole=True) for version in approved]
    for refused in (status for status in judged if not status.ready):
        asked = AuditedAction("promote", _named(recipe, refused.version), "approved candidates", "it was approved")
        audit_log.record(ctx, asked, refused.refusal, once=True)
    return tuple(status for status in judged if status.ready)


def next_step(ctx: Context, recipe: Recipe, status: CandidateStatus) -> str:
    """Describe the next step for a candidate, with a command: the gate that blocks it, the event for which it waits, or
    the person who promotes it."""
    if status.error is not None:
        return "find the first broken link with `plinth verify candidate`"
    history = releases.history(ctx, recipe.required_release().name)
    if done := [one.version for one in history if one.candidate_version == status.version and one.version]:
        return f"none; released as version {done[0]}"
    if held := blocking(status.gates):
        names = ", ".join(gate.name for gate in held)
        return f"blocked by {names}: {judgement.remedy(status.version, status.gates)}"
    if frozen := incidents.open_ones(ctx):
        return f"promotions are frozen by incident {frozen[0].number}: `plinth ops incident show`"
    stage = next_stage(ctx, recipe)
    if stage is None:
        return "the promotion waits until the current canary is promoted or withdrawn: `plinth release canary`"
    promote = f"`plinth release promote {status.version} --stage {stage} --by PERSON --reason TEXT`"
    sensor = f"the approval sensor promotes the candidate to {stage} while `plinth up` runs"
    return f"{sensor}; to promote now: {promote}"


def next_stage(ctx: Context, recipe: Recipe) -> Stage | None:
    """Return the stage to which an approved candidate is promoted next, or None while the trial of another canary is
    running."""
    name = recipe.required_release().name
    try:
        governing = policy.current(ctx, name)
    except GateError:  # without a signed policy no gate passes
        return CHAMPION
    held = releases.history(ctx, name).standing
    if governing.policy.trial.promote == "at once" or held.champion is None:
        return CHAMPION
    return CANARY if held.canary is None else None


def _unsettled(ctx: Context, client: Any, recipe: Recipe) -> list[Any]:
    done = verified.settled(ctx, recipe.required_release().name)
    versions = connection.versions(client, candidate.model_name(recipe))
    return [version for version in versions if version.tags.get("candidate") not in done]


def _is_approved(ctx: Context, client: Any, recipe: Recipe, version: Any) -> bool:
    """Return True if approvals do not block a candidate version. If the version has approval tags that do not count,
    write the reason on it."""
    try:
        found, governing = candidate.read(ctx, version), policy.current(ctx, recipe.required_release().name)
        decisions, faults = approval.collect(ctx, found, version.tags, governing.digest)
    except TrustError:
        return False
    known = Evidence(approvals=decisions, approval_faults=faults, requested_by=found.facts.requested_by)
    asked = governing.policy.approvals
    blocks = approvals(asked, known).blocks
    _answer(client, version, _how_to_decide(ctx, version, asked, known) if blocks else "")
    return not blocks


def _how_to_decide(ctx: Context, version: Any, asked: ApprovalPolicy, known: Evidence) -> str:
    """Return a text with the reason why a version's approval tags do not count, and the command to use. If all tags
    count, return an empty string."""
    wanted = {value.strip().lower() for tag, value in version.tags.items() if approval.TAG.fullmatch(tag)} - {""}
    uncounted = not_counted(asked, known)
    if not (wanted and uncounted):
        return ""
    reject = " --reject" if wanted == {"rejected"} else ""
    sign = f"To sign the decision, run `plinth approve {version.version}{reject} --by PERSON --reason TEXT`."
    if login.load(ctx.workspace) is None:
        other = "MLflow authentication is disabled, so anyone can set a tag; enable it with `plinth ops people login`."
    elif "tag" in asked.accepted:
        other = "Alternatively, log in to MLflow and set the tags again."
    else:
        other = "The gate policy does not accept approvals by tags."
    return f"{'; '.join(uncounted)}. {sign} {other}"


def _answer(client: Any, version: Any, text: str) -> None:
    """Show the reason why approval tags do not count on a version in MLflow. If all tags count, remove the text.
    Nothing is written if the text is unchanged."""
    if version.tags.get(ANSWER, "") == text:
        return
    if text:
        client.set_model_version_tag(version.name, version.version, ANSWER, text)
    else:
        client.delete_model_version_tag(version.name, version.version, ANSWER)
    version.tags[ANSWER] = text  # for later descriptions of this version in the same tick
    registration.describe(client, version, version.tags)


def _status(ctx: Context, client: Any | None, recipe: Recipe, version: Any, *, whole: bool = False) -> CandidateStatus:
    """Return the status of a candidate version. If the version cannot be read, its status contains the error, so that
    other versions are still shown."""
    checkpoint = str(version.tags.get("checkpoint", ""))
    try:
        judged = judgement.judge(ctx, client, recipe, version, whole=whole)
    except TrustError as error:
        return CandidateStatus(
            model=version.name, version=str(version.version), checkpoint=checkpoint, gates=(), error=str(error)
        )
    return CandidateStatus(
        model=version.name, version=str(version.version), checkpoint=checkpoint, gates=judged.results
    )


def _named(recipe: Recipe, version: str | None) -> str:
    """Return the name of a candidate for a message, before the candidate is looked up."""
    return f"{candidate.model_name(recipe)} version {version or 'newest'}"


def version_of(client: Any, recipe: Recipe, version: str | None) -> Any:
    """Return a candidate's version in MLflow. If `version` is None, the newest version is used.

    Raises:
        MissingError: there is no such candidate.
    """
    name = candidate.model_name(recipe)
    found = connection.versions(client, name)
    wanted = [each for each in found if version is None or str(each.version) == str(version)]
    if not wanted:
        raise MissingError(
            f"no candidate {version or ''} of {recipe.required_release().name}".replace("  ", " "),
            found=f"{len(found)} versions of {name}",
            remedy="train and register a candidate with `plinth run`",
        )
    return wanted[-1]


@connection.named("promote a candidate")
def promote(
    ctx: Context, recipe: Recipe, version: str | None, by: str, reason: str, stage: Stage = CHAMPION
) -> ReleaseRecord:
    """Promote a candidate version after verifying everything again. If `version` is None, the newest version is used.

    Raises:
        SignatureError, LineageError: a file, a statement or the chain was changed.
        GateError: gates did not pass, or an incident is open.
        MissingError: there is no such candidate.
    """
    client = connection.connect(ctx.workspace)
    found = version_of(client, recipe, version)
    return promotion.promote(ctx, client, recipe, str(found.version), by=by, reason=reason, stage=stage)


@connection.named("roll back")
def rollback(ctx: Context, recipe: Recipe, by: str, reason: str, withdraw: bool = False) -> ReleaseRecord:
    """Roll the release back to the most recent good champion; see `promotion.rollback`."""
    return promotion.rollback(ctx, connection.connect(ctx.workspace), recipe, by=by, reason=reason, withdraw=withdraw)


@connection.named("withdraw a canary")
def return_canary(ctx: Context, recipe: Recipe, by: str, reason: str) -> ReleaseRecord:
    """Roll back the canary of the release; see `promotion.return_canary`."""
    return promotion.return_canary(ctx, connection.connect(ctx.workspace), recipe, by=by, reason=reason)


@connection.named("repair MLflow's aliases")
def repair(ctx: Context, recipe: Recipe, *, expired: bool = False) -> tuple[str, ...]:
    """Sync MLflow's aliases from the signed history, and re-sign the history's head if it is old.

    Return one sentence per difference: an alias or a version was set by hand, or a promotion was interrupted.

    Args:
        expired: True to also re-sign an expired head; see `releases.refresh`.

    Raises:
        SignatureError: the history does not verify.
    """
    name = recipe.required_release().name
    if not releases.history(ctx, name, expired=expired):
        return ()
    with registration.locked(ctx):
        releases.refresh(ctx, expired=expired)
        return promotion.repair(ctx, connection.connect(ctx.workspace), name)


def missing_in_mlflow(ctx: Context, recipe: Recipe) -> tuple[str, ...]:
    """Return the versions in the signed history that MLflow still lacks after `repair`.

    Raises:
        SignatureError: the history does not verify.
    """
    name = recipe.required_release().name
    return (
        promotion.missing_in_mlflow(ctx, connection.connect(ctx.workspace), name) if releases.history(ctx, name) else ()
    )


def history(ctx: Context, recipe: Recipe) -> ReleaseHistory:
    """Return the signed records of every promotion and rollback of a release, oldest first."""
    return releases.history(ctx, recipe.required_release().name)
