"""Exports of models: releases with their documents and signed statements, and unreleased checkpoints with a card that
labels them as unreleased. A release is verified again before its export.

Releases come from the signed history, and MLflow is not trusted. A version that was rolled back or is tainted is always
refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.entry_points import absent, not_here
from plinth.errors import GateError, MissingError, PlinthError, SignatureError
from plinth.provenance.statements import chain
from plinth.trust import dsse
from plinth.trust.dsse import OWNER, ROLES, ROOT, TRAINER
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import FORMS, RELEASE
from plinth.trust.standalone_verify import ROLES as ROLE_OF
from plinth_registry import (
    approval,
    attestations,
    candidate,
    exports,
    judgement,
    policy,
    releases,
    signing,
    taint,
    verified,
)
from plinth_registry.audit_log import LOGINS, RELEASES
from plinth_registry.exports import ExportClaim
from plinth_registry.papers import PAPERS, Papers, ReleasedModel
from plinth_registry.releases import ReleaseHistory, ReleaseRecord

EVIDENCE = "evidence"


def find(ctx: Context, target: str) -> ReleasedModel:
    """Return the release that `NAME/VERSION` or `NAME@PLACE` names, verified down to its sources.

    Raises:
        MissingError: the release has no such alias.
        GateError: the version was never released, was rolled back, or is tainted.
        SignatureError, LineageError: a statement, a file or the chain was changed.
    """
    name, version = _named(ctx, target)
    found, _ = verified.verify_release(ctx, name, version)
    return ReleasedModel(releases.history(ctx, name).releasing(name, version), found)


def _named(ctx: Context, target: str) -> tuple[str, str]:
    """Return the release name and the version that a target names."""
    name, separator, which = target.rpartition("@") if "@" in target else target.rpartition("/")
    if separator != "@":
        return name, which
    version = releases.history(ctx, name).standing.aliases.get(which)
    if version is None:
        raise MissingError(f"{name} has no {which}", remedy="list releases and versions with `plinth status`")
    return name, version


def require_standing(ctx: Context, proved: Mapping[str, Any]) -> None:
    """Check that a verified export was not rolled back or tainted later. The export's signature never expires, so this
    workspace's history and taints are read.

    Args:
        proved: result of `exports.verify`. Releases that this workspace does not know pass.

    Raises:
        GateError: the version was rolled back, or is tainted.
        SignatureError, LineageError: the history, the taints or the chain cannot be trusted.
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
    """Write documents and evidence into a directory before it is signed, and return the claims for the signed
    statement.

    Args:
        form: form of the export; the evaluator's statement about it is included.

    Raises:
        GateError: the policy requires documents signed by compliance, and these are not signed.
        RecipeError: the policy requires signed documents, and the package that writes them is not installed.
    """
    evidence = dict(_statements(ctx, found, form))
    for papers in _papers(ctx, found.record.model):
        leaving = papers.leaving(ctx, found)
        evidence |= leaving.evidence
        for name, content in leaving.files.items():
            _write(directory / name, content)
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


def record_envelope(ctx: Context, record: ReleaseRecord) -> dict[str, Any]:
    """Return the signed envelope of a release record.

    Raises:
        SignatureError: the file of the record now contains another record.
    """
    path = RELEASES.path(ctx, record.number)
    data = dsse.bytes_of(path)
    if releases.record_of(RELEASES.opened(Trust.of(ctx.workspace), data, str(path))) != record:
        raise SignatureError(
            f"{path} was replaced", expected=f"release record {record.number}, unchanged since it was verified"
        )
    return dict(dsse.parsed(data, str(path))["envelope"])


def pretty(envelope: Mapping[str, Any]) -> bytes:
    """Format a signed envelope as JSON for an export."""
    return json.dumps(envelope, indent=1, sort_keys=True).encode()


def _papers(ctx: Context, model: str) -> list[Papers]:
    """Return the documents that the installed packages add to an export of a model.

    Raises:
        RecipeError: the newest policy requires signed documents, and the package that writes them is not installed.
    """
    for package in absent(PAPERS.group).values():
        if any(one.policy.papers == "signed" for one in policy.history(ctx, model)[-1:]):
            raise not_here(f"an export of {model}, whose gate policy requires `papers: signed`,", package)
    return list(PAPERS.values())


def statements_about(ctx: Context, checkpoint: str) -> list[Path]:
    """Return the paths of the signed statements about a checkpoint. Statements about quantized or pruned forms are left
    out, because each belongs to one export."""
    found = sorted(attestations.folder_of(ctx, checkpoint).glob("*.json"))
    return [path for path in found if not path.name.startswith(f"{FORMS.rstrip('/')}.")]


def role_of(trust: Trust, envelope: Mapping[str, Any], where: str, at: str | None) -> str:
    """Return the role that signed a statement. If the statement's type belongs to a role, this role must have signed
    it. If the type belongs to no role, any role may have signed it.

    Raises:
        SignatureError: no role's signature verifies.
    """
    kind = dsse.unverified(envelope, where)["predicateType"]
    for role in [ROLE_OF[kind]] if kind in ROLE_OF else [role for role in ROLES if role != ROOT]:
        try:
            dsse.opened(envelope, trust.authority(role), kind, where, at=at)
        except SignatureError:
            continue
        return role
    raise SignatureError(
        f"no authorized signature on {where}",
        found=kind,
        expected="a signature by a role that may sign this type of statement",
    )


def _statements(ctx: Context, found: ReleasedModel, form: str) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yield the name, role and bytes of each signed statement about a release."""
    trust, own = Trust.of(ctx.workspace), found.candidate
    beside = own.directory.name
    files = {f"{EVIDENCE}/provenance.slsa.json": signing.slsa_path(own.directory)}
    for path in sorted(own.directory.parent.glob(f"{beside}.{own.key[:12]}.*.json")):
        files[f"{EVIDENCE}/{path.name.removeprefix(f'{beside}.{own.key[:12]}.')}"] = path
    for path in sorted((ctx.workspace.approvals / own.key[:12]).glob("*.json")):
        files[f"{EVIDENCE}/approvals/{path.name}"] = path
    for record in approval.logins_about(ctx, own):
        path = LOGINS.path(ctx, record.number)
        files[f"{EVIDENCE}/logins/{path.name}"] = path
    for path in judgement.waiver_paths(ctx, found.record.model, own.key):
        files[f"{EVIDENCE}/waivers/{path.name}"] = path
    for path in (*statements_about(ctx, own.checkpoint), exports.form_statement(ctx, own.checkpoint, form)):
        files[f"{EVIDENCE}/attestations/{path.name}"] = path
    governed = (one for one in policy.history(ctx, found.record.model) if one.digest == found.record.policy)
    for one in governed:
        files[f"{EVIDENCE}/policy.json"] = policy.path_of(ctx, found.record.model, one.policy.version)
    envelopes = {RELEASE: record_envelope(ctx, found.record)}
    envelopes |= {name: dsse.envelope_of(path) for name, path in files.items()}
    provenance, _ = signing.provenance_of(own.directory, trust.authority(TRAINER), at=found.record.at)
    for number, signed in enumerate(provenance["training"].get("contracts", ()), 1):  # verified with the candidate
        yield f"{EVIDENCE}/contracts/{number:04d}.json", (OWNER, pretty(signed))
    head = ctx.workspace.releases / releases.HEAD
    envelopes |= {f"{EVIDENCE}/head.json": dsse.envelope_of(head)} if head.exists() else {}
    for name, envelope in envelopes.items():
        yield name, (role_of(trust, envelope, name, found.record.at), pretty(envelope))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# A checkpoint that no signed history released.

#: Label of documents and card of an unreleased model.
UNRELEASED = "UNRELEASED"
CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- plinth
- {status}
---

# {name}

**{status}**: this model was not released. It passed no gates and was not approved. It has no documents: its training
text, scores and licenses are not stated here.
"""


def require_untainted(ctx: Context, run_id: str, inputs: tuple[str, ...]) -> None:
    """Check that the checkpoint of a run and its inputs are not tainted.

    Args:
        inputs: digests of the manifests that the run reads.

    Raises:
        GateError: the run or one of its inputs is tainted.
        LineageError: a manifest of the ancestry is absent or has changed, so taints cannot be checked.
    """
    found = [mark for digest in inputs for mark in taint.marks_on(ctx, chain(ctx.refs, ctx.refs.load(digest)))]
    own = (one for one in taint.records(ctx) if _is_of(ctx, one, run_id))
    found += [f"{one.target[:12]} is tainted by {one.by}: {one.reason}" for one in own]
    if found:
        raise GateError(
            f"run {run_id} is tainted",
            found="; ".join(dict.fromkeys(found)),
            remedy="export another run; tainted checkpoints cannot be exported",
        )


def add_card(directory: Path, name: str) -> None:
    """Write the model card of an unreleased model."""
    (directory / "README.md").write_text(CARD.format(name=name, status=UNRELEASED))


def _is_of(ctx: Context, mark: taint.Taint, run_id: str) -> bool:
    """Return True if a taint is on a manifest of this run or of a checkpoint of the run."""
    try:
        return mark.kind == "manifest" and ctx.refs.load(mark.target).stats.get("run_id") == run_id
    except PlinthError:
        return False
