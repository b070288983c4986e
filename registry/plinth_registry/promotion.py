"""Promotion of a verified and approved candidate to a release, in stages, and rollback.

    candidate version --copy--> release version --record--> canary --record--> champion

Everything is verified again; no earlier result is reused. Each step can be repeated: after a crash between two steps,
calling the function again completes the promotion. Only signed records make a version a release or champion; MLflow's
aliases follow these records (`mirror`).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal

from plinth.compute.context import Context
from plinth.errors import GateError, MissingError, RegistryError, TrustError
from plinth.recipe.recipe import Recipe
from plinth.trust.dsse import now
from plinth_registry import audit_log, incidents, judgement, releases, verified
from plinth_registry import candidate as candidates
from plinth_registry.audit_log import AuditedAction
from plinth_registry.candidate import Candidate
from plinth_registry.mlflow import connection
from plinth_registry.papers import model_card
from plinth_registry.registration import describe, locked
from plinth_registry.releases import ReleaseRecord

Stage = Literal["canary", "champion"]
CANARY: Final = "canary"
CHAMPION: Final = "champion"


def promote(
    ctx: Context, client: Any, recipe: Recipe, version: str, *, by: str, reason: str, stage: Stage = CHAMPION
) -> ReleaseRecord:
    """Copy a candidate version into the release, and move the stage's alias to it. A repeated call changes nothing.

    Raises:
        SignatureError: a file or statement was changed; the error names it.
        LineageError: the chain is broken; the error names the first broken link.
        GateError: gates did not pass (each is listed with its reason), or an incident is open.
        MissingError: there is no such candidate.
    """
    asked = AuditedAction("promote", f"{candidates.model_name(recipe)} version {version}", by, reason)
    with _decided(ctx, asked):
        incidents.require_none(ctx)
        judged = judgement.judge(ctx, client, recipe, client.get_model_version(candidates.model_name(recipe), version))
        asked.subject = f"{judged.candidate.title} to {stage}"
        judgement.write_verdict(ctx, recipe, judged)
        judgement.require_open(judged)
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
            "gates": {result.name: result.text for result in judged.results},
            "policy": judged.policy.digest if judged.policy else "",
        }
        record = _move(ctx, client, CANARY, facts)
        if stage == CHAMPION:
            # Verify the version as a consumer would, before it becomes champion.
            verified.verify_release(ctx, recipe.required_release().name, version)
            record = _move(ctx, client, CHAMPION, facts)
        show_card(ctx, client, record.model, version)
        return record


def rollback(
    ctx: Context, client: Any, recipe: Recipe, *, by: str, reason: str, withdraw: bool = False
) -> ReleaseRecord:
    """Roll the release back to the most recent good champion.

    A good version was champion, verifies, and is not tainted.

    Args:
        withdraw: True to leave the release without a version if there is no good version, instead of raising an error.

    Raises:
        MissingError: there is no champion.
        GateError: there is no good earlier version.
    """
    name = recipe.required_release().name
    with _decided(ctx, AuditedAction("rollback", name, by, reason)) as asked:
        history = releases.history(ctx, name)
        champion = history.standing.champion
        if champion is None:
            repair(ctx, client, name)
            raise MissingError(f"{name} has no champion", remedy="promote a candidate first")
        good = verified.last_good(ctx, name, history.standing)
        asked.subject = f"{name} version {champion} to {good or 'none'}"
        if good is None and not withdraw:
            raise GateError(
                f"{name} has no good version before {champion}",
                expected="an earlier champion that verifies and is not tainted",
                remedy="use --withdraw to leave the release without a version, or promote another candidate",
            )
        about = history.releasing(name, good or champion).model_dump(include={"candidate", "candidate_version"})
        action = "rollback" if good else "withdrawn"
        moved = {"model": name, "version": good, "previous": champion, "by": by, "reason": reason, "at": now()}
        record = releases.append(ctx, action=action, goal=action, **moved, **about)
        note(client, name, champion, "rolled_back", f"{record.at} {by}: {reason}")
        show_card(ctx, client, name, champion)
        repair(ctx, client, name)
        return record


def return_canary(
    ctx: Context, client: Any, recipe: Recipe, *, by: str, reason: str, version: str | None = None
) -> ReleaseRecord:
    """Roll back the canary, while the champion stays. After a crash, a second call completes the rollback.

    Args:
        version: version of the release that must be the canary, or None for any version.

    Raises:
        MissingError: another version is the canary, or there is no canary and the last release change did not roll
            back a canary.
    """
    name = recipe.required_release().name
    asked = AuditedAction("return", f"canary of {name}", by, reason)
    with _decided(ctx, asked):
        records = releases.history(ctx, name)
        held = records.standing
        if version is not None and held.canary not in (version, None):
            raise MissingError(f"{name} version {version} is not the canary", found=f"canary: version {held.canary}")
        if held.canary is not None:
            champion, about = held.champion, records.releasing(name, held.champion or held.canary)
            moved = {"model": name, "version": champion, "previous": held.canary, "by": by, "reason": reason}
            candidate = about.model_dump(include={"candidate", "candidate_version"})
            record = releases.append(ctx, action="returned", goal="returned", at=now(), **moved, **candidate)
        elif records and records[-1].action == "returned":
            record = records[-1]
        else:
            repair(ctx, client, name)
            remedy = "start a canary with `plinth release promote --stage canary --by PERSON --reason TEXT`"
            raise MissingError(f"{name} has no canary", remedy=remedy)
        asked.subject = f"{name} version {record.previous}"
        note(client, name, record.previous, "returned", f"{record.at} {record.by}: {record.reason}")
        show_card(ctx, client, name, str(record.previous))
        repair(ctx, client, name)
        return record


@contextmanager
def _decided(ctx: Context, asked: AuditedAction) -> Iterator[AuditedAction]:
    """Record a release change in the audit log, and sign a head of the release history that names the new entry."""
    with locked(ctx):
        with audit_log.audited(ctx, asked):
            yield asked
        releases.refresh(ctx)


def _given_away(ctx: Context, found: Candidate, recipe: Recipe) -> frozenset[str]:
    """Return the version numbers that the signed history assigns to other candidates.

    MLflow restarts numbering if a registered model is deleted. Here, a number is never used for a second model.
    """
    records = releases.history(ctx, recipe.required_release().name)
    return frozenset(one.version for one in records if one.version and one.candidate != found.subjects)


def _ensure_copy(client: Any, recipe: Recipe, found: Candidate, taken: frozenset[str]) -> str:
    """Return the release version that is a copy of a candidate version. If there is no copy, create one. Version
    numbers in `taken` are skipped."""
    name, source = recipe.required_release().name, source_of(found.model, found.version)
    connection.ensure_model(
        client, name, f"{(recipe.description or name).rstrip('.')}. Versions are added by promotion only."
    )
    for version in connection.versions(client, name):
        if version.source == source and str(version.version) not in taken:
            return str(version.version)
    for _ in range(len(taken) + 1):
        # MLflow prints to stderr here that a model "already exists".
        with contextlib.redirect_stderr(io.StringIO()):
            version = str(client.copy_model_version(source, name).version)
        if version not in taken:
            return version
    raise RegistryError(f"MLflow reuses version numbers of {name} that belong to other candidates", found=version)


def _move(ctx: Context, client: Any, stage: Stage, facts: dict[str, Any]) -> ReleaseRecord:
    """Record the move of a version to a stage, unless the version has already reached the stage. Then update MLflow."""
    name, version = facts["model"], facts["version"]
    history = releases.history(ctx, name)
    held = history.standing
    if version in (held.champion, held.canary if stage == CANARY else None):
        last = history.releasing(name, version)
    else:
        incidents.require_none(ctx)  # evaluating the gates takes minutes, and an incident may be new
        previous = held.champion
        last = releases.append(ctx, action=stage, previous=previous, at=now(), **facts)
        note(client, name, version, f"release.{stage}", f"{now()} {facts['by']}: {facts['reason']}")
    repair(ctx, client, name)
    return last


# MLflow's aliases follow the signed history; differences are repaired and reported. Setting an alias decides nothing.

#: Tag of a version in a release's model that the promoter never released.
FOREIGN = "unreleased"


def repair(ctx: Context, client: Any, name: str) -> tuple[str, ...]:
    """Write the aliases of a release from the signed history to MLflow. Return one sentence per difference.

    Raises:
        SignatureError: the history does not verify, and nothing is written.
    """
    records = releases.history(ctx, name)
    model = connection.optional(lambda: client.get_registered_model(name))
    if model is None:
        return (f"{name} is missing in MLflow: it was deleted",) if records else ()
    shown = {which: str(version) for which, version in model.aliases.items()}
    there = {str(version.version): version for version in connection.versions(client, name)}
    differed = []
    for which, wanted in records.standing.aliases.items():
        if shown.get(which) == wanted:
            continue
        gone = ", and that version is missing in MLflow" if wanted and wanted not in there else ""
        said = f"expected {wanted or 'unset'} by the signed history{gone}"
        differed.append(f"{name}@{which} was {shown.get(which, 'unset')}, {said}")
        if wanted and not gone:
            client.set_registered_model_alias(name, which, wanted)
        elif which in shown:
            client.delete_registered_model_alias(name, which)
    return (*differed, *_foreign(client, name, there, _released(records)))


def missing_in_mlflow(ctx: Context, client: Any, name: str) -> tuple[str, ...]:
    """Return the versions with an alias in the signed history that MLflow lacks. `repair` cannot write these versions,
    because MLflow does not reuse the numbers of deleted versions.

    Raises:
        SignatureError: the history does not verify.
    """
    records = releases.history(ctx, name)
    if connection.optional(lambda: client.get_registered_model(name)) is None:
        return (f"the registered model {name}",) if records else ()
    there = {str(version.version) for version in connection.versions(client, name)}
    places = records.standing.aliases.items()
    return tuple(f"{name} version {wanted} ({which})" for which, wanted in places if wanted and wanted not in there)


def note(client: Any, name: str, version: str | None, tag: str, value: str) -> None:
    """Show a note for people on a version in MLflow. If the version was deleted, do nothing, because only the signed
    record counts."""
    connection.optional(lambda: client.set_model_version_tag(name, version, tag, value))


def show_card(ctx: Context, client: Any, name: str, version: str) -> None:
    """Show the current model card of a release on its version in MLflow and on its candidate's, unless they were
    deleted.
    """
    try:
        found = verified.candidate_of(ctx, releases.history(ctx, name).releasing(name, version))
    except TrustError:  # a candidate that was changed must not prevent a rollback
        return
    card = model_card(ctx, found)
    for shown in ((name, version), (found.model, found.version)):
        known = connection.optional(partial(client.get_model_version, *shown))
        if known is not None:
            describe(client, known, known.tags, card=card)


def source_of(model: str, version: str | None) -> str:
    """Return the source that MLflow shows for a version that was copied into a release."""
    return f"models:/{model}/{version}"


def _released(records: Iterable[ReleaseRecord]) -> set[tuple[str | None, str]]:
    """Return the number and the MLflow source of every version that was ever released."""
    return {(one.version, source_of(f"{one.model}-candidate", one.candidate_version)) for one in records}


def _foreign(
    client: Any, name: str, there: Mapping[str, Any], released: Container[tuple[str | None, str]]
) -> list[str]:
    """Tag the versions of the release's model in MLflow that the promoter never released. Return a message for each
    version that was not tagged before."""
    found = []
    for version in there.values():
        if (str(version.version), version.source) in released:
            if FOREIGN in version.tags:  # a promotion interrupted before its record, completed later
                client.delete_model_version_tag(name, version.version, FOREIGN)
        elif FOREIGN not in version.tags:
            client.set_model_version_tag(name, version.version, FOREIGN, "no record signed by the promoter")
            found.append(f"{name} version {version.version} was never released: no record signed by the promoter")
    return found
