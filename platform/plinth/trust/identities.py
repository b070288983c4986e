"""Whose Sigstore bundles count for a role: identities in the root, named and dropped like keys."""

from __future__ import annotations

from plinth.errors import SignatureError
from plinth.storage.workspace import Workspace
from plinth.trust import enrolment
from plinth.trust.authority import ROOT, SigstoreIdentity
from plinth.trust.pin import Trust
from plinth.trust.versions import Proposing


def name(
    workspace: Workspace, role: str, given: SigstoreIdentity, *, propose: Proposing | None = None
) -> Trust:
    """Let Sigstore bundles of an identity count for a role.

    Raises:
        SignatureError: no such role, or `root`, as which only keys sign.
    """
    return _identified(workspace, role, (given,), (), propose)


def drop(
    workspace: Workspace, role: str, given: SigstoreIdentity, *, propose: Proposing | None = None
) -> Trust:
    """Let them count no more.

    Raises:
        SignatureError: the root does not name it for the role.
    """
    return _identified(workspace, role, (), (given,), propose)


def _identified(
    workspace: Workspace,
    role: str,
    more: tuple[SigstoreIdentity, ...],
    less: tuple[SigstoreIdentity, ...],
    propose: Proposing | None,
) -> Trust:
    enrolment.require_role(role)
    trust = Trust.of(workspace)
    before = trust.root.identities.get(role, ())
    if role == ROOT or not set(less) <= set(before):
        raise SignatureError(
            f"{role} has no such identity",
            found=", ".join(each.identity for each in before) or "none",
            expected="one that the root names, for another role than root: as root, only keys sign",
        )
    after = tuple(each for each in dict.fromkeys((*before, *more)) if each not in less)
    identities = {name: those for name, those in {**trust.root.identities, role: after}.items() if those}
    return enrolment.changed(workspace, trust, identities=identities, propose=propose)
