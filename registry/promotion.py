"""Promotion: a proved and approved candidate becomes a release, by stages; and the way back.

    candidate version --copy--> release version --alias--> canary --alias--> champion

Everything is verified again; no earlier result is reused. Each step can be repeated: after a crash between two of them,
calling again completes the promotion. The previous champion keeps the alias `previous`. Only signed release records
make a version a release.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any, Final, Literal, NamedTuple

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, MissingError, SignatureError, TrustError
from plinth.provenance.statements import Chain
from plinth.recipe.recipe import Recipe
from registry import candidate as candidates
from registry import evidence, gates, mlflow_client, releases, taint
from registry.candidate import Candidate
from registry.clock import now
from registry.registration import locked, show_gates
from registry.releases import ReleaseRecord

Stage = Literal["canary", "champion"]
CANARY: Final = "canary"
CHAMPION: Final = "champion"
PREVIOUS: Final = "previous"


class Judgement(NamedTuple):
    """A candidate with its present evidence and the results of its gates."""

    candidate: Candidate
    evidence: gates.Evidence
    results: tuple[gates.GateResult, ...]

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
    results = gates.evaluate(recipe.required_release().gates, gathered)
    show_gates(client, version.name, version.version, results, version.tags)
    return Judgement(found, gathered, results)


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
    with locked(ctx):
        judged = judge(ctx, client, recipe, client.get_model_version(candidates.model_name(recipe), version))
        _require_open(judged)
        version = _ensure_copy(client, recipe, judged.candidate)
        facts: dict[str, Any] = {
            "goal": stage,
            "model": recipe.required_release().name,
            "version": version,
            "candidate": judged.candidate.subjects,
            "candidate_version": judged.candidate.version,
            "by": by,
            "reason": reason,
            "approvals": judged.evidence.approvals,
            "gates": {result.name: result.reason for result in judged.results},
        }
        record = _move(ctx, client, CANARY, facts)
        if stage == CHAMPION:
            # Read back as a consumer would, before it becomes champion.
            verify_release(ctx, client, recipe.required_release().name, version)
            record = _move(ctx, client, CHAMPION, facts)
        return record


def rollback(
    ctx: Context, client: Any, recipe: Recipe, *, by: str, reason: str, withdraw: bool = False
) -> ReleaseRecord:
    """Give the champion's alias back to the last good version before it.

    Good is: was champion, verifies, and is not tainted.

    Args:
        withdraw: when there is no good version, take the alias away instead of failing.

    Raises:
        MissingError: there is no champion.
        GateError: there is no good earlier version.
    """
    name = recipe.required_release().name
    with locked(ctx):
        champion = alias(client, name, CHAMPION)
        last = next(reversed(releases.history(ctx, name)), None)
        if last is not None and last.action in ("rollback", "withdrawn") and champion == last.previous:
            # Recorded, then interrupted: finish that one instead of going back twice.
            return _go_back(ctx, client, last)
        if champion is None:
            raise MissingError(f"{name} has no champion", remedy="promote a candidate first")
        good = _last_good(ctx, client, name, champion)
        if good is None and not withdraw:
            raise GateError(
                f"{name} has no good version before {champion}",
                expected="an earlier champion that verifies and is not tainted",
                remedy="roll back with withdraw to take the alias away, or promote another candidate",
            )
        about = _record_of(ctx, name, good or champion).model_dump(include={"candidate", "candidate_version"})
        action = "rollback" if good else "withdrawn"
        moved = {"model": name, "version": good, "previous": champion, "by": by, "reason": reason, "at": now()}
        return _go_back(ctx, client, releases.append(ctx, action=action, goal=action, **moved, **about))


def verify_release(ctx: Context, client: Any, name: str, version: str) -> tuple[Candidate, Chain]:
    """A release version, proved: signed history has it, and its model is unchanged and untainted.

    Raises:
        SignatureError, LineageError: changed or incomplete.
        GateError: the promoter never released it, or it is tainted.
    """
    copied = client.get_model_version(name, version)
    source_name, _, source_version = copied.source.removeprefix("models:/").rpartition("/")
    found = candidates.read(ctx, client.get_model_version(source_name, source_version))
    record = _record_of(ctx, name, version)
    if record.candidate != found.subjects:
        raise GateError(
            f"{name} version {version} is not what was released under that number",
            found=found.subjects,
            expected=record.candidate,
            remedy="it was replaced: roll back, and promote again",
        )
    chain = candidates.verify_candidate(ctx, found)
    marks = taint.marks_on(ctx, chain)
    if marks:
        raise GateError(f"{name} version {version} is tainted", found="; ".join(marks), remedy="roll back")
    return found, chain


def alias(client: Any, name: str, which: str) -> str | None:
    """The version that an alias points to, or None."""
    model = mlflow_client.optional(lambda: client.get_registered_model(name))
    version = None if model is None else model.aliases.get(which)
    return None if version is None else str(version)


def settled(ctx: Context, name: str) -> frozenset[str]:
    """Keys of the candidates that reached their goal once: no sensor moves them again, also after a rollback."""
    return frozenset(r.candidate["candidate"] for r in releases.history(ctx, name) if r.action == r.goal)


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


def _ensure_copy(client: Any, recipe: Recipe, found: Candidate) -> str:
    """The release version copied from a candidate version, copied unless it is there."""
    name, source = recipe.required_release().name, f"models:/{found.model}/{found.version}"
    mlflow_client.ensure_model(client, name, f"{recipe.description or name}: written by the promoter only.")
    for version in mlflow_client.versions(client, name):
        if version.source == source:
            return str(version.version)
    # MLflow prints to stderr here that a model "already exists".
    with contextlib.redirect_stderr(io.StringIO()):
        return str(client.copy_model_version(source, name).version)


def _move(ctx: Context, client: Any, stage: Stage, facts: dict[str, Any]) -> ReleaseRecord:
    """Point a stage's alias to a version and record it, unless it stands there or further already."""
    name, version = facts["model"], facts["version"]
    last = next((record for record in reversed(releases.history(ctx, name)) if record.version == version), None)
    if last is not None and last.action in (stage, CHAMPION) and alias(client, name, last.action) == version:
        return last
    current = alias(client, name, CHAMPION)
    previous = current if current != version else alias(client, name, PREVIOUS)
    if stage == CANARY:
        _point(client, name, CANARY, version)
    else:
        _point(client, name, PREVIOUS, previous)
        _point(client, name, CHAMPION, version)
        _point(client, name, CANARY, None)
    client.set_model_version_tag(name, version, f"release.{stage}", f"{now()} {facts['by']}: {facts['reason']}")
    return releases.append(ctx, action=stage, previous=previous, at=now(), **facts)


def _go_back(ctx: Context, client: Any, record: ReleaseRecord) -> ReleaseRecord:
    """Execute a recorded rollback; can be repeated."""
    name, bad, good = record.model, record.previous, record.version
    _point(client, name, PREVIOUS, _last_good(ctx, client, name, good) if good else None)
    if alias(client, name, CANARY) == bad:
        _point(client, name, CANARY, None)
    client.set_model_version_tag(name, bad, "rolled_back", f"{record.at} {record.by}: {record.reason}")
    _point(client, name, CHAMPION, good)
    return record


def _point(client: Any, name: str, which: str, version: str | None) -> None:
    if version is not None:
        client.set_registered_model_alias(name, which, version)
    elif alias(client, name, which) is not None:
        client.delete_registered_model_alias(name, which)


def _last_good(ctx: Context, client: Any, name: str, before: str) -> str | None:
    """The newest version that was champion before `before`, was not rolled back, verifies, and is not tainted."""
    champions: list[str] = []
    for record in releases.history(ctx, name):
        if record.action == CHAMPION and record.version is not None:
            champions.append(record.version)
        elif record.action in ("rollback", "withdrawn"):
            while champions and champions[-1] != record.version:
                champions.pop()
    earlier = champions[: champions.index(before)] if before in champions else champions
    for version in reversed(earlier):
        try:
            verify_release(ctx, client, name, version)
        except TrustError:
            continue
        return version
    return None


def _record_of(ctx: Context, name: str, version: str) -> ReleaseRecord:
    for record in reversed(releases.history(ctx, name)):
        if record.version == version:
            return record
    raise GateError(
        f"{name} version {version} was never released",
        found="no record signed by the promoter",
        expected="a record in releases/",
        remedy="do not use it; promote its candidate",
    )
