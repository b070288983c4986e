"""Root of trust: keys by role, expiry, and the succession of versions.

The model is TUF's root role: each version is signed by a threshold of root keys. The next version is signed by a
threshold of the old root keys *and* of its own root keys, so a machine that pins one version can verify every later
version. A revoked key still verifies statements from before its revocation date.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from plinth import fingerprint
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.off_limits import KEY_VARIABLE
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, signers
from plinth.trust.dsse import LATER, ROLES, ROOT, Authority, Role, RootKey, SigstoreIdentity, time_of
from plinth.trust.signers import Signer

PREDICATE: Final = "urn:plinth:root:v1"


class Root(Frozen):
    """Roles, public keys and thresholds, valid until `expires`, and Sigstore identities by role.

    Times are UTC in ISO 8601. `demo` marks a root whose keys were created without confirmation. Everything signed with
    these keys is shown as a demo.
    """

    name: str = Field(min_length=1, max_length=100)
    version: int = Field(ge=1)
    issued: str
    expires: str
    demo: bool = False
    keys: Mapping[str, RootKey]
    roles: Mapping[str, Role]
    identities: Mapping[str, tuple[SigstoreIdentity, ...]] = {}

    @model_serializer(mode="wrap")
    def _as_before(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit `identities` if it is empty, so that the digests of older roots stay the same."""
        found: dict[str, Any] = plain(self)
        return found if self.identities else {name: value for name, value in found.items() if name != "identities"}

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not set(ROLES) - LATER <= set(self.roles) <= set(ROLES):
            raise ValueError(f"roles are {sorted(self.roles)}, expected {sorted(ROLES)}")
        for name, role in self.roles.items():
            if strange := set(role.keys) - set(self.keys):
                raise ValueError(f"role {name} has keys that are not in the root: {sorted(strange)}")
            if name == ROOT and role.threshold > len(role.keys):
                raise ValueError(f"the role root needs {role.threshold} keys, but has {len(role.keys)}")
        if strange := set(self.identities) - (set(ROLES) - {ROOT}):
            raise ValueError(
                f"identities are set for {sorted(strange)}: this is not a role, or it is the role root, which accepts "
                "keys only"
            )
        for given in (self.issued, self.expires, *(key.revoked_from for key in self.keys.values())):
            _ = given and time_of(given)
        return self

    @property
    def title(self) -> str:
        """Name and version, with `demo root` for a demo root."""
        return f"{'demo root' if self.demo else 'root'} {self.name} version {self.version}"

    def role(self, name: str) -> Role:
        """Return the keys of a role and its threshold. A role that is newer than the root has no keys."""
        return self.roles[name] if name in self.roles else Role(keys=())

    def authority(self, role: str) -> Authority:
        """Return the keys that may sign as a role."""
        known = self.role(role)
        return Authority(
            role=role,
            root=self.title,
            keys={key_id: self.keys[key_id] for key_id in known.keys},
            threshold=known.threshold,
        )

    def digest(self) -> str:
        """Return the SHA-256 of the root's canonical record."""
        return fingerprint.digest(self)

    def expired(self, at: datetime | None = None) -> bool:
        """Return True if the root has expired at the time `at` (with time zone), by default now."""
        return (at or datetime.now(UTC)) >= time_of(self.expires)

    def require_current(self, at: datetime | None = None) -> Root:
        """Return this root if it has not expired.

        Raises:
            SignatureError: the root has expired.
        """
        if self.expired(at):
            raise SignatureError(
                f"{self.title} has expired",
                found=f"expires {self.expires}",
                expected="a root that is still valid",
                remedy="have the holders of the root sign its next version: `plinth keys renew`",
            )
        return self


def sign(root: Root, signers: Iterable[Any]) -> dict[str, Any]:
    """Return the signed envelope of a root version.

    Args:
        root: version to sign.
        signers: holders of the root role (`signers.Signer`) in this version and the previous version.
    """
    content = dsse.statement(PREDICATE, {root.name: root.digest()}, root.model_dump(mode="json"))
    return dsse.seal(content, *signers)


def first(envelope: Mapping[str, Any], where: str) -> Root:
    """Return a root to be pinned, after checking that its own root keys signed it.

    The check does not prove that the root is genuine. The user must have received the file from a trusted source.

    Raises:
        SignatureError: this is not a root, or it is not signed by its own keys.
    """
    root = _parsed(dsse.unverified(envelope, where), where)
    dsse.opened(envelope, root.authority(ROOT), PREDICATE, where)
    return root


def following(root: Root, envelope: Mapping[str, Any], where: str) -> Root:
    """Return the next version of a trusted root.

    Raises:
        SignatureError: this is not the next version, it has another name, it is a demo root that would replace a real
            root, or it is signed by too few of the old or new root keys.
    """
    dsse.opened(envelope, root.authority(ROOT), PREDICATE, where)
    first(envelope, where)
    return next_of(root, envelope, where)


def next_of(root: Root, envelope: Mapping[str, Any], where: str) -> Root:
    """Return the next version of this root from an envelope, without verifying its signatures.

    Raises:
        SignatureError: this is not a root, or not the next version of this root.
    """
    content = dsse.unverified(envelope, where)
    found = _parsed(content, where)
    kind = content.get("predicateType")
    if kind != PREDICATE or (found.name, found.version, found.demo) != (root.name, root.version + 1, root.demo):
        raise SignatureError(
            f"{where} does not follow {root.title}",
            found=found.title if kind == PREDICATE else kind,
            expected=f"{root.name} version {root.version + 1}, {'a' if root.demo else 'no'} demo root",
            remedy="restore the missing version, or pin a root again from a trusted source",
        )
    return found


def changes(before: Root, after: Root) -> tuple[str, ...]:
    """Return the changes between two versions of a root, one sentence each: keys, roles, thresholds, revocations,
    expiry."""
    said = []
    for key_id in sorted(set(before.keys) | set(after.keys)):
        old, new = before.keys.get(key_id), after.keys.get(key_id)
        shown = f"key {key_id[:12]} of {(new or before.keys[key_id]).owner}"
        if old is None or new is None:
            said.append(f"{shown}: {'new' if old is None else 'removed from the root'}")
            continue
        if old.owner != new.owner or old.public != new.public:
            said.append(f"{shown}: was the key of {old.owner}" if old.owner != new.owner else f"{shown}: changed")
        if old.revoked_from != new.revoked_from:
            said.append(f"{shown}: revoked from {new.revoked_from or 'no time'} on, was {old.revoked_from or 'valid'}")
    for name in ROLES:
        was, now = before.role(name), after.role(name)
        said += [f"{name}: key {one[:12]} may sign" for one in now.keys if one not in was.keys]
        said += [f"{name}: key {one[:12]} may no longer sign" for one in was.keys if one not in now.keys]
        if was.threshold != now.threshold:
            said.append(f"{name}: needs {now.threshold} keys, was {was.threshold}")
        given, earlier = (set(each.identities.get(name, ())) for each in (after, before))
        said += [f"{name}: {one.identity} of {one.issuer} added" for one in sorted(given - earlier, key=str)]
        said += [f"{name}: {one.identity} of {one.issuer} removed" for one in sorted(earlier - given, key=str)]
    if before.expires != after.expires:
        said.append(f"expires {after.expires}, was {before.expires}")
    return tuple(said)


def _parsed(statement: Mapping[str, Any], where: str) -> Root:
    try:
        return Root.model_validate(statement["predicate"])
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"{where} is not a root of trust", found=error, expected=PREDICATE) from error


# Root pinned by this machine for a workspace, and the private keys in its folder.
#
#     $PLINTH_TRUST, or ~/.config/plinth/trust/<workspace>/     mode 700, outside every workspace
#         root.json                   the newest root verified here
#         keys/ROLE/OWNER.key         a private key; or OWNER.source: one line with its location (`signers`)
#         seal                        secret of this workspace's workers (`storage.seal`)
#         seen.json                   newest verified record of every log, by number and SHA-256: detects removals
#
# A role's key can also come from `PLINTH_KEY_<ROLE>`, so a process has only the keys it needs. The workspace has a copy
# of every root version; a copy is valid only if it follows from the pinned one.

ROOT_FILE = "root.json"
SEEN = "seen.json"


class Proof(NamedTuple):
    """Newest record of a log that this machine has verified: its number, the SHA-256 of its file, and the digest of the
    root with which it was verified."""

    number: int
    sha256: str = ""
    root: str = ""


@dataclass(frozen=True)
class Trust:
    """Verified root, and the folder with this machine's private keys."""

    folder: Path
    root: Root

    @classmethod
    def of(cls, workspace: Workspace) -> Trust:
        """Return the trust of a workspace: its pinned root, or the newest version that follows from the pinned root.

        Raises:
            SignatureError: no root is pinned, the root does not verify, or it has expired.
        """
        found = cls.newest(workspace)
        found.root.require_current()
        return found

    @classmethod
    def newest(cls, workspace: Workspace) -> Trust:
        """Return the trust in the newest version of the pinned root, even if it has expired. Use it to renew the root.

        Raises:
            SignatureError: no root is pinned, the root does not verify, or this machine has seen a newer version.
        """
        folder = workspace.trust_folder
        pinned = folder / ROOT_FILE
        if not pinned.exists():
            raise SignatureError(
                f"no root of trust is pinned for {workspace.uri or workspace.root}",
                found=f"no {pinned}",
                expected="a root of trust with keys by role",
                remedy="create one with `plinth keys init` (`--demo` to try), or pin yours with `plinth keys pin FILE`",
            )
        known = first(dsse.envelope_of(pinned.resolve()), str(pinned))  # the user's own file, which may be a link
        newest = known
        for path in _versions(workspace, known.version + 1):
            data = dsse.bytes_of(path)
            newest = following(newest, dsse.parsed(data, str(path)), str(path))
            write_bytes(pinned, data, mode=0o600)
            cls(folder, newest).remember(_counted(newest), newest.version)
        return cls(folder, newest).not_older()

    def not_older(self) -> Trust:
        """Return this trust after checking that this machine has not seen a newer version of its root.

        Raises:
            SignatureError: this machine has seen a newer version; keys revoked in that version would be valid again.
        """
        had = self.seen(_counted(self.root))
        if self.root.version < had:
            raise SignatureError(
                f"root {self.root.name} was replaced with an older version",
                found=f"{self.root.title} in {self.folder / ROOT_FILE}",
                expected=f"version {had} or later, because this machine has seen version {had}",
                remedy=f"restore that version, or restore trust/{had}.root.json in the workspace, or pin this root "
                "again with `plinth keys pin --replace FILE`",
            )
        return self

    def pinned(self, *, replaced: bool = False) -> Trust:
        """Record this root's version on this machine and return the trust. Older versions are rejected afterward.

        Args:
            replaced: True if the user explicitly requested the change. An older version is then accepted.
        """
        if replaced:
            self._forget(_counted(self.root))
        self.remember(_counted(self.root), self.root.version)
        return self

    def authority(self, role: str) -> Authority:
        """Return the keys that may sign as a role."""
        return self.root.authority(role)

    def signer(self, role: str, owner: str | None = None) -> Signer:
        """Return this machine's private key for a role. No key is created.

        Raises:
            SignatureError: there is no key, there are several keys and `owner` is None, or the root does not list the
                key.
        """
        authority = self.authority(role) if owner is None else self.authority(role).owned_by(owner)
        valid = [(key.owner, key.public) for key in authority.keys.values() if key.revoked_from is None]
        source = os.environ.get(f"{KEY_VARIABLE}{role.upper()}") or self._kept(role, {name for name, _ in valid})
        return signers.match(source, role, valid)

    def seen(self, *names: str) -> int:
        """Return the highest record number of a log that this machine has verified, under any name in `names`; 0 if
        there is none."""
        return self.proved(*names).number

    def proved(self, *names: str) -> Proof:
        """Return the newest record of a log that this machine has verified, under any name in `names`."""
        seen = self._seen()
        return max((_proof(seen.get(name, 0), self.folder) for name in names), key=lambda proof: proof.number)

    def remember(self, what: str, number: int, sha256: str = "") -> None:
        """Store the highest record number of a log. If that record was verified under this root, its SHA-256 is stored
        too."""
        found = Proof(number, sha256, self.root.digest() if sha256 else "")
        known = self.proved(what)
        if number < known.number or found == known:
            return
        with atomic.locked(self.folder / ".lock"):
            seen = self._seen()
            if number >= _proof(seen.get(what, 0), self.folder).number:
                seen[what] = list(found) if sha256 else number
                write_bytes(self.folder / SEEN, json.dumps(seen, indent=1, sort_keys=True).encode(), mode=0o600)

    def _forget(self, what: str) -> None:
        with atomic.locked(self.folder / ".lock"):
            kept = {name: known for name, known in self._seen().items() if name != what}
            write_bytes(self.folder / SEEN, json.dumps(kept, indent=1, sort_keys=True).encode(), mode=0o600)

    def _seen(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / SEEN).read_bytes()))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise SignatureError(f"{self.folder / SEEN} is damaged", found=error) from error

    def _kept(self, role: str, owners: set[str]) -> str:
        folder = self.folder / "keys" / role
        places = (folder / f"{owner_file(owner)}{suffix}" for owner in sorted(owners) for suffix in (".key", ".source"))
        found = [path for path in places if path.exists()]
        if len(found) != 1:
            whose = ", ".join(sorted(owners)) or "anybody"
            raise SignatureError(
                f"no private key of {whose} as {role} on this machine" if not found else f"several keys as {role}",
                found=", ".join(path.stem for path in found) or f"nothing in {folder}",
                expected=f"one key, or {KEY_VARIABLE}{role.upper()}",
                remedy="sign on the machine with that key" if not found else "pass the owner",
            )
        path = found[0]
        return path.read_text().strip() if path.suffix == ".source" else f"file:{path}"


def _proof(entry: Any, folder: Path) -> Proof:
    try:
        number, *rest = entry if isinstance(entry, list) else [entry]
        return Proof(int(number), *map(str, rest))
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{folder / SEEN} is damaged", found=error) from error


def owner_file(owner: str) -> str:
    """Return a file name for an owner. Different owners never have the same file name.

    Raises:
        SignatureError: the name is empty, starts with a dot, or is not text.
    """
    try:
        name = urllib.parse.quote(owner.strip(), safe="@+ ")
    except UnicodeEncodeError:
        name = ""
    if not name or name.startswith("."):
        raise SignatureError("a key needs an owner: the name of a person or service", found=repr(owner))
    return name


def version_path(workspace: Workspace, version: int) -> Path:
    """Return the path of the workspace's copy of a root version."""
    return workspace.trust / f"{version}.root.json"


def _counted(root: Root) -> str:
    return f"root {root.name}"


def _versions(workspace: Workspace, number: int) -> Iterator[Path]:
    while (path := version_path(workspace, number)).exists():
        yield path
        number += 1
