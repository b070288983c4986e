"""Roles and the keys that may sign as one: what a verifier needs, whatever the statement."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pydantic import Field

from plinth.errors import SignatureError
from plinth.records import Frozen

ROOT: Final = "root"
TRAINER: Final = "trainer"
EVALUATOR: Final = "evaluator"
APPROVER: Final = "approver"
PROMOTER: Final = "promoter"
POLICY: Final = "policy"
COMPLIANCE: Final = "compliance"

#: What each role states; a key may hold several roles, a process needs only those that it acts in.
ROLES: Final[Mapping[str, str]] = {
    ROOT: "who holds the other roles",
    TRAINER: "checkpoints, model directories, where they come from, what happened in the run",
    EVALUATOR: "scores, contamination, memorisation, bias, the proof of resume",
    APPROVER: "a person's decision about a candidate",
    PROMOTER: "releases, their history, verdicts, exports",
    POLICY: "the gates that a release must pass, and waivers",
    COMPLIANCE: "licences and terms, personal data, marks, takedowns, papers, exports of text",
}


class RootKey(Frozen):
    """A public key and its owner: a person (name or e-mail address) or a service."""

    owner: str = Field(min_length=1)
    public: str = Field(description="PEM, ECDSA on P-256.")
    revoked_from: str | None = Field(None, description="UTC, ISO 8601: statements from then on are refused.")


class SigstoreIdentity(Frozen):
    """Whom a Sigstore certificate names (an e-mail address, a workflow's URI), and the issuer that vouches for it."""

    identity: str = Field(min_length=1)
    issuer: str = Field(min_length=1)


class Role(Frozen):
    """Keys that may sign as a role, and how many different ones must."""

    keys: tuple[str, ...]
    threshold: int = Field(1, ge=1)


class Authority(Frozen):
    """Whose signatures count for one role, as a verifier needs them."""

    role: str
    root: str = Field(description="Name and version of the root that says so.")
    keys: Mapping[str, RootKey]
    threshold: int

    def owned_by(self, owner: str) -> Authority:
        """The same role, narrowed to the keys of one owner.

        Raises:
            SignatureError: that owner has no key for this role.
        """
        kept = {key_id: key for key_id, key in self.keys.items() if key.owner == owner}
        if not kept:
            raise SignatureError(
                f"{owner} has no key as {self.role}",
                found=f"keys of {', '.join(sorted({key.owner for key in self.keys.values()})) or 'nobody'}",
                expected=f"a key enrolled in {self.root}",
                remedy=f"the holder of the root enrols one: `plinth keys enrol {self.role} KEY.pub --owner {owner}`",
            )
        return self.model_copy(update={"keys": kept, "threshold": 1})


def revoked_at(key: RootKey, at: str | None) -> bool:
    """Whether a statement of that time does not count any more: revoked by then, or of no known time."""
    return key.revoked_from is not None and (at is None or time_of(at) >= time_of(key.revoked_from))


def time_of(text: str) -> datetime:
    """A time with its zone.

    Raises:
        ValueError: not ISO 8601, or without a time zone.
    """
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone, expected UTC")
    return found


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
