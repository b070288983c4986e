"""The root of trust: which keys may sign as which role, until when, and how a new version follows an old one.

The model is TUF's root role: a version is signed by a threshold of root keys; the next one is signed by a threshold
of the old root keys *and* of its own, so that whoever pins one version can follow every later one. A key that is
revoked from a date still verifies what was stated before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Self

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from plinth import fingerprint
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.trust import dsse
from plinth.trust.authority import ROLES, ROOT, Authority, Role, RootKey, SigstoreIdentity, time_of

PREDICATE: Final = "urn:plinth:root:v1"


class Root(Frozen):
    """Roles, public keys and thresholds, valid until `expires`; by role, whose Sigstore bundles count as well.

    Times are UTC in ISO 8601. `demo` marks keys that were made without asking anybody: whatever they sign is shown so.
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
        """A root without identities has the digest that it had before there were any."""
        found: dict[str, Any] = plain(self)
        return found if self.identities else {name: value for name, value in found.items() if name != "identities"}

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if set(self.roles) != set(ROLES):
            raise ValueError(f"roles are {sorted(self.roles)}, expected {sorted(ROLES)}")
        for name, role in self.roles.items():
            if strange := set(role.keys) - set(self.keys):
                raise ValueError(f"role {name} names keys that are not in the root: {sorted(strange)}")
            if name == ROOT and role.threshold > len(set(role.keys)):
                raise ValueError(f"the root needs {role.threshold} keys, {len(set(role.keys))} are given")
        if strange := set(self.identities) - (set(ROLES) - {ROOT}):
            raise ValueError(f"identities for {sorted(strange)}: only keys sign as root, and there are no other roles")
        for given in (self.issued, self.expires, *(key.revoked_from for key in self.keys.values())):
            _ = given and time_of(given)
        return self

    @property
    def title(self) -> str:
        """Name and version, with `demo root` where it is one."""
        return f"{'demo root' if self.demo else 'root'} {self.name} version {self.version}"

    def authority(self, role: str) -> Authority:
        """Who may sign as a role."""
        known = self.roles[role]
        return Authority(
            role=role,
            root=self.title,
            keys={key_id: self.keys[key_id] for key_id in known.keys},
            threshold=known.threshold,
        )

    def digest(self) -> str:
        """SHA-256 of the canonical record."""
        return fingerprint.digest(self)

    def expired(self, at: datetime | None = None) -> bool:
        """Whether its time has passed: at a time with its zone, now by default."""
        return (at or datetime.now(UTC)) >= time_of(self.expires)

    def require_current(self, at: datetime | None = None) -> Root:
        """This root, when it has not expired.

        Raises:
            SignatureError: it has.
        """
        if self.expired(at):
            raise SignatureError(
                f"{self.title} has expired",
                found=f"expires {self.expires}",
                expected="a root that is still valid",
                remedy="the holders of the root sign its next version: `plinth keys renew`",
            )
        return self


def sign(root: Root, signers: Iterable[Any]) -> dict[str, Any]:
    """The envelope of a root version.

    Args:
        signers: holders of the root role (`signers.Signer`), of this version and of the one before.
    """
    content = dsse.statement(PREDICATE, {root.name: root.digest()}, root.model_dump(mode="json"))
    return dsse.seal(content, *signers)


def first(envelope: Mapping[str, Any], where: str) -> Root:
    """A root that is pinned as it is: signed by its own root keys. Trust in it comes from how it reached this machine.

    Raises:
        SignatureError: not a root, or not signed by its own keys.
    """
    root = _parsed(dsse.unverified(envelope, where), where)
    dsse.opened(envelope, root.authority(ROOT), PREDICATE, where)
    return root


def following(root: Root, envelope: Mapping[str, Any], where: str) -> Root:
    """The next version of a trusted root.

    Raises:
        SignatureError: not the next version, another name, a demo root in place of a real one, or signed by too few
            of the old or the new root keys.
    """
    dsse.opened(envelope, root.authority(ROOT), PREDICATE, where)
    first(envelope, where)
    return next_of(root, envelope, where)


def next_of(root: Root, envelope: Mapping[str, Any], where: str) -> Root:
    """What an envelope says of the version after this root, before anybody's signature is looked at.

    Raises:
        SignatureError: not a root, or not the next version of this one.
    """
    content = dsse.unverified(envelope, where)
    found = _parsed(content, where)
    kind = content.get("predicateType")
    if kind != PREDICATE or (found.name, found.version, found.demo) != (root.name, root.version + 1, root.demo):
        raise SignatureError(
            f"{where} does not follow {root.title}",
            found=found.title if kind == PREDICATE else kind,
            expected=f"{root.name} version {root.version + 1}, {'a' if root.demo else 'no'} demo root",
            remedy="restore the version that is missing, or pin a root again from where you trust it",
        )
    return found


def changes(before: Root, after: Root) -> tuple[str, ...]:
    """What a version changes, a sentence each: keys, roles, thresholds, revocations, expiry."""
    said = []
    for key_id in sorted(set(before.keys) | set(after.keys)):
        old, new = before.keys.get(key_id), after.keys.get(key_id)
        shown = f"key {key_id[:12]} of {(new or before.keys[key_id]).owner}"
        if old is None or new is None:
            said.append(f"{shown}: {'new' if old is None else 'taken out of the root'}")
            continue
        if old.owner != new.owner or old.public != new.public:
            said.append(f"{shown}: was the key of {old.owner}" if old.owner != new.owner else f"{shown}: changed")
        if old.revoked_from != new.revoked_from:
            said.append(f"{shown}: revoked from {new.revoked_from or 'no time'} on, was {old.revoked_from or 'valid'}")
    for name in ROLES:
        was, now = before.roles[name], after.roles[name]
        said += [f"{name}: key {one[:12]} may sign" for one in now.keys if one not in was.keys]
        said += [f"{name}: key {one[:12]} may sign no more" for one in was.keys if one not in now.keys]
        if was.threshold != now.threshold:
            said.append(f"{name}: needs {now.threshold} keys, was {was.threshold}")
        given, earlier = (set(each.identities.get(name, ())) for each in (after, before))
        said += [f"{name}: {one.identity} of {one.issuer} counts" for one in sorted(given - earlier, key=str)]
        said += [f"{name}: {one.identity} of {one.issuer} counts no more" for one in sorted(earlier - given, key=str)]
    if before.expires != after.expires:
        said.append(f"expires {after.expires}, was {before.expires}")
    return tuple(said)


def _parsed(statement: Mapping[str, Any], where: str) -> Root:
    try:
        return Root.model_validate(statement["predicate"])
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"{where} is not a root of trust", found=error, expected=PREDICATE) from error
