"""What papers are about: a verified candidate or release, with the signed statements about it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.trust import dsse
from plinth.trust.authority import APPROVER, ROLES, ROOT, TRAINER
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import FORMS
from plinth.trust.standalone_verify import ROLES as ROLE_OF
from plinth_registry import approval, attestations, candidate, signing
from plinth_registry.candidate import Candidate
from plinth_registry.papers import provider
from plinth_registry.papers.facts import SignedText
from plinth_registry.papers.gather import AttestedFacts, PaperSubject


def subject_of(
    ctx: Context, own: Candidate, name: str, *, released: str | None = None, at: str | None = None
) -> PaperSubject:
    """Provenance, attestations and decisions about a candidate that the caller has verified.

    Args:
        name: `NAME/VERSION` of the release, or of the candidate.
        released: SHA-256 of the release record; None before there is one.
        at: when it was released, for signatures of keys that were revoked since.

    Raises:
        SignatureError: a statement does not hold.
    """
    stated = hashlib.sha256(dsse.bytes_of(candidate.evidence_path(own.directory, own.key))).hexdigest()
    facts = AttestedFacts(kind="candidate", sha256=stated, role=TRAINER, facts=own.facts.model_dump(mode="json"))
    trust, files = Trust.of(ctx.workspace), statements_about(ctx, own.checkpoint)
    provenance, provenance_bytes = signing.provenance_of(own.directory, trust.authority(TRAINER), at=at)
    return PaperSubject(
        name=name,
        released=released,
        provenance=provenance,
        provenance_sha256=hashlib.sha256(provenance_bytes).hexdigest(),
        evaluation=own.evaluation,
        attested=(facts, *(_attested(trust, path, at) for path in files)),
        said=(*_said(ctx, own), *_provided(ctx, own, name.rpartition("/")[2] if released else None)),
    )


def statements_about(ctx: Context, checkpoint: str) -> list[Path]:
    """Statements of what was found out about a checkpoint; those about forms of it are of one export each."""
    found = sorted(attestations.folder_of(ctx, checkpoint).glob("*.json"))
    return [path for path in found if not path.name.startswith(f"{FORMS.rstrip('/')}.")]


def role_of(trust: Trust, envelope: Mapping[str, Any], where: str, at: str | None) -> str:
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


def _attested(trust: Trust, path: Path, at: str | None) -> AttestedFacts:
    """The facts of an attestation; of a measurement, the digest of its manifest."""
    data = dsse.bytes_of(path)
    envelope = dsse.parsed(data, str(path))
    role, stated = role_of(trust, envelope, path.name, at), dsse.unverified(envelope, path.name)["predicate"]
    asset = str(stated.get("asset", path.stem))
    measured = {"manifest": stated["materials"][asset]} if asset in stated.get("materials", {}) else {}
    digest = hashlib.sha256(data).hexdigest()
    return AttestedFacts(kind=asset, sha256=digest, role=role, facts={**measured, **stated.get("facts", {})})


def _said(ctx: Context, own: Candidate) -> Iterator[SignedText]:
    """Reasons of those who signed a decision."""
    for path in sorted((ctx.workspace.approvals / own.key[:12]).glob("*.json")):
        data = dsse.bytes_of(path)
        one = approval.verify_statement(ctx, path, own, data)
        digest = hashlib.sha256(data).hexdigest()
        yield SignedText(subject=one.decision, text=one.reason, by=one.by, role=APPROVER, evidence=digest)


def _provided(ctx: Context, own: Candidate, version: str | None) -> Iterator[SignedText]:
    """What the provider of the release states."""
    stated = provider.current(ctx, own.model.removesuffix("-candidate"))
    yield from provider.said(stated, version) if stated else ()
