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
from plinth.errors import GateError, MissingError, SignatureError
from plinth.provenance.statements import chain
from plinth.trust import dsse
from plinth.trust.authority import COMPLIANCE, TRAINER
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import RELEASE
from plinth_registry import candidate, policy, released, releases, signing, taint, waivers
from plinth_registry.candidate import Candidate
from plinth_registry.exports import forms
from plinth_registry.exports.sealed import ExportClaim
from plinth_registry.history import ReleaseHistory, ReleaseRecord
from plinth_registry.login import log
from plinth_registry.papers import provider, signed
from plinth_registry.papers.signed import MadePapers
from plinth_registry.papers.subject import role_of, statements_about, subject_of
from plinth_registry.signed_log import LOGINS, RELEASES

EVIDENCE = "evidence"


class ReleasedModel(NamedTuple):
    """A proved release: its record and candidate."""

    record: ReleaseRecord
    candidate: Candidate

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
    found, _ = released.verify_release(ctx, name, version)
    return ReleasedModel(releases.history(ctx, name).releasing(name, version), found)


def _named(ctx: Context, target: str) -> tuple[str, str]:
    """Name and version."""
    name, separator, which = target.rpartition("@") if "@" in target else target.rpartition("/")
    if separator != "@":
        return name, which
    version = releases.history(ctx, name).standing.aliases.get(which)
    if version is None:
        raise MissingError(f"{name} has no {which}", remedy="`plinth status` lists releases and their versions")
    return name, version


def require_standing(ctx: Context, proved: Mapping[str, Any]) -> None:
    """Ask the history and the marks of this workspace about an export that was proved: its signature holds for ever.

    Args:
        proved: as `sealed.verify` gives it. Of a release that this workspace does not know, nothing is known.

    Raises:
        GateError: the version was rolled back, or is tainted.
        SignatureError, LineageError: the history, the marks or the chain cannot be trusted.
    """
    name, _, version = str(proved["name"]).rpartition("/")
    records = releases.history(ctx, name) if proved["status"] == "released" else ReleaseHistory()
    if records.standing.place(version) == "rolled back":
        raise GateError(f"{name}/{version} was rolled back", remedy=f"export {name}@champion")
    if records and taint.records(ctx):
        own = str(proved["checkpoint"])
        marks = taint.marks_on(ctx, chain(ctx.refs, ctx.refs.load(own)), candidate.evidence_of(ctx, own))
        if marks:
            raise GateError(f"{name}/{version} is tainted", found="; ".join(marks), remedy="do not use this export")


def add_papers(ctx: Context, found: ReleasedModel, form: str, directory: Path) -> ExportClaim:
    """Write papers and evidence into a directory that is about to be sealed; returns what the seal states.

    Args:
        form: the evaluator's statement about it leaves too.

    Raises:
        GateError: the policy asks for papers that compliance signed, and these are not.
    """
    evidence, made = dict(_statements(ctx, found, form)), papers_of(ctx, found)
    for name, content in made.files.items():
        _write(directory / name, content)
    if statement := signed.for_export(ctx, found.record.model, made):
        evidence[f"{EVIDENCE}/papers.json"] = (COMPLIANCE, _pretty(statement))
    for name, (_, content) in evidence.items():
        _write(directory / name, content)
    trainer = Trust.of(ctx.workspace).authority(TRAINER)
    _, own = signing.provenance_of(found.candidate.directory, trainer, at=found.record.at)
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


def papers_of(ctx: Context, found: ReleasedModel) -> MadePapers:
    """The papers of a release; those of a version that was rolled back say so."""
    name, at = found.name, found.record.at
    subject = subject_of(ctx, found.candidate, name, released=_digest(ctx, found.record), at=at)
    place = releases.history(ctx, found.record.model).standing.place(str(found.record.version))
    return signed.make(ctx, subject.model_copy(update={"rolled_back": place == "rolled back"}))


def papers_of_candidate(ctx: Context, found: Candidate) -> MadePapers:
    """The papers of a verified candidate: those of its release, if there is one. Another candidate with a released
    checkpoint keeps its own evidence, and its papers say that the checkpoint was released."""
    known = released.released_as(ctx, found)
    if known and known[0].candidate["candidate"] == found.key:
        return papers_of(ctx, ReleasedModel(known[0], found))
    subject = subject_of(ctx, found, f"{found.model}/{found.version}")
    if known:
        state = {"released": _digest(ctx, known[0]), "rolled_back": known[1] == "rolled back"}
        subject = subject.model_copy(update=state)
    return signed.make(ctx, subject)


def _digest(ctx: Context, record: ReleaseRecord) -> str:
    return hashlib.sha256(_pretty(_record(ctx, record))).hexdigest()


def _record(ctx: Context, record: ReleaseRecord) -> dict[str, Any]:
    """The signed envelope of the release record.

    Raises:
        SignatureError: another record is in its file now.
    """
    path = RELEASES.path(ctx, record.number)
    data = dsse.bytes_of(path)
    if releases.record_of(RELEASES.opened(Trust.of(ctx.workspace), data, str(path))) != record:
        raise SignatureError(f"{path} was exchanged", expected=f"release record {record.number}, as it was verified")
    return dict(dsse.parsed(data, str(path))["envelope"])


def _pretty(envelope: Mapping[str, Any]) -> bytes:
    return json.dumps(envelope, indent=1, sort_keys=True).encode()


def _statements(ctx: Context, found: ReleasedModel, form: str) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Role and bytes of every signed statement about a release, by its name in the export."""
    trust, own = Trust.of(ctx.workspace), found.candidate
    beside = own.directory.name
    files = {f"{EVIDENCE}/provenance.slsa.json": signing.slsa_path(own.directory)}
    for path in sorted(own.directory.parent.glob(f"{beside}.{own.key[:12]}.*.json")):
        files[f"{EVIDENCE}/{path.name.removeprefix(f'{beside}.{own.key[:12]}.')}"] = path
    for path in sorted((ctx.workspace.approvals / own.key[:12]).glob("*.json")):
        files[f"{EVIDENCE}/approvals/{path.name}"] = path
    for record in log.about(ctx, own):
        path = LOGINS.path(ctx, record.number)
        files[f"{EVIDENCE}/logins/{path.name}"] = path
    for path in waivers.paths(ctx, found.record.model, own.key):
        files[f"{EVIDENCE}/waivers/{path.name}"] = path
    for path in (*statements_about(ctx, own.checkpoint), forms.statement_of(ctx, own.checkpoint, form)):
        files[f"{EVIDENCE}/attestations/{path.name}"] = path
    governed = (one for one in policy.history(ctx, found.record.model) if one.digest == found.record.policy)
    for one in governed:
        files[f"{EVIDENCE}/policy.json"] = policy.path_of(ctx, found.record.model, one.policy.version)
    envelopes = {RELEASE: _record(ctx, found.record)} | {name: dsse.envelope_of(path) for name, path in files.items()}
    head = ctx.workspace.releases / releases.HEAD
    if stated := provider.current(ctx, found.record.model):
        envelopes[f"{EVIDENCE}/provider.json"] = dsse.envelope_of(stated.path)
    envelopes |= {f"{EVIDENCE}/head.json": dsse.envelope_of(head)} if head.exists() else {}
    for name, envelope in envelopes.items():
        yield name, (role_of(trust, envelope, name, found.record.at), _pretty(envelope))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
