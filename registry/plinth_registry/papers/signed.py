"""The signature of compliance under papers: a statement with the SHA-256 of each, by the name it has in an export.

    papers/<checkpoint 16>/<16 of the SHA-256 over the papers>.json     DSSE envelope, signed as `compliance`

It is about these very bytes: papers that say anything else, after a new decision or attestation, are signed anew.
Where the newest gate policy says `papers: signed`, a release is exported with such a statement only. A demo root signs
on the way, since all its keys lie on one machine; no other root does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError
from plinth.trust import dsse
from plinth.trust.authority import COMPLIANCE
from plinth.trust.clock import now
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import PAPERS_TYPE
from plinth_registry import audit_log, policy
from plinth_registry.audit_log import AuditedAction
from plinth_registry.papers import papers, place
from plinth_registry.papers.gather import PaperSubject, gather

FOLDER: Final = "papers"


class MadePapers(NamedTuple):
    """Papers by the name that they have in an export, and what they are about."""

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
    """The papers of a verified subject.

    Raises:
        LineageError, MissingError, IntegrityError: see `gather`.
    """
    return MadePapers(subject, {place(name): content for name, content in papers(gather(ctx, subject)).items()})


def sign(ctx: Context, made: MadePapers, reason: str = "", owner: str | None = None) -> Path:
    """Sign papers as compliance; what is signed already is left alone. Returns the statement's path.

    Raises:
        SignatureError: no compliance key on this machine, or not of this owner.
    """
    with audit_log.audited(ctx, AuditedAction("papers", made.title, owner or "", reason, owner), once=True):
        path = path_of(ctx, made)
        if not signed_by(ctx, made):
            predicate = {"name": made.subject.name, "release": made.subject.released, "reason": reason, "at": now()}
            subjects = {**made.digests, "checkpoint": made.checkpoint}
            statement = dsse.statement(PAPERS_TYPE, subjects, predicate)
            dsse.write(path, statement, Trust.of(ctx.workspace).signer(COMPLIANCE, owner))
        return path


def signed_by(ctx: Context, made: MadePapers) -> tuple[str, ...]:
    """Who signed these papers as compliance; nobody where the statement is absent, of other papers or does not hold."""
    envelope = _statement(ctx, made)
    return dsse.signed_by(envelope, Trust.of(ctx.workspace).authority(COMPLIANCE)) if envelope else ()


def _statement(ctx: Context, made: MadePapers) -> dict[str, Any] | None:
    """The envelope of the statement over these papers; None where it is absent, of other papers or does not hold."""
    path, authority = path_of(ctx, made), Trust.of(ctx.workspace).authority(COMPLIANCE)
    try:
        envelope = dsse.envelope_of(path)
        stated = dsse.opened(envelope, authority, PAPERS_TYPE, str(path))
    except SignatureError:
        return None
    return envelope if dsse.subjects(stated) == {**made.digests, "checkpoint": made.checkpoint} else None


def for_export(ctx: Context, model: str, made: MadePapers) -> dict[str, Any] | None:
    """The statement that leaves with a release's papers; None where nobody signed and the policy asks for nothing.

    Raises:
        GateError: the newest policy asks for it, and compliance has not signed these papers.
    """
    if envelope := _statement(ctx, made):
        return envelope
    if not any(one.policy.papers == "signed" for one in policy.history(ctx, model)[-1:]):
        return None
    if Trust.of(ctx.workspace).root.demo:
        sign(ctx, made, "a demo root signs on the way")
        return _statement(ctx, made)
    raise GateError(
        f"the papers of {made.subject.name} are not signed",
        expected="a statement of compliance over these papers: the gate policy says `papers: signed`",
        remedy=f"read them, then: `plinth release papers {made.subject.name} --sign`",
    )


def path_of(ctx: Context, made: MadePapers) -> Path:
    """Where the statement over these papers lies."""
    return ctx.workspace.root / FOLDER / made.checkpoint[:16] / f"{fingerprint.digest(made.digests)[:16]}.json"
