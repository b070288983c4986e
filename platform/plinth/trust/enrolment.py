"""Creation of a root of trust; enrollment, revocation and renewal of keys. Only this module creates keys.

Every change is a new version of the root. The version is signed with the root keys of this machine and published in the
workspace, where every machine that has pinned an earlier version finds it. If several holders must sign, the version is
written to the file in `propose` instead (see `versions`). The root does not change until that proposal is published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plinth.errors import SignatureError
from plinth.storage import seal
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, root, signers, versions
from plinth.trust.dsse import APPROVER, ROLES, ROOT, Role, RootKey, SigstoreIdentity
from plinth.trust.root import ROOT_FILE, Root, Trust, owner_file
from plinth.trust.versions import Proposing

VALID_DAYS = 365


def initialise(
    workspace: Workspace, name: str, people: Iterable[str], *, demo: bool = False, days: int = VALID_DAYS
) -> Trust:
    """Create a root with a key for every role and every approver, with all private keys on this machine.

    Args:
        people: approvers, by name or e-mail address.
        demo: True creates a demo root; everything signed with its keys is shown as a demo.
        days: validity of the root.

    Raises:
        SignatureError: a root is already pinned for this workspace.
    """
    folder = workspace.trust_folder
    if (folder / ROOT_FILE).exists():
        raise SignatureError(
            f"a root of trust is already pinned for {workspace.uri or workspace.root}",
            found=str(folder / ROOT_FILE),
            remedy="`plinth keys show` lists the pinned root; enroll or revoke keys, or renew the root, instead",
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    seal.make(folder)
    owners = {role: (role,) for role in ROLES if role != APPROVER} | {APPROVER: tuple(people)}
    keys: dict[str, RootKey] = {}
    roles = {}
    for role, names in owners.items():
        made = [RootKey(owner=owner, public=new_key(folder, role, owner)) for owner in names]
        keys |= {signers.key_id_of(key.public): key for key in made}
        roles[role] = Role(keys=tuple(signers.key_id_of(key.public) for key in made))
    now = datetime.now(UTC)
    until = _iso(now + timedelta(days=days))
    record = Root(name=name, version=1, issued=_iso(now), expires=until, demo=demo, keys=keys, roles=roles)
    return versions.publish(workspace, folder, record, None)


def new_key(folder: Path, role: str, owner: str) -> str:
    """Create a private key for an owner in a trust folder, and return the PEM of its public key. The key is not
    enrolled.

    Raises:
        SignatureError: the role is unknown, or the owner already has a key for the role in this folder.
    """
    require_role(role)
    place = folder / "keys" / role
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return signers.make_private_key(place / f"{owner_file(owner)}.key")


def note_key(folder: Path, role: str, owner: str, source: str) -> str:
    """Record the location of an owner's private key, and return the PEM of its public key. The key is not enrolled.

    Args:
        source: location of the key, in one of the forms that `signers` accepts.

    Raises:
        SignatureError: the role is unknown, the owner already has a key for the role, or the key cannot be used.
    """
    require_role(role)
    place = folder / "keys" / role / f"{owner_file(owner)}.source"
    if place.exists() or place.with_suffix(".key").exists() or len(source.splitlines()) != 1:
        raise SignatureError(
            f"{owner} already has a key as {role} on this machine, or the key source is not a single line", found=source
        )
    public = signers.public_of(source)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(place, f"{source}\n".encode(), mode=0o600)
    return public


def enrol(workspace: Workspace, role: str, owner: str, public: str, *, propose: Proposing | None = None) -> Trust:
    """Enroll a key: allow it to sign as a role.

    Raises:
        SignatureError: the role is unknown, `public` is not a public key, the key belongs to another owner, or no root
            key is on this machine.
    """
    require_role(role)
    _ = owner_file(owner)
    trust = Trust.of(workspace)
    key_id = signers.key_id_of(public)
    same = trust.root.keys.get(key_id)
    if same is not None and (same.owner != owner or same.revoked_from):
        state = "revoked" if same.revoked_from else f"the key of {same.owner}"
        raise SignatureError(
            "this key is enrolled already", found=state, expected=f"a key of {owner}", remedy="enroll a new key"
        )
    before = trust.root.role(role)
    after = Role(keys=tuple(dict.fromkeys((*before.keys, key_id))), threshold=before.threshold)
    return changed(
        workspace,
        trust,
        keys={**trust.root.keys, key_id: RootKey(owner=owner, public=public)},
        roles={**trust.root.roles, role: after},
        propose=propose,
    )


def revoke(workspace: Workspace, key: str, since: datetime, *, propose: Proposing | None = None) -> Trust:
    """Revoke a key: reject statements that it signed on or after a date, and all its statements whose time is unknown.

    Args:
        key: prefix of the key's id.
        since: date from which the key is revoked, with a time zone.

    Raises:
        SignatureError: no key or several keys have this prefix, or too few root keys would be left.
    """
    trust = Trust.of(workspace)
    found = [key_id for key_id in trust.root.keys if len(key) >= 6 and key_id.startswith(key)]
    if len(found) != 1:
        raise SignatureError(
            f"no key {key}", found=f"{len(found)} match", remedy="list the keys of the root with `plinth keys show`"
        )
    revoked = trust.root.keys[found[0]].model_copy(update={"revoked_from": _iso(since)})
    roles = dict(trust.root.roles)
    kept = tuple(each for each in roles[ROOT].keys if each != found[0])
    roles[ROOT] = Role(keys=kept, threshold=roles[ROOT].threshold) if kept else roles[ROOT]
    if found[0] in roles[ROOT].keys:
        raise SignatureError("the last root key cannot be revoked", remedy="enroll another root key first")
    return changed(workspace, trust, keys={**trust.root.keys, found[0]: revoked}, roles=roles, propose=propose)


def rotate(workspace: Workspace, role: str, owner: str) -> Trust:
    """Replace an owner's key for a role with a new key. The old key is revoked at once, and its file is kept but not
    used.

    Raises:
        SignatureError: the owner has no such key on this machine, or no root key is on this machine.
    """
    trust = Trust.of(workspace)
    old = trust.signer(role, owner)
    place = trust.folder / "keys" / role / f"{owner_file(owner)}.key"
    retired = place.with_suffix(f".{old.key_id[:8]}.retired")
    if role == ROOT or not place.exists():
        raise SignatureError(
            f"the key of {owner} as {role} cannot be rotated here",
            found=old.source if role != ROOT else "a root key",
            expected="a key file, for a role other than root",
            remedy="enroll the new key, then revoke the old one",
        )
    place.rename(retired)
    try:
        enrol(workspace, role, owner, new_key(trust.folder, role, owner))
    except SignatureError:
        retired.replace(place)  # no root key here, or too few: the new key is unused
        raise
    return revoke(workspace, old.key_id, datetime.now(UTC))


def threshold(workspace: Workspace, role: str, count: int, *, propose: Proposing | None = None) -> Trust:
    """Set the number of different keys that must sign as a role.

    Raises:
        SignatureError: the role is unknown, or has fewer valid keys than `count`.
    """
    require_role(role)
    trust = Trust.of(workspace)
    before = trust.root.role(role)
    valid = [key_id for key_id in before.keys if trust.root.keys[key_id].revoked_from is None]
    if not 1 <= count <= len(valid):
        raise SignatureError(f"{role} cannot require {count} keys", found=f"{len(valid)} valid keys")
    roles = {**trust.root.roles, role: Role(keys=before.keys, threshold=count)}
    return changed(workspace, trust, roles=roles, propose=propose)


def renew(workspace: Workspace, days: int = VALID_DAYS, *, propose: Proposing | None = None) -> Trust:
    """Extend the validity of the root."""
    return changed(workspace, Trust.newest(workspace), days=days, propose=propose)


def pin_root(workspace: Workspace, path: Path, *, replace: bool = False) -> Trust:
    """Pin a root file, so that this machine trusts the root for this workspace.

    Raises:
        SignatureError: the file is not a root or has expired, another root is pinned, or this machine has seen a newer
            version.
    """
    envelope = dsse.envelope_of(path.resolve())
    found = root.first(envelope, str(path)).require_current()
    folder = workspace.trust_folder
    target = folder / ROOT_FILE
    if target.exists() and not replace:
        known = root.first(dsse.envelope_of(target.resolve()), str(target))
        if known != found:
            raise SignatureError(
                f"another root is pinned for {workspace.uri or workspace.root}",
                found=known.title,
                expected=found.title,
                remedy="pass --replace if you know that the new root is correct; later versions of that root are "
                "accepted without pinning",
            )
    if not replace:
        Trust(folder, found).not_older()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(target, json.dumps(envelope, indent=1, sort_keys=True).encode(), mode=0o600)
    Trust(folder, found).pinned(replaced=replace)
    return Trust.of(workspace)


def changed(
    workspace: Workspace,
    trust: Trust,
    *,
    keys: Mapping[str, RootKey] | None = None,
    roles: Mapping[str, Role] | None = None,
    identities: Mapping[str, tuple[SigstoreIdentity, ...]] | None = None,
    days: int | None = None,
    propose: Proposing | None = None,
) -> Trust:
    """Publish the next version of the root, or write it as a proposal. Arguments that are None change nothing.

    Raises:
        SignatureError: raised under the same conditions as by `versions.publish` or `versions.propose`.
    """
    now, before = datetime.now(UTC), trust.root
    record = Root(
        name=before.name,
        version=before.version + 1,
        issued=_iso(now),
        expires=before.expires if days is None else _iso(now + timedelta(days=days)),
        demo=before.demo,
        keys=before.keys if keys is None else keys,
        roles=before.roles if roles is None else roles,
        identities=before.identities if identities is None else identities,
    )
    if propose is None:
        return versions.publish(workspace, trust.folder, record, before)
    versions.propose(trust, record, propose.file, instead=propose.instead)
    return trust


def require_role(role: str) -> None:
    """Reject an unknown role.

    Raises:
        SignatureError: there is no such role.
    """
    if role not in ROLES:
        raise SignatureError(f"no role {role}", expected=", ".join(ROLES))


def _iso(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds")


def name(
    workspace: Workspace, role: str, given: SigstoreIdentity, *, propose: Proposing | None = None
) -> Trust:
    """Accept Sigstore bundles signed by an identity for a role.

    Raises:
        SignatureError: the role is unknown, or is `root`, for which only keys can sign.
    """
    return _identified(workspace, role, (given,), (), propose)


def drop(
    workspace: Workspace, role: str, given: SigstoreIdentity, *, propose: Proposing | None = None
) -> Trust:
    """Remove a Sigstore identity from a role.

    Raises:
        SignatureError: the root does not list the identity for the role.
    """
    return _identified(workspace, role, (), (given,), propose)


def _identified(
    workspace: Workspace,
    role: str,
    more: tuple[SigstoreIdentity, ...],
    less: tuple[SigstoreIdentity, ...],
    propose: Proposing | None,
) -> Trust:
    require_role(role)
    trust = Trust.of(workspace)
    before = trust.root.identities.get(role, ())
    if role == ROOT or not set(less) <= set(before):
        raise SignatureError(
            f"{role} does not have this Sigstore identity",
            found=", ".join(each.identity for each in before) or "none",
            expected="an identity that the root lists, for a role other than root, because only keys sign as root",
        )
    after = tuple(each for each in dict.fromkeys((*before, *more)) if each not in less)
    identities = {name: those for name, those in {**trust.root.identities, role: after}.items() if those}
    return changed(workspace, trust, identities=identities, propose=propose)
