"""Verification of a model: its signed files are unchanged, its ancestry is complete, and the signed history has
released it.

Every load of a model's weights starts with this verification. A model that does not verify is not loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, MissingError, SignatureError, TrustError
from plinth.provenance import lineage
from plinth.provenance.statements import Chain
from plinth.records import Frozen
from plinth.training.checkpoint import mean_record
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth_registry import approval, candidate, consumers, policy, releases, signing, taint, trained
from plinth_registry.candidate import Candidate
from plinth_registry.mlflow import connection
from plinth_registry.releases import Place, ReleaseRecord, Standing, names_place, never_released


class VerifiedModel(Frozen):
    """Verified model without an active taint, with its identity and the extent of the verification."""

    target: str
    directory: Path
    checkpoint: str
    mean: str | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Description of an averaged checkpoint and of the checkpoints in the average.",
    )
    run: str
    contract: str | None = Field(
        None, exclude_if=lambda given: given is None, description="Launch contract of the run, if it had one."
    )
    release: str | None
    manifests: int
    sources: int
    blobs: int | None = None


def verify_model(ctx: Context, target: str, *, deep: bool = False, consumer: str | None = None) -> VerifiedModel:
    """Verify a model down to its raw sources. If a link is broken, the error names the first broken link. Every load of
    a model starts with this function.

    Args:
        target: a model directory, a prefix of a checkpoint digest, `NAME/VERSION` or `NAME@ALIAS`. A folder takes
            precedence over a version (`models:/NAME/VERSION`), but not over an alias. With a consumer, `NAME` alone is
            the version that the consumer gets, and never a folder. If the consumer is enrolled for canaries and a
            canary exists, this is the canary. Otherwise, it is the version under the consumer's alias.
        deep: True to also read every blob of every manifest in the ancestry.
        consumer: enrolled service that loads the model. If it is not enrolled for canaries, it cannot load a canary.

    Raises:
        SignatureError: a file differs from the signed file.
        LineageError: a manifest (or, if `deep`, a blob) is missing or changed.
        GateError: the version was never released, or not for this consumer; or the model or a measurement of it is
            tainted.
        MissingError: there is no such model.
    """
    served = consumer is not None and bool(releases.history(ctx, target))
    if consumer is not None and served:
        target = f"{target}/{consumers.version_for(ctx, target, consumer)}"
    by_name = served or names_place(target) or (not Path(target).is_dir() and ("@" in target or "/" in target))
    found, chain, release = _by_name(ctx, target) if by_name else _by_directory(ctx, target)
    if consumer is not None and release is not None:
        _require_served(ctx, release, consumer)
    if marks := taint.marks_on(ctx, chain, candidate.evidence_of(ctx, found.checkpoint, *found.evaluation)):
        raise GateError(f"{target} is tainted", found="; ".join(marks), remedy="do not load this model; roll back")
    made = ctx.refs.load(found.checkpoint)
    read = lineage.verify(ctx, found.checkpoint) if deep else None
    return VerifiedModel(
        target=target,
        directory=found.directory,
        checkpoint=found.checkpoint,
        mean=mean_record.in_words(made) if mean_record.is_mean(made) else None,
        run=found.run,
        contract=trained.contract_in_words(ctx, found.directory),
        release=release,
        manifests=len(chain.links),
        sources=len(chain.sources),
        blobs=read.blobs if read else None,
    )


def _require_served(ctx: Context, release: str, consumer: str) -> None:
    """Check that a consumer may load a version. A canary can be loaded only by consumers that are enrolled for
    canaries."""
    name, _, version = release.rpartition("/")
    if releases.history(ctx, name).standing.place(version) == "canary":
        consumers.require_canary(ctx, name, consumer)


class _Found(NamedTuple):
    directory: Path
    checkpoint: str
    run: str
    evaluation: tuple[str, ...] = ()


def _by_name(ctx: Context, target: str) -> tuple[_Found, Chain, str | None]:
    """Verify the model that `NAME/VERSION` or `NAME@PLACE` names. Releases are read from the signed history, and only
    candidates are read from MLflow."""
    target = target.removeprefix("models:/")
    name, separator, which = target.rpartition("@") if "@" in target else target.rpartition("/")
    if separator == "@":
        held = releases.history(ctx, name).standing
        version = held.aliases.get(which)
        if version is None:
            raise MissingError(f"{name} has no {which}", remedy="list releases and versions with `plinth status`")
    else:
        version = which
        if not releases.history(ctx, name):
            return _candidate(ctx, name, version)
    known, chain = verify_release(ctx, name, version)
    return _Found(known.directory, known.checkpoint, known.run.id, (known.evaluation,)), chain, f"{name}/{version}"


@connection.named("find a model version")
def _candidate(ctx: Context, name: str, version: str) -> tuple[_Found, Chain, str | None]:
    held = connection.connect(ctx.workspace).get_model_version(name, version)
    if held.source.startswith("models:/"):
        raise never_released(name, version)
    known = candidate.read(ctx, held)
    chain = candidate.verify_candidate(ctx, known)
    return _Found(known.directory, known.checkpoint, known.run.id, (known.evaluation,)), chain, None


def _by_directory(ctx: Context, target: str) -> tuple[_Found, Chain, str | None]:
    """Verify a model directory as the checkpoint that its signed provenance names. If a checkpoint was requested, it
    must be this checkpoint."""
    directory = _directory(ctx, target)
    provenance = signing.verify(directory, Trust.of(ctx.workspace).authority(TRAINER))
    checkpoint = str(provenance["checkpoint"]["digest"])
    if not (Path(target).is_dir() or checkpoint.startswith(target)):
        raise LineageError(f"{directory} is not checkpoint {target}", found=checkpoint, remedy="register it again")
    chain = lineage.walk(ctx, checkpoint)
    candidate.same_chain(directory, provenance, chain)
    trained.proved(ctx, ctx.refs.load(checkpoint), provenance)
    return _Found(directory, checkpoint, provenance["run"]["id"]), chain, None


def _directory(ctx: Context, target: str) -> Path:
    if Path(target).is_dir():
        return Path(target).absolute()
    found = [path for path in ctx.workspace.models.glob("*") if path.is_dir() and _begins(path.name, target)]
    if len(found) != 1:
        raise MissingError(
            f"no model {target}",
            found=f"{len(found)} matches in {ctx.workspace.models}",
            expected="a model directory, a checkpoint's digest, NAME/VERSION or NAME@ALIAS",
        )
    return found[0]


def _begins(name: str, target: str) -> bool:
    return len(target) >= 4 and not name.startswith(".") and (name.startswith(target) or target.startswith(name))


# Verification of release versions from the signed history, without MLflow.


def verify_release(ctx: Context, name: str, version: str) -> tuple[Candidate, Chain]:
    """Verify a release version. The signed history must list the version as released and not withdrawn, its decisions
    must exist, and its model must be unchanged and untainted.

    Raises:
        SignatureError, LineageError: the model or a statement about it was changed or is incomplete.
        GateError: the version was never released by the promoter, was rolled back, or is tainted.
    """
    history = releases.history(ctx, name)
    record = history.releasing(name, version)
    if history.standing.place(version) == "rolled back":
        raise GateError(f"{name} version {version} was rolled back", remedy=f"use {name}@champion")
    found = candidate_of(ctx, record)
    _require_decisions(ctx, record, found)
    chain = candidate.verify_candidate(ctx, found)
    marks = taint.marks_on(ctx, chain, candidate.evidence_of(ctx, found.checkpoint, found.evaluation))
    if marks:
        remedy = "roll back with `plinth release rollback --by PERSON --reason TEXT`"
        raise GateError(f"{name} version {version} is tainted", found="; ".join(marks), remedy=remedy)
    return found, chain


def _require_decisions(ctx: Context, record: ReleaseRecord, found: Candidate) -> None:
    """Check that the decisions behind a release exist: the policy, the approvals, and the audit log up to the release.

    Raises:
        SignatureError: a decision is missing or was changed.
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
    """Return the newest record that released a candidate's checkpoint, with the current state of that version. A record
    of the candidate itself takes precedence over a record of the same checkpoint. If there is no record, return None.

    Raises:
        SignatureError: the history does not verify.
    """
    history = releases.history(ctx, found.release)
    own = [one for one in history if one.version is not None and one.candidate.get("checkpoint") == found.checkpoint]
    last = max(own, key=lambda one: (one.candidate["candidate"] == found.key, one.number), default=None)
    return None if last is None else (last, history.standing.place(str(last.version)))


def settled(ctx: Context, name: str) -> frozenset[str]:
    """Return the keys of the candidates that have reached their final stage or were rolled back. No sensor promotes
    these candidates again."""
    records = releases.history(ctx, name)
    back = {record.previous for record in records if record.action == "returned"}
    return frozenset(r.candidate["candidate"] for r in records if r.action == r.goal or r.version in back)


def last_good(ctx: Context, name: str, held: Standing) -> str | None:
    """Return the newest version before the current champion that was champion, verifies, and is not tainted."""
    for version in reversed(held.champions[:-1]):
        try:
            verify_release(ctx, name, version)
        except TrustError:
            continue
        return version
    return None


def candidate_of(ctx: Context, record: ReleaseRecord) -> Candidate:
    """Return the candidate that a release record names. The candidate's signed facts must match the record."""
    directory = signing.directory_of(ctx, record.candidate["checkpoint"])
    model, version = f"{record.model}{candidate.SUFFIX}", str(record.candidate_version)
    found = candidate.stated(ctx, model, version, directory, record.candidate["candidate"])
    if found.subjects != record.candidate:
        raise GateError(
            f"{record.model} version {record.version} is not the model that was released under that number",
            found=found.subjects,
            expected=record.candidate,
            remedy="the model was replaced: roll back, and promote the release again",
        )
    return found
