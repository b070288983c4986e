"""Documents of a verified candidate or release, and the compliance signature over the SHA-256 of each document.

    papers/<checkpoint 16>/<16 of the SHA-256 over the documents>.json     DSSE envelope, signed as `compliance`

The signature covers the exact bytes of the documents. If a new decision or attestation changes them, they must be
signed again. If the newest gate policy has `papers: signed`, an export of a release requires the signature. Only a demo
root signs automatically, because all its keys are on one machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError
from plinth.records import Frozen
from plinth.trust import dsse
from plinth.trust.dsse import APPROVER, COMPLIANCE, TRAINER, now
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import PAPERS_TYPE
from plinth_audit.papers import provider
from plinth_audit.papers.bom import BOM, bom
from plinth_audit.papers.cards import DATA_CARD, MODEL_CARD, data_card, model_card
from plinth_audit.papers.documentation import MODEL_DOCUMENTATION, model_documentation
from plinth_audit.papers.facts import PaperFacts, SignedText
from plinth_audit.papers.gather import AttestedFacts, PaperSubject, gather
from plinth_audit.papers.provider import TRAINING_SUMMARY, training_summary
from plinth_audit.papers.spdx import SPDX, spdx
from plinth_registry import approval, audit_log, candidate, policy, releases, signing, verified
from plinth_registry.audit_log import AuditedAction
from plinth_registry.candidate import Candidate
from plinth_registry.exports.models import EVIDENCE, pretty, record_envelope, role_of, statements_about
from plinth_registry.papers import LeavingPapers, Papers, ReleasedModel
from plinth_registry.releases import ReleaseRecord

FOLDER: Final = "papers"
#: Function that writes each document, by file name.
_WRITERS: Final = {
    MODEL_CARD: model_card,
    DATA_CARD: data_card,
    TRAINING_SUMMARY: training_summary,
    MODEL_DOCUMENTATION: model_documentation,
}
#: Function that writes each bill of materials, which lists the documents above with their digests.
_BILLS: Final = {BOM: bom, SPDX: spdx}


class PapersStatement(Frozen):
    """Predicate of the compliance signature over documents. `release` is the SHA-256 of the release record."""

    name: str
    release: str | None
    reason: str
    at: str


class MadePapers(NamedTuple):
    """Release documents by their file names in an export, and the model that they describe."""

    subject: PaperSubject
    files: Mapping[str, bytes]

    @property
    def checkpoint(self) -> str:
        return str(self.subject.provenance["checkpoint"]["digest"])

    @property
    def digests(self) -> dict[str, str]:
        return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(self.files.items())}

    @property
    def title(self) -> str:
        return f"papers of {self.subject.name} ({fingerprint.digest(self.digests)[:12]})"


def make(ctx: Context, subject: PaperSubject) -> MadePapers:
    """Create the release documents of a verified model.

    Raises:
        LineageError, MissingError, IntegrityError: raised by `gather` if evidence is wrong, missing or changed.
    """
    made = papers(gather(ctx, subject)).items()  # the model card is where the Hub reads it
    return MadePapers(subject, {name if name == MODEL_CARD else f"papers/{name}": content for name, content in made})


def papers(facts: PaperFacts) -> dict[str, bytes]:
    """Return every document by file name. SPDX needs a time, so evidence without one gives no SPDX document."""
    found = {name: write(facts).encode() for name, write in _WRITERS.items()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    bills = {name: write(facts, digests).encode() for name, write in _BILLS.items() if name != SPDX or facts.dated}
    return found | bills


def sign(ctx: Context, made: MadePapers, reason: str = "", owner: str | None = None) -> Path:
    """Sign release documents as compliance unless they are signed already. Return the path of the signed statement.

    Raises:
        SignatureError: this machine has no compliance key, or no compliance key of this owner.
    """
    with audit_log.audited(ctx, AuditedAction("papers", made.title, owner or "", reason, owner), once=True):
        path = path_of(ctx, made)
        if not signed_by(ctx, made):
            stated = PapersStatement(name=made.subject.name, release=made.subject.released, reason=reason, at=now())
            subjects = {**made.digests, "checkpoint": made.checkpoint}
            statement = dsse.statement(PAPERS_TYPE, subjects, stated.model_dump(mode="json"))
            dsse.write(path, statement, Trust.of(ctx.workspace).signer(COMPLIANCE, owner))
        return path


def signed_by(ctx: Context, made: MadePapers) -> tuple[str, ...]:
    """Return the owners of the compliance keys that signed these release documents.

    The result is empty if no valid statement covers the documents.
    """
    envelope = _statement(ctx, made)
    return dsse.signed_by(envelope, Trust.of(ctx.workspace).authority(COMPLIANCE)) if envelope else ()


def _statement(ctx: Context, made: MadePapers) -> dict[str, Any] | None:
    """Return the envelope of the signed statement about these documents, or None if there is no valid statement."""
    path, authority = path_of(ctx, made), Trust.of(ctx.workspace).authority(COMPLIANCE)
    try:
        envelope = dsse.envelope_of(path)
        stated = dsse.opened(envelope, authority, PAPERS_TYPE, str(path))
    except SignatureError:
        return None
    return envelope if dsse.subjects(stated) == {**made.digests, "checkpoint": made.checkpoint} else None


def for_export(ctx: Context, model: str, made: MadePapers) -> dict[str, Any] | None:
    """Return the signed statement for an export, or None if no statement exists and the policy does not require one.

    Raises:
        GateError: the newest policy requires signed documents, and compliance has not signed these documents.
    """
    if envelope := _statement(ctx, made):
        return envelope
    if not any(one.policy.papers == "signed" for one in policy.history(ctx, model)[-1:]):
        return None
    if Trust.of(ctx.workspace).root.demo:
        sign(ctx, made, "a demo root signs on the way")
        return _statement(ctx, made)
    raise GateError(
        f"the documents of {made.subject.name} are not signed",
        expected="a compliance signature, because the gate policy has `papers: signed`",
        remedy=f"review the documents, then run `plinth release papers {made.subject.name} --sign`",
    )


def path_of(ctx: Context, made: MadePapers) -> Path:
    """Return the path of the signed statement about these documents."""
    return ctx.workspace.root / FOLDER / made.checkpoint[:16] / f"{fingerprint.digest(made.digests)[:16]}.json"


def subject_of(
    ctx: Context, own: Candidate, name: str, *, released: str | None = None, at: str | None = None
) -> PaperSubject:
    """Return the provenance, attestations and decisions of a candidate that the caller has verified.

    Args:
        name: `NAME/VERSION` of the release or of the candidate.
        released: SHA-256 of the release record, or None if the candidate is not released.
        at: time of the release. A signature is valid even if its key was revoked after this time.

    Raises:
        SignatureError: a statement fails verification.
    """
    stated = hashlib.sha256(dsse.bytes_of(candidate.evidence_path(own.directory, own.key))).hexdigest()
    facts = AttestedFacts(kind="candidate", sha256=stated, role=TRAINER, facts=own.facts.model_dump(mode="json"))
    trust, files = Trust.of(ctx.workspace), statements_about(ctx, own.checkpoint)
    provenance, provenance_bytes = signing.provenance_of(own.directory, trust.authority(TRAINER), at=at)
    return PaperSubject(
        name=name,
        released=released,
        released_at=at if released else None,
        provenance=provenance,
        provenance_sha256=hashlib.sha256(provenance_bytes).hexdigest(),
        evaluation=own.evaluation,
        attested=(facts, *(_attested(trust, path, at) for path in files)),
        said=(*_said(ctx, own), *_provided(ctx, own, name.rpartition("/")[2] if released else None)),
    )


def _attested(trust: Trust, path: Path, at: str | None) -> AttestedFacts:
    """Return the facts in an attestation. If it attests a measurement, they include the digest of the measurement's
    manifest."""
    data = dsse.bytes_of(path)
    envelope = dsse.parsed(data, str(path))
    role, stated = role_of(trust, envelope, path.name, at), dsse.unverified(envelope, path.name)["predicate"]
    asset = str(stated.get("asset", path.stem))
    measured = {"manifest": stated["materials"][asset]} if asset in stated.get("materials", {}) else {}
    digest = hashlib.sha256(data).hexdigest()
    facts = {**measured, **stated.get("facts", {})}
    return AttestedFacts(kind=asset, sha256=digest, role=role, facts=facts, at=str(stated.get("at", "")))


def _said(ctx: Context, own: Candidate) -> Iterator[SignedText]:
    """Yield the reasons given in the signed approval decisions on a candidate."""
    for path in sorted((ctx.workspace.approvals / own.key[:12]).glob("*.json")):
        data = dsse.bytes_of(path)
        one = approval.verify_statement(ctx, path, own, data)
        digest = hashlib.sha256(data).hexdigest()
        yield SignedText(subject=one.decision, text=one.reason, by=one.by, role=APPROVER, evidence=digest)


def _provided(ctx: Context, own: Candidate, version: str | None) -> Iterator[SignedText]:
    """Yield the provider's signed texts for the release of a candidate."""
    stated = provider.current(ctx, own.model.removesuffix("-candidate"))
    yield from provider.said(stated, version) if stated else ()


def papers_of(ctx: Context, found: ReleasedModel) -> MadePapers:
    """Return the documents of a release. If the version was rolled back, the documents state the rollback."""
    name, at = found.name, found.record.at
    subject = subject_of(ctx, found.candidate, name, released=_digest(ctx, found.record), at=at)
    place = releases.history(ctx, found.record.model).standing.place(str(found.record.version))
    return make(ctx, subject.model_copy(update={"rolled_back": place == "rolled back"}))


def papers_of_candidate(ctx: Context, found: Candidate) -> MadePapers:
    """Return the documents of a verified candidate, or of its release if it was released.

    If another candidate with the same checkpoint was released, the documents keep the evidence of this candidate and
    name the release.
    """
    known = verified.released_as(ctx, found)
    if known and known[0].candidate["candidate"] == found.key:
        return papers_of(ctx, ReleasedModel(known[0], found))
    subject = subject_of(ctx, found, f"{found.model}/{found.version}")
    if known:
        state = {"released": _digest(ctx, known[0]), "rolled_back": known[1] == "rolled back"}
        state["released_at"] = known[0].at
        subject = subject.model_copy(update=state)
    return make(ctx, subject)


def _digest(ctx: Context, record: ReleaseRecord) -> str:
    return hashlib.sha256(pretty(record_envelope(ctx, record))).hexdigest()


def leaving(ctx: Context, found: ReleasedModel) -> LeavingPapers:
    """Return the documents for an export, signed by compliance if the policy requires a signature.

    Raises:
        GateError: the policy requires signed documents, and these documents are not signed.
    """
    made, evidence = papers_of(ctx, found), dict[str, tuple[str, bytes]]()
    if statement := for_export(ctx, found.record.model, made):
        evidence[f"{EVIDENCE}/papers.json"] = (COMPLIANCE, pretty(statement))
    if stated := provider.current(ctx, found.record.model):
        envelope, name = dsse.envelope_of(stated.path), f"{EVIDENCE}/provider.json"
        role = role_of(Trust.of(ctx.workspace), envelope, name, found.record.at)
        evidence[name] = (role, pretty(envelope))
    return LeavingPapers(made.files, evidence)


def card(ctx: Context, found: Candidate) -> str:
    """Return the model card of a verified candidate, or of its release if it was released."""
    return papers_of_candidate(ctx, found).files[MODEL_CARD].decode()


PAPERS = Papers("papers", leaving, card)
