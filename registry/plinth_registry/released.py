"""Versions of a release, proved from its signed history. MLflow is not asked."""

from __future__ import annotations

from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError, TrustError
from plinth.provenance.statements import Chain
from plinth_registry import approval, materialise, policy, releases, taint
from plinth_registry import candidate as candidates
from plinth_registry.candidate import Candidate
from plinth_registry.history import Place, ReleaseRecord, Standing


def verify_release(ctx: Context, name: str, version: str) -> tuple[Candidate, Chain]:
    """A release version, proved: the signed history has it and has not taken it back, what let it be released is there,
    and its model is unchanged and untainted.

    Raises:
        SignatureError, LineageError: changed or incomplete.
        GateError: the promoter never released it, or it was rolled back, or it is tainted.
    """
    history = releases.history(ctx, name)
    record = history.releasing(name, version)
    if history.standing.place(version) == "rolled back":
        raise GateError(f"{name} version {version} was rolled back", remedy=f"use {name}@champion")
    found = _candidate_of(ctx, record)
    _require_decisions(ctx, record, found)
    chain = candidates.verify_candidate(ctx, found)
    marks = taint.marks_on(ctx, chain, candidates.evidence_of(ctx, found.checkpoint, found.evaluation))
    if marks:
        remedy = "`plinth release rollback --by PERSON --reason TEXT`"
        raise GateError(f"{name} version {version} is tainted", found="; ".join(marks), remedy=remedy)
    return found, chain


def _require_decisions(ctx: Context, record: ReleaseRecord, found: Candidate) -> None:
    """Require what let a version be released: the policy, the decisions of people, the log of decisions until then.

    Raises:
        SignatureError: one of them is missing or was changed.
    """
    known = policy.history(ctx, record.model) if record.policy else ()
    if record.policy and record.policy not in {one.digest for one in known}:
        raise SignatureError(
            f"the gate policy that released {record.model} version {record.version} is missing",
            found=f"{len(known)} other versions",
            expected=record.policy,
            remedy="restore policies/ from a backup",
        )
    approval.require_recorded(ctx, found, record.approvals)
    releases.require_audited(ctx, record)


def released_as(ctx: Context, found: Candidate) -> tuple[ReleaseRecord, Place | None] | None:
    """The newest record that released a candidate's checkpoint, with the place of that version now; None if there is
    none. A record of the candidate itself goes before one of another candidate with the same checkpoint.

    Raises:
        SignatureError: the history does not hold.
    """
    history = releases.history(ctx, found.release)
    own = [one for one in history if one.version is not None and one.candidate.get("checkpoint") == found.checkpoint]
    last = max(own, key=lambda one: (one.candidate["candidate"] == found.key, one.number), default=None)
    return None if last is None else (last, history.standing.place(str(last.version)))


def settled(ctx: Context, name: str) -> frozenset[str]:
    """Keys of the candidates that reached their goal once or were given back: no sensor moves them again."""
    records = releases.history(ctx, name)
    back = {record.previous for record in records if record.action == "returned"}
    return frozenset(r.candidate["candidate"] for r in records if r.action == r.goal or r.version in back)


def last_good(ctx: Context, name: str, held: Standing) -> str | None:
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
