"""Roots follow one another as TUF's do: chains of versions end at the same one here and in python-tuf's client.

The cases are those of the specification (5.3, "Update the root role"), and chains drawn at random.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

from plinth.errors import SignatureError
from plinth.trust import dsse, root
from plinth.trust.dsse import ROLES, ROOT
from plinth.trust.signers import key_id_of, public_pem
from tests.peers import Peer

formats, exceptions = Peer("securesystemslib.formats"), Peer("tuf.api.exceptions")
metadata_set, config = Peer("tuf.ngclient._internal.trusted_metadata_set"), Peer("tuf.ngclient.config")

#: The key of every other role.
REST = "z"


class Version(NamedTuple):
    """A version; keys are letters. A signer in capitals signs other bytes."""

    number: int
    keys: str
    threshold: int
    signers: str
    days: int = 365
    kind: str = ROOT

    @property
    def expires(self) -> str:
        return (datetime.now(UTC) + timedelta(days=self.days)).strftime("%Y-%m-%dT%H:%M:%SZ")


class End(NamedTuple):
    """The version that a chain comes to, 0 where the first one is refused; whether that has expired."""

    version: int
    expired: bool = False


class Holder:
    """A private key."""

    def __init__(self, private: EllipticCurvePrivateKey, forges: bool = False) -> None:
        self.private, self.forges, self.public = private, forges, public_pem(private)
        self.key_id = key_id_of(self.public)

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data + b"!" * self.forges, ECDSA(SHA256()))


@cache
def holder(letter: str) -> Holder:
    if letter.isupper():
        return Holder(holder(letter.lower()).private, True)
    return Holder(generate_private_key(SECP256R1()))


def ours(chain: Sequence[Version]) -> End:
    first, *later = map(envelope, chain)
    known: root.Root | None = None
    try:
        known = root.first(first, "it")
        for each in later:
            known = root.following(known, each, "it")
    except SignatureError:
        pass
    return End(known.version, known.expired()) if known else End(0)


def tufs(chain: Sequence[Version]) -> End:
    first, *later = map(_metadata, chain)
    known: Any = None
    try:
        known = metadata_set.TrustedMetadataSet(first, config.EnvelopeType.METADATA)
        for metadata in later:
            known.update_root(metadata)
    except exceptions.RepositoryError:
        pass
    return End(known.root.version, known.root.is_expired()) if known else End(0)


def envelope(one: Version, change: Callable[[dict[str, Any]], object] = lambda predicate: None) -> dict[str, Any]:
    """The signed version. `change` edits its content before the holders sign it."""
    held = {letter: holder(letter) for letter in {*one.keys, REST}}
    roles = {role: {"keys": [holder(REST).key_id], "threshold": 1} for role in ROLES}
    roles[ROOT] = {"keys": [holder(letter).key_id for letter in one.keys], "threshold": one.threshold}
    predicate = {
        "name": "acme", "version": one.number, "issued": "2026-01-01T00:00:00Z", "expires": one.expires,
        "keys": {each.key_id: {"owner": letter, "public": each.public} for letter, each in held.items()},
        "roles": roles,
    }  # fmt: skip
    change(predicate)
    content = dsse.statement(root.PREDICATE if one.kind == ROOT else "urn:plinth:other:v1", {}, predicate)
    signed: list[dict[str, Any]] = [dsse.seal(content, holder(letter)) for letter in one.signers]  # type: ignore[arg-type]
    return {**dsse.seal(content), "signatures": [each for whole in signed for each in whole["signatures"]]}


def _metadata(one: Version) -> bytes:
    held = [holder(letter) for letter in sorted({*one.keys, REST})]
    roles = {role: {"keyids": [holder(REST).key_id], "threshold": 1} for role in ("snapshot", "targets", "timestamp")}
    roles[ROOT] = {"keyids": [holder(letter).key_id for letter in one.keys], "threshold": one.threshold}
    kind: Mapping[str, str] = {"keytype": "ecdsa", "scheme": "ecdsa-sha2-nistp256"}
    signed = {
        "_type": one.kind, "spec_version": "1.0.31", "version": one.number, "expires": one.expires,
        "keys": {each.key_id: {**kind, "keyval": {"public": each.public}} for each in held},
        "roles": roles, "consistent_snapshot": True,
    }  # fmt: skip
    data = str(formats.encode_canonical(signed)).encode()
    signatures = [{"keyid": each.key_id, "sig": each.sign(data).hex()} for each in map(holder, one.signers)]
    return json.dumps({"signed": signed, "signatures": signatures}).encode()


A1 = Version(1, "ab", 1, "a")
B2 = Version(1, "ab", 2, "ab")
CASES: dict[str, tuple[list[Version], End]] = {
    "the same keys": ([B2, Version(2, "ab", 2, "ab")], End(2)),
    "no signature": ([A1, Version(2, "ab", 1, "")], End(1)),
    "new keys alone": ([A1, Version(2, "cd", 1, "c")], End(1)),
    "old keys alone": ([A1, Version(2, "cd", 1, "a")], End(1)),
    "old and new keys": ([A1, Version(2, "cd", 1, "ac"), Version(3, "cd", 1, "d")], End(3)),
    "too few old keys": ([B2, Version(2, "abc", 2, "ac")], End(1)),
    "too few new keys": ([B2, Version(2, "cd", 2, "abc")], End(1)),
    "a higher threshold": ([A1, Version(2, "ab", 2, "ab")], End(2)),
    "a higher threshold that it does not reach": ([A1, Version(2, "ab", 2, "a")], End(1)),
    "a lower threshold by the old one": ([B2, Version(2, "ab", 1, "ab"), Version(3, "ab", 1, "b")], End(3)),
    "a lower threshold by the new one": ([B2, Version(2, "ab", 1, "a")], End(1)),
    "a threshold of none": ([A1, Version(2, "ab", 0, "a")], End(1)),
    "a threshold below none": ([A1, Version(2, "ab", -1, "a")], End(1)),
    "a threshold above the keys": ([A1, Version(2, "ab", 3, "ab")], End(1)),
    "one signature twice": ([A1, Version(2, "ab", 2, "aa")], End(1)),
    "a key listed twice": ([A1, Version(2, "aa", 2, "a")], End(1)),
    "a forged signature": ([A1, Version(2, "ab", 2, "aB")], End(1)),
    "a forged signature too many": ([A1, Version(2, "ab", 1, "aB")], End(2)),
    "a stranger's signature too many": ([A1, Version(2, "ab", 1, "ax")], End(2)),
    "a key that was removed": ([A1, Version(2, "b", 1, "ab"), Version(3, "b", 1, "a")], End(2)),
    "a key that came back": (
        [A1, Version(2, "b", 1, "ab"), Version(3, "ab", 1, "b"), Version(4, "ab", 1, "a")], End(4),
    ),
    "no keys": ([A1, Version(2, "", 1, "a")], End(1)),
    "a key of another role": ([A1, Version(2, "ab", 1, REST)], End(1)),
    "a version left out": ([A1, Version(3, "ab", 1, "a")], End(1)),
    "the same version again": ([A1, Version(1, "ab", 1, "a")], End(1)),
    "an older version": ([A1, Version(2, "ab", 1, "a"), Version(1, "ab", 1, "a")], End(2)),
    "another document": ([A1, Version(2, "ab", 1, "a", kind="targets")], End(1)),
    "an expired one on the way": ([A1, Version(2, "ab", 1, "a", days=-1), Version(3, "ab", 1, "a")], End(3)),
    "an expired one at the end": ([A1, Version(2, "ab", 1, "a", days=-1)], End(2, expired=True)),
    "a first one that nobody signed": ([Version(1, "ab", 1, "")], End(0)),
    "a first one by too few": ([Version(1, "ab", 2, "a")], End(0)),
    "a first one by a stranger": ([Version(1, "ab", 1, "c")], End(0)),
    "a first one of version 0": ([Version(0, "ab", 1, "a")], End(0)),
    "a first one of version 7": ([Version(7, "ab", 1, "a"), Version(8, "ab", 1, "a")], End(8)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_chain_ends_where_it_does_for_tuf(name: str) -> None:
    chain, end = CASES[name]
    assert ours(chain) == tufs(chain) == end


def test_chains_drawn_at_random_end_where_they_do_for_tuf() -> None:
    drawn, ends = random.Random(0), set[int]()
    for _ in range(60):
        chain = [Version(1, "ab", drawn.choice((1, 2)), "ab")]
        while len(chain) < 5:
            keys = "".join(drawn.sample("abcd", drawn.randint(1, 3)))
            signers = [*dict.fromkeys(drawn.choices(chain[-1].keys + keys, k=4))]
            signers = [one.upper() if drawn.random() < 0.05 else one for one in signers]
            number = chain[-1].number + (drawn.random() > 0.05)
            chain.append(Version(number, keys, drawn.randint(1, len(keys)), "".join(signers)))
        found = ours(chain)
        assert found == tufs(chain), chain
        ends.add(found.version)
    assert ends == {1, 2, 3, 4, 5}
