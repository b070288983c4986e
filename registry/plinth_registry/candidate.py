"""Candidates: a signed checkpoint with its evaluation and complete lineage, registered in MLflow.

A candidate is identified by its checkpoint, its evaluation and the facts about it, so the same work is registered only
once. The signed statement of facts is stored next to the model directory. Tags in MLflow repeat the statement for
people and are never trusted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import LineageError, PlinthError, SignatureError
from plinth.evaluation.measurement import is_measured
from plinth.provenance.statements import Chain, chain
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen, Manifest
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import mean_record
from plinth.training.corruption.sampling import ReplayRecord
from plinth.training.forensics.order_proof import order_proof
from plinth.training.forensics.proof import examined
from plinth.trust import dsse
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth_registry import attestations, trained
from plinth_registry.gates.facts import CorruptionFacts, GrantedUses, ResumeFacts, ToleranceFacts
from plinth_registry.signing import verify

KEY = re.compile(r"[0-9a-f]{64}")
RESUME_FILE = "resume.json"
STATE_FILE = "state.json"
#: Suffix of the registered model that trainers write.
SUFFIX = "-candidate"
EVIDENCE_PREDICATE = "urn:plinth:evidence:v1"
#: Version sources in MLflow have the form `plinth:///models/<12>`. They are relative to the workspace, so that they
#: work after a move and on other machines. MLflow refuses local paths outside a run's artifacts.
SCHEME = "plinth://"


class Facts(Frozen):
    """Facts that the caller states about a candidate. A fact without evidence is None."""

    contaminated_documents: int | None = Field(
        None, description="Number of training documents overlapping held-out text."
    )
    licences: Mapping[str, int] | None = Field(None, description="Number of curated documents by license.")
    sources: Mapping[str, GrantedUses] | None = Field(None, description="Terms of each source, with the amount used.")
    stability: Mapping[str, int] | None = Field(None, description="Number of run events by kind (restart, spike, …).")
    requested_by: str | None = Field(None, description="Person who requested the run.")
    cost: Mapping[str, float] = Field(
        default_factory=dict, description="Amounts used by the run, such as `wall_s`, `tokens`, `flops`, `kwh`."
    )

    @property
    def identity(self) -> dict[str, Any]:
        """Facts that are part of a candidate's identity: all except requester and cost."""
        return self.model_dump(mode="json", exclude={"requested_by", "cost"})


class CandidateRun(Frozen):
    """Training run that produced a checkpoint."""

    id: str
    key: str


class CandidateStatement(Frozen):
    """Predicate of the facts about a candidate, which the trainer signs."""

    run: CandidateRun
    facts: Facts


class Candidate(Frozen):
    """Registered candidate, as its signed statement describes it."""

    model: str
    version: str
    key: str
    checkpoint: str
    evaluation: str
    run: CandidateRun
    facts: Facts
    directory: Path

    @property
    def release(self) -> str:
        """Name of the release that the candidate is for."""
        return self.model.removesuffix(SUFFIX)

    @property
    def title(self) -> str:
        """Model, version and key of the candidate as text."""
        return f"{self.model} version {self.version} ({self.key[:12]})"

    @property
    def subjects(self) -> dict[str, str]:
        """Digests that an approval or a release record must name."""
        return {"candidate": self.key, "checkpoint": self.checkpoint, "evaluation": self.evaluation}


def evidence_of(ctx: Context, checkpoint: str, *known: str) -> tuple[str, ...]:
    """Return the digests of the manifests that measure a checkpoint: manifests given as `known`, attested manifests,
    and published manifests."""
    measured = [*known, *(one.manifest for one in attestations.about(ctx, checkpoint).valid.values() if one.manifest)]
    for ref in ctx.refs.all():
        if is_measured(ref.asset) and ctx.refs.load(ref.digest).inputs.get("checkpoint") == checkpoint:
            measured.append(ref.digest)
    return tuple(dict.fromkeys(measured))


def model_name(recipe: Recipe) -> str:
    """Return the name of the MLflow model to which trainers register. Only the promoter writes the MLflow model of the
    release."""
    return f"{recipe.required_release().name}{SUFFIX}"


def key_of(checkpoint: str, evaluation: str, facts: Facts) -> str:
    """Return the digest that identifies a candidate, which is its key."""
    return fingerprint.digest({"checkpoint": checkpoint, "evaluation": evaluation, "facts": facts.identity})


def ancestry(ctx: Context, checkpoint: str, evaluation: str) -> Chain:
    """Return the complete chain of a checkpoint's ancestors. First check that the evaluation is complete and belongs to
    this checkpoint.

    Raises:
        LineageError: a link is missing or changed, or the evaluation belongs to another checkpoint.
    """
    try:
        made, measured = ctx.refs.load(checkpoint), ctx.refs.load(evaluation)
    except PlinthError as error:
        raise LineageError(
            "the candidate's checkpoint or evaluation cannot be trusted",
            found=error.found or error.what,
            expected="both manifests, unchanged, in the workspace",
            remedy="restore the manifest from a backup, or run the recipe again",
        ) from error
    if checkpoint not in measured.inputs.values():
        raise LineageError(
            f"evaluation {evaluation} belongs to another checkpoint",
            found=dict(measured.inputs),
            expected=f"{checkpoint} among its inputs",
            remedy="evaluate this checkpoint",
        )
    chain(ctx.refs, measured)
    found = chain(ctx.refs, made)
    found.require_sources()
    _ = found.data_versions
    return found


def state_facts(
    ctx: Context, directory: Path, checkpoint: str, evaluation: str, run: CandidateRun, facts: Facts
) -> str:
    """Sign the facts next to the model directory, unless they are already signed, and return the candidate's key."""
    key = key_of(checkpoint, evaluation, facts)
    path = evidence_path(directory, key)
    if not path.exists():
        subjects = {"candidate": key, "checkpoint": checkpoint, "evaluation": evaluation}
        stated = CandidateStatement(run=run, facts=facts)
        statement = dsse.statement(EVIDENCE_PREDICATE, subjects, stated.model_dump(mode="json"))
        dsse.write(path, statement, Trust.of(ctx.workspace).signer(TRAINER))
    return key


def attest(
    ctx: Context, recipe: Recipe, checkpoint: Manifest, directory: Path, facts: Facts, materials: Mapping[str, str]
) -> None:
    """Sign each fact about a candidate with the key of the role allowed to state it. Facts without evidence are left
    out.

    The proof that training can be resumed is read again from the signed directory. Its conclusion is recomputed and
    must be about the parameters of this checkpoint.

    Raises:
        SignatureError: this machine has no key of the required role.
    """
    stated = {"resume": resume_facts(checkpoint, directory), "cost": {"amounts": dict(facts.cost)}}
    if facts.licences is not None:
        sources = {name: one.model_dump(mode="json") for name, one in (facts.sources or {}).items()}
        permitted = list(recipe.corpus.permitted_licences)
        stated["licences"] = {"documents": dict(facts.licences), "sources": sources, "permitted": permitted}
    if facts.contaminated_documents is not None:
        documents = sum((facts.licences or {}).values())
        stated["contamination"] = {"documents": documents, "contaminated": facts.contaminated_documents}
    if facts.stability is not None:
        stated["stability"] = {"events": dict(facts.stability)}
    for kind, found in stated.items():
        if found is not None:
            attestations.attest(ctx, recipe, kind, kind, checkpoint.digest, materials=materials, facts=found)


def resume_facts(checkpoint: Manifest, directory: Path) -> dict[str, Any] | None:
    """Return the conclusion of the proof that training can be resumed, from a signed directory. Return None if there is
    no proof, or if its file does not match the manifest. For an averaged checkpoint, the proof is about the last
    checkpoint of its run. For a run of an external trainer, it is the replay of sampled steps."""
    try:
        proof = dsse.bytes_of(directory / RESUME_FILE)
        if hashlib.sha256(proof).hexdigest() not in {part.blob.sha256 for part in checkpoint.named(RESUME_FILE)}:
            return None
        found = json.loads(proof)
        last = checkpoint.stats["resume"] if mean_record.is_mean(checkpoint) else checkpoint.stats
        step, parameters = last["step"], last["parameters_sha256"]
    except (SignatureError, ValueError, KeyError):
        return None
    if reason := checkpoint.stats.get("resume_proof"):
        order = order_proof(found, parameters)
        unproved = ResumeFacts(bit_exact=False, compared_steps=0, unproved=str(reason), order=order)
        return unproved.model_dump(mode="json")
    shown = examined(found, step=step, parameters_sha256=parameters)
    facts = ResumeFacts(
        bit_exact=shown.bit_exact,
        compared_steps=shown.compared_steps,
        faults=shown.faults,
        tolerance=None if shown.tolerance is None else ToleranceFacts.of(shown.tolerance),
        corruption=_corruption(checkpoint, directory),
    )
    return facts.model_dump(mode="json")


def _corruption(checkpoint: Manifest, directory: Path) -> CorruptionFacts | None:
    """Return the replays of sampled steps in a checkpoint's state, which the trainer's commit record signs. Return None
    if there are none, or if the file does not match the manifest."""
    try:
        data = dsse.bytes_of(directory / STATE_FILE)
        if hashlib.sha256(data).hexdigest() not in {part.blob.sha256 for part in checkpoint.named(STATE_FILE)}:
            return None
        state = json.loads(data)
        found = CorruptionFacts(replays=ReplayRecord.of(state["monitor"]), steps=state["step"])
    except (SignatureError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.replays.steps else None


def evidence_path(directory: Path, key: str) -> Path:
    """Return the path of the signed facts of a candidate."""
    return directory.with_name(f"{directory.name}.{key[:12]}.evidence.json")


def read(ctx: Context, version: Any) -> Candidate:
    """Return the candidate that a version in MLflow represents. Only signed data is trusted.

    Raises:
        SignatureError: the signed facts are absent, changed, or about another candidate.
        LineageError: the version's source is not a model of this workspace.
    """
    directory = source_directory(ctx.workspace, version.source)
    return stated(ctx, version.name, str(version.version), directory, version.tags.get("candidate", ""))


def source_uri(workspace: Workspace, directory: Path) -> str:
    """Return the source URI with which MLflow names a model directory."""
    return f"{SCHEME}/{directory.relative_to(workspace.root).as_posix()}"


def source_directory(workspace: Workspace, uri: str) -> Path:
    """Return the model directory that a source URI in MLflow names.

    Raises:
        LineageError: the URI names a path outside the workspace's models.
    """
    relative = Path(uri.removeprefix(f"{SCHEME}/"))
    directory = workspace.root / relative
    if not uri.startswith(f"{SCHEME}/") or directory.parent != workspace.models or ".." in relative.parts:
        raise LineageError(
            f"the registry names a source that is not a model of this workspace: {uri}",
            expected=f"{SCHEME}/models/…",
            remedy="register the checkpoint in this workspace",
        )
    return directory


def stated(ctx: Context, model: str, version: str, directory: Path, key: str) -> Candidate:
    """Return a candidate from the signed facts next to its model directory.

    Raises:
        SignatureError: the signed facts are absent, changed, or about another candidate.
    """
    if not KEY.fullmatch(key):
        raise SignatureError(
            f"{model} version {version} has no candidate key",
            found=f"tag `candidate` = {key!r}",
            expected="the key written at registration",
            remedy="register the checkpoint again",
        )
    path = evidence_path(directory, key)
    statement = dsse.read(path, Trust.of(ctx.workspace).authority(TRAINER), EVIDENCE_PREDICATE)
    subjects = dsse.subjects(statement)
    try:
        facts = Facts.model_validate(statement["predicate"]["facts"])
        run = CandidateRun.model_validate(statement["predicate"]["run"])
        counted = key_of(subjects["checkpoint"], subjects["evaluation"], facts)
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"{path} is not the signed statement of a candidate", found=error) from error
    if not counted == subjects.get("candidate") == key:
        raise SignatureError(
            f"{model} version {version} has tags with the facts of another candidate",
            found=counted,
            expected=key,
            remedy="the version's tags were changed; register the checkpoint again",
        )
    return Candidate(
        model=model,
        version=version,
        key=key,
        checkpoint=subjects["checkpoint"],
        evaluation=subjects["evaluation"],
        run=run,
        facts=facts,
        directory=directory,
    )


def verify_candidate(ctx: Context, candidate: Candidate) -> Chain:
    """Verify the signature and the lineage of a candidate now, and return the chain of its ancestors.

    Raises:
        SignatureError: a file of the directory, or a statement about it, was changed.
        LineageError: the chain is broken, or differs from the signed chain.
    """
    return signed_chain(ctx, candidate, verify(candidate.directory, Trust.of(ctx.workspace).authority(TRAINER)))


def signed_chain(ctx: Context, candidate: Candidate, provenance: Mapping[str, Any]) -> Chain:
    """Return the ancestors of a candidate from the manifests, after comparing them with the verified provenance. The
    trainer must have attested the training of this checkpoint.

    Raises:
        LineageError: the chain is broken, differs from the signed chain, or has no attestation by the trainer.
    """
    _same(candidate.directory, "checkpoint", provenance["checkpoint"]["digest"], candidate.checkpoint)
    found = ancestry(ctx, candidate.checkpoint, candidate.evaluation)
    same_chain(candidate.directory, provenance, found)
    trained.proved(ctx, ctx.refs.load(candidate.checkpoint), provenance)
    return found


def same_chain(directory: Path, provenance: Mapping[str, Any], found: Chain) -> None:
    """Check that the chain in a verified provenance equals the chain from the manifests.

    Raises:
        LineageError: the chains differ.
    """
    signed = Chain.model_validate({"links": provenance["chain"]})
    _same(directory, "chain", sorted(signed.digests), sorted(found.digests))


def _same(directory: Path, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise LineageError(
            f"{directory} was signed for another {what}",
            found=found,
            expected=expected,
            remedy="register the checkpoint again",
        )
