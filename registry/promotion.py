"""Promotion: a proved and approved candidate becomes a release, by stages; and the way back.

    candidate version --copy--> release version --record--> canary --record--> champion

Everything is verified again; no earlier result is reused. Each step can be repeated: after a crash between two of them,
calling again completes the promotion. Only signed records make a version a release and say which is champion; MLflow's
aliases are written after them (`mirror`).
"""

from __future__ import annotations

import contextlib
import io
from typing import Any, Final, Literal, NamedTuple

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, MissingError, PlinthError, RegistryError, SignatureError, TrustError
from plinth.provenance.statements import Chain
from plinth.recipe.recipe import Recipe
from plinth.trust.pin import Trust
from registry import (
    attestations,
    audit_log,
    evidence,
    gates,
    materialise,
    mirror,
    mlflow_client,
    policy,
    releases,
    signing,
    taint,
    verdict,
    waivers,
)
from registry import candidate as candidates
from registry.audit_log import AuditedAction
from registry.candidate import Candidate
from registry.clock import now
from registry.policy import SignedPolicy
from registry.registration import locked, show_gates
from registry.releases import ReleaseRecord
from registry.standing import Standing, standing
from registry.version_text import scores

Stage = Literal["canary", "champion"]
CANARY: Final = "canary"
CHAMPION: Final = "champion"


class Judgement(NamedTuple):
    """A candidate with its present evidence, the policy that governs, and the results of its gates.

    Without a signed policy there is one result: the gate `policy`, failed. `faults` are waivers that do not count.
    """

    candidate: Candidate
    evidence: gates.Evidence
    results: tuple[gates.GateResult, ...]
    policy: SignedPolicy | None
    faults: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return gates.open_gates(self.results)


def judge(ctx: Context, client: Any, recipe: Recipe, version: Any) -> Judgement:
    """A candidate and its gates, judged now and shown on its version in MLflow.

    Raises:
        SignatureError, LineageError: the version cannot be tied to a candidate.
    """
    found = candidates.read(ctx, version)
    gathered = evidence.gather(ctx, recipe, found, version.tags)
    judged = _judged(ctx, recipe, found, gathered)
    root, measured = Trust.of(ctx.workspace).root.title, _measured(ctx, found)
    show_gates(client, version, judged.results, root, judged.policy, measured)
    return judged


def _measured(ctx: Context, found: Candidate) -> str:
    """The scores of the evaluation that the candidate names, whatever somebody wrote on its page; empty without it."""
    try:
        return scores(found.checkpoint, ctx.refs.load(found.evaluation).stats.get("slices") or {})
    except PlinthError:
        return ""


def _judged(ctx: Context, recipe: Recipe, found: Candidate, gathered: gates.Evidence) -> Judgement:
    """Every gate of the signed policy that governs now; nothing else says what is asked."""
    try:
        signed = policy.current(ctx, recipe.required_release().name)
    except TrustError as error:
        reason = error.what if error.found is None else f"{error.what}: {error.found}"
        return Judgement(found, gathered, (gates.GateResult(name="policy", passed=False, reason=reason),), None)
    waived = waivers.of(ctx, signed, found.key)
    return Judgement(found, gathered, gates.evaluate(signed.policy, gathered, waived.said), signed, waived.faults)


def promote(
    ctx: Context, client: Any, recipe: Recipe, version: str, *, by: str, reason: str, stage: Stage = CHAMPION
) -> ReleaseRecord:
    """Make a candidate version a release and give it the stage's alias; repeating it changes nothing.

    Raises:
        SignatureError: a file or statement was changed; names it.
        LineageError: the chain is broken; names the first broken link.
        GateError: gates that did not pass, each with its reason.
        MissingError: no such candidate.
    """
    asked = AuditedAction("promote", f"{candidates.model_name(recipe)} version {version}", by, reason)
    with audit_log.audited(ctx, asked), locked(ctx):
        judged = judge(ctx, client, recipe, client.get_model_version(candidates.model_name(recipe), version))
        asked.subject = f"{judged.candidate.title} to {stage}"
        _write_verdict(ctx, recipe, judged)
        _require_open(judged)
        version = _ensure_copy(client, recipe, judged.candidate, _given_away(ctx, judged.candidate, recipe))
        facts: dict[str, Any] = {
            "goal": stage,
            "model": recipe.required_release().name,
            "version": version,
            "candidate": judged.candidate.subjects,
            "candidate_version": judged.candidate.version,
            "by": by,
            "reason": reason,
            "approvals": judged.evidence.approvals,
            "gates": {result.name: _said(result) for result in judged.results},
            "policy": judged.policy.digest if judged.policy else "",
        }
        record = _move(ctx, client, CANARY, facts)
        if stage == CHAMPION:
            # Read back as a consumer would, before it becomes champion.
            verify_release(ctx, recipe.required_release().name, version)
            record = _move(ctx, client, CHAMPION, facts)
        return record


def rollback(
    ctx: Context, client: Any, recipe: Recipe, *, by: str, reason: str, withdraw: bool = False
) -> ReleaseRecord:
    """Make the last good version before the champion champion again.

    Good is: was champion, verifies, and is not tainted.

    Args:
        withdraw: when there is no good version, leave the release without one instead of failing.

    Raises:
        MissingError: there is no champion.
        GateError: there is no good earlier version.
    """
    name = recipe.required_release().name
    with audit_log.audited(ctx, AuditedAction("rollback", name, by, reason)) as asked, locked(ctx):
        now_held = _standing(ctx, name)
        champion = now_held.champion
        if champion is None:
            mirror.repair(ctx, client, name)
            raise MissingError(f"{name} has no champion", remedy="promote a candidate first")
        good = _last_good(ctx, name, now_held)
        asked.subject = f"{name} version {champion} to {good or 'none'}"
        if good is None and not withdraw:
            raise GateError(
                f"{name} has no good version before {champion}",
                expected="an earlier champion that verifies and is not tainted",
                remedy="roll back with withdraw to leave the release without one, or promote another candidate",
            )
        about = record_of(ctx, name, good or champion).model_dump(include={"candidate", "candidate_version"})
        action = "rollback" if good else "withdrawn"
        moved = {"model": name, "version": good, "previous": champion, "by": by, "reason": reason, "at": now()}
        record = releases.append(ctx, action=action, goal=action, **moved, **about)
        mirror.note(client, name, champion, "rolled_back", f"{record.at} {by}: {reason}")
        mirror.repair(ctx, client, name)
        return record


def return_canary(
    ctx: Context, client: Any, recipe: Recipe, *, by: str, reason: str, version: str | None = None
) -> ReleaseRecord:
    """Take the canary's place away; the champion stays. Repeated after a crash, it completes what was begun.

    Args:
        version: of the release, whose place is meant; None: whichever is on trial.

    Raises:
        MissingError: there is no canary, and the last movement of the release gave none back; or it is another version.
    """
    name = recipe.required_release().name
    asked = AuditedAction("return", f"canary of {name}", by, reason)
    with audit_log.audited(ctx, asked), locked(ctx):
        records = releases.history(ctx, name)
        held = standing(records)
        if version is not None and held.canary not in (version, None):
            raise MissingError(f"{name} version {version} is not on trial", found=f"version {held.canary} is")
        if held.canary is not None:
            champion, about = held.champion, record_of(ctx, name, held.champion or held.canary)
            moved = {"model": name, "version": champion, "previous": held.canary, "by": by, "reason": reason}
            candidate = about.model_dump(include={"candidate", "candidate_version"})
            record = releases.append(ctx, action="returned", goal="returned", at=now(), **moved, **candidate)
        elif records and records[-1].action == "returned":
            record = records[-1]
        else:
            mirror.repair(ctx, client, name)
            raise MissingError(f"{name} has no canary", remedy="`plinth promote --stage canary` puts one on trial")
        asked.subject = f"{name} version {record.previous}"
        mirror.note(client, name, record.previous, "returned", f"{record.at} {record.by}: {record.reason}")
        mirror.repair(ctx, client, name)
        return record


def verify_release(ctx: Context, name: str, version: str) -> tuple[Candidate, Chain]:
    """A release version, proved: the signed history has it and has not taken it back, and its model is unchanged and
    untainted. MLflow is not asked.

    Raises:
        SignatureError, LineageError: changed or incomplete.
        GateError: the promoter never released it, or it was rolled back, or it is tainted.
    """
    record = record_of(ctx, name, version)
    if _standing(ctx, name).place(version) == "rolled back":
        raise GateError(f"{name} version {version} was rolled back", remedy=f"use {name}@champion")
    found = _candidate_of(ctx, record)
    chain = candidates.verify_candidate(ctx, found)
    marks = taint.marks_on(ctx, chain, candidates.evidence_of(ctx, found.checkpoint, found.evaluation))
    if marks:
        raise GateError(f"{name} version {version} is tainted", found="; ".join(marks), remedy="roll back")
    return found, chain


def settled(ctx: Context, name: str) -> frozenset[str]:
    """Keys of the candidates that reached their goal once or were given back: no sensor moves them again."""
    records = releases.history(ctx, name)
    back = {record.previous for record in records if record.action == "returned"}
    return frozenset(r.candidate["candidate"] for r in records if r.action == r.goal or r.version in back)


def _write_verdict(ctx: Context, recipe: Recipe, judged: Judgement) -> None:
    """The signed verdict beside the candidate, of a refused promotion, too."""
    if judged.policy is None:
        return
    found, release = judged.candidate, recipe.required_release().name
    read = [candidates.evidence_path(found.directory, found.key), *waivers.paths(ctx, release, found.key)]
    read += sorted((ctx.workspace.approvals / found.key[:12]).glob("*.json"))
    read += sorted(attestations.folder_of(ctx, found.checkpoint).glob("*.json"))
    signed = (signing.signature_path(found.directory), signing.slsa_path(found.directory))
    read += [path for path in signed if path.exists()]
    verdict.write(ctx, found, judged.policy, judged.results, read, judged.faults)


def _said(result: gates.GateResult) -> str:
    return f"{result.reason} ({result.waived})" if result.waived else result.reason


def _require_open(judged: Judgement) -> None:
    if judged.passed:
        return
    closed = gates.failed(judged.results)
    kinds: dict[str, type[TrustError]] = {"signature": SignatureError, "lineage": LineageError}
    raise kinds.get(closed[0].name, GateError)(
        f"{judged.candidate.model} version {judged.candidate.version} may not be promoted",
        found="; ".join(f"{result.name}: {result.reason}" for result in closed),
        expected="every gate passed",
        remedy="the gates are listed on its version in MLflow, each with its reason",
    )


def _given_away(ctx: Context, found: Candidate, recipe: Recipe) -> frozenset[str]:
    """Numbers of versions that the history gave to other candidates.

    MLflow counts anew when somebody deletes a registered model; a number never names a second model here.
    """
    records = releases.history(ctx, recipe.required_release().name)
    return frozenset(one.version for one in records if one.version and one.candidate != found.subjects)


def _ensure_copy(client: Any, recipe: Recipe, found: Candidate, taken: frozenset[str]) -> str:
    """The release version copied from a candidate version, copied unless it is there; its number is none of `taken`."""
    name, source = recipe.required_release().name, mirror.source_of(found.model, found.version)
    mlflow_client.ensure_model(client, name, f"{recipe.description or name}: written by the promoter only.")
    for version in mlflow_client.versions(client, name):
        if version.source == source and str(version.version) not in taken:
            return str(version.version)
    for _ in range(len(taken) + 1):
        # MLflow prints to stderr here that a model "already exists".
        with contextlib.redirect_stderr(io.StringIO()):
            version = str(client.copy_model_version(source, name).version)
        if version not in taken:
            return version
    raise RegistryError(f"MLflow gives {name} numbers of versions that others have", found=version)


def _move(ctx: Context, client: Any, stage: Stage, facts: dict[str, Any]) -> ReleaseRecord:
    """Record that a version takes a stage's place, unless it stands there or further already; MLflow follows."""
    name, version = facts["model"], facts["version"]
    held = _standing(ctx, name)
    if version in (held.champion, held.canary if stage == CANARY else None):
        last = record_of(ctx, name, version)
    else:
        previous = held.champion
        last = releases.append(ctx, action=stage, previous=previous, at=now(), **facts)
        mirror.note(client, name, version, f"release.{stage}", f"{now()} {facts['by']}: {facts['reason']}")
    mirror.repair(ctx, client, name)
    return last


def _standing(ctx: Context, name: str) -> Standing:
    return standing(releases.history(ctx, name))


def _last_good(ctx: Context, name: str, held: Standing) -> str | None:
    """The newest version that was champion before the present one, verifies, and is not tainted."""
    for version in reversed(held.champions[:-1]):
        try:
            verify_release(ctx, name, version)
        except TrustError:
            continue
        return version
    return None


def _candidate_of(ctx: Context, record: ReleaseRecord) -> Candidate:
    """The candidate that a record released, from its signed facts; they must be about what the record names."""
    directory = materialise.path_of(ctx, record.candidate["checkpoint"])
    model, version = f"{record.model}{candidates.SUFFIX}", str(record.candidate_version)
    found = candidates.stated(ctx, model, version, directory, record.candidate["candidate"])
    if found.subjects != record.candidate:
        raise GateError(
            f"{record.model} version {record.version} is not what was released under that number",
            found=found.subjects,
            expected=record.candidate,
            remedy="it was replaced: roll back, and promote again",
        )
    return found


def record_of(ctx: Context, name: str, version: str) -> ReleaseRecord:
    """The newest record that put a version somewhere.

    Raises:
        GateError: the promoter never released it.
    """
    for record in reversed(releases.history(ctx, name)):
        if record.version == version:
            return record
    raise never_released(name, version)


def never_released(name: str, version: str) -> GateError:
    """The refusal of a version that no signed record names."""
    return GateError(
        f"{name} version {version} was never released",
        found="no record signed by the promoter",
        expected="a record in releases/",
        remedy="do not use it; promote its candidate",
    )
