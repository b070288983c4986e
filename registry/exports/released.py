"""A release that may leave the workspace: proved again, with its papers and the signed statements about it.

The signed history says what was released; MLflow is not asked. A version that was rolled back, or that is tainted, is
refused, and no option changes that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plinth.compute.context import Context
from plinth.errors import MissingError, SignatureError
from plinth.trust import dsse
from plinth.trust.authority import APPROVER, ROLES, ROOT, TRAINER
from plinth.trust.pin import Trust
from plinth.trust.standalone_verify import RELEASE
from plinth.trust.standalone_verify import ROLES as ROLE_OF
from registry import approval, candidate, policy, promotion, releases, signing, waivers
from registry.candidate import Candidate
from registry.exports.sealed import ExportClaim
from registry.papers import papers
from registry.papers.facts import SignedText
from registry.papers.gather import AttestedFacts, PaperSubject, gather
from registry.releases import ReleaseRecord
from registry.standing import standing

EVIDENCE = "evidence"


class ReleasedModel(NamedTuple):
    """A proved release: its record, candidate and provenance."""

    record: ReleaseRecord
    candidate: Candidate
    provenance: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.record.model}/{self.record.version}"


def find(ctx: Context, target: str) -> ReleasedModel:
    """The release that `NAME/VERSION` or `NAME@PLACE` names, proved down to its sources.

    Raises:
        MissingError: the release has no such place.
        GateError: never released, rolled back, or tainted.
        SignatureError, LineageError: a statement, a file or the chain was changed.
    """
    name, version = _named(ctx, target)
    found, _ = promotion.verify_release(ctx, name, version)
    provenance = json.loads((found.directory / signing.PROVENANCE_FILE).read_bytes())
    return ReleasedModel(promotion.record_of(ctx, name, version), found, provenance)


def _named(ctx: Context, target: str) -> tuple[str, str]:
    """Name and version."""
    name, separator, which = target.rpartition("@") if "@" in target else target.rpartition("/")
    if separator != "@":
        return name, which
    version = standing(releases.history(ctx, name)).aliases.get(which)
    if version is None:
        raise MissingError(f"{name} has no {which}", remedy="`plinth status` lists releases and their versions")
    return name, version


def add_papers(ctx: Context, found: ReleasedModel, directory: Path) -> ExportClaim:
    """Write papers and evidence into a directory that is about to be sealed; returns what the seal states."""
    evidence = dict(_statements(ctx, found))
    release = hashlib.sha256(evidence[RELEASE][1]).hexdigest()
    for name, (_, content) in evidence.items():
        _write(directory / name, content)
    for name, content in papers(gather(ctx, _subject(ctx, found, release))).items():
        _write(directory / (name if name == "README.md" else f"papers/{name}"), content)
    own = (found.candidate.directory / signing.PROVENANCE_FILE).read_bytes()
    _write(directory / EVIDENCE / signing.PROVENANCE_FILE, own)
    return ExportClaim(
        name=found.name,
        status="released",
        checkpoint=found.candidate.checkpoint,
        number=found.record.number,
        policy=found.record.policy or None,
        released_at=found.record.at,
        evidence={name: role for name, (role, _) in sorted(evidence.items())},
    )


def _statements(ctx: Context, found: ReleasedModel) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Role and bytes of every signed statement about a release, by its name in the export."""
    trust, own = Trust.of(ctx.workspace), found.candidate
    record = json.loads((ctx.workspace.releases / f"{found.record.number:05d}.json").read_bytes())["envelope"]
    beside = own.directory.name
    files = {f"{EVIDENCE}/provenance.slsa.json": signing.slsa_path(own.directory)}
    for path in sorted(own.directory.parent.glob(f"{beside}.{own.key[:12]}.*.json")):
        files[f"{EVIDENCE}/{path.name.removeprefix(f'{beside}.{own.key[:12]}.')}"] = path
    for path in sorted((ctx.workspace.approvals / own.key[:12]).glob("*.json")):
        files[f"{EVIDENCE}/approvals/{path.name}"] = path
    for path in waivers.paths(ctx, found.record.model, own.key):
        files[f"{EVIDENCE}/waivers/{path.name}"] = path
    for path in attestations(ctx, own.checkpoint):
        files[f"{EVIDENCE}/attestations/{path.name}"] = path
    governed = (one for one in policy.history(ctx, found.record.model) if one.digest == found.record.policy)
    for one in governed:
        files[f"{EVIDENCE}/policy.json"] = policy.path_of(ctx, found.record.model, one.policy.version)
    envelopes = {RELEASE: record} | {name: dsse.envelope_of(path) for name, path in files.items()}
    head = ctx.workspace.releases / releases.HEAD
    envelopes |= {f"{EVIDENCE}/head.json": dsse.envelope_of(head)} if head.exists() else {}
    for name, envelope in envelopes.items():
        role = _role(trust, envelope, name, found.record.at)
        yield name, (role, json.dumps(envelope, indent=1, sort_keys=True).encode())


def attestations(ctx: Context, checkpoint: str) -> list[Path]:
    """Statements of what was found out about a checkpoint."""
    return sorted((ctx.workspace.attestations / checkpoint[:16]).glob("*.json"))


def _role(trust: Trust, envelope: Mapping[str, Any], where: str, at: str) -> str:
    """The role that signed a statement: that of its type, or the one whose signature holds.

    Raises:
        SignatureError: none does.
    """
    kind = dsse.unverified(envelope, where)["predicateType"]
    for role in [ROLE_OF[kind]] if kind in ROLE_OF else [role for role in ROLES if role != ROOT]:
        try:
            dsse.opened(envelope, trust.authority(role), kind, where, at=at)
        except SignatureError:
            continue
        return role
    raise SignatureError(f"nobody may state {where}", found=kind, expected="a signature by the role that may")


def _subject(ctx: Context, found: ReleasedModel, release: str) -> PaperSubject:
    own = found.candidate
    stated = hashlib.sha256(candidate.evidence_path(own.directory, own.key).read_bytes()).hexdigest()
    facts = AttestedFacts(kind="candidate", sha256=stated, role=TRAINER, facts=own.facts.model_dump(mode="json"))
    attested = [_attested(Trust.of(ctx.workspace), path, found.record.at) for path in attestations(ctx, own.checkpoint)]
    provenance = (own.directory / signing.PROVENANCE_FILE).read_bytes()
    return PaperSubject(
        name=found.name,
        released=release,
        provenance=found.provenance,
        provenance_sha256=hashlib.sha256(provenance).hexdigest(),
        evaluation=own.evaluation,
        attested=(facts, *attested),
        said=tuple(_said(ctx, own)),
    )


def _attested(trust: Trust, path: Path, at: str) -> AttestedFacts:
    """The facts of an attestation; of a measurement, the digest of its manifest."""
    envelope = dsse.envelope_of(path)
    role, stated = _role(trust, envelope, path.name, at), dsse.unverified(envelope, path.name)["predicate"]
    asset = str(stated.get("asset", path.stem))
    measured = {"manifest": stated["materials"][asset]} if asset in stated.get("materials", {}) else {}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return AttestedFacts(kind=asset, sha256=digest, role=role, facts={**measured, **stated.get("facts", {})})


def _said(ctx: Context, own: Candidate) -> Iterator[SignedText]:
    """Reasons of those who signed a decision."""
    for path in sorted((ctx.workspace.approvals / own.key[:12]).glob("*.json")):
        one = approval.verify_statement(ctx, path, own)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        yield SignedText(subject=one.decision, text=one.reason, by=one.by, role=APPROVER, evidence=digest)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
