"""Every case of TUF's conformance suite, run against the root of trust or listed with a reason.

The suite (theupdateframework/tuf-conformance at eac841c, after v2) drives a client through `init` and `refresh` against
a repository of TUF metadata. It is not a package, and the root is not TUF metadata, so each case is translated: `init`
pins a root, `refresh` follows the versions in the workspace (`Trust.of`), and the pinned file is the client's
`root.json`. The timestamp is the signed head of a log. Snapshot and targets are the records of that log and of a second
log, which the head names by number and SHA-256. Chains of roots are also given to python-tuf's client, which must end
at the same one.

`UPSTREAM` has the names of all cases. Each is in `RUN`, in `STRICTER` (run; the suite's client accepts, Plinth refuses)
or in `NOT_APPLICABLE`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from plinth.errors import SignatureError
from plinth.storage.state import State
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, enrolment, root, signed_log
from plinth.trust.dsse import COMPLIANCE, PROMOTER, Authority, Role, RootKey
from plinth.trust.root import ROOT_FILE, Trust
from plinth.trust.signed_log import HeadStatement, LogHead, SignedLog, anchor_of
from tests.plinth.trust.test_root_tuf import End, Version, envelope, holder, tufs

F = TypeVar("F", bound=Callable[..., None])
KIND: Final = "urn:test:v1"
LOG: Final = SignedLog("versions", (PROMOTER,))
OTHER: Final = SignedLog("notes", (COMPLIANCE,))
HEAD: Final = LogHead(LOG, "urn:test:head:v1", days=30, remedy="sign the head again")
ROTATIONS: Final = {
    "1-of-1-key-rotation": [("b", 1, "b"), ("c", 1, "cb"), ("c", 1, "c")],
    "1-of-1-key-rotation-unused-signatures": [("b", 1, "dbe"), ("c", 1, "dcbe"), ("c", 1, "dce")],
    "3-of-5-sign-with-different-keycombos": [
        ("abcde", 3, "ace"), ("abcde", 3, "aeb"), ("abcde", 3, "abd"), ("abcde", 3, "abd"),
    ],
    "3-of-5-one-key-rotated": [("abcde", 3, "ace"), ("abdef", 3, "aeb")],
    "3-of-5-one-key-rotated-with-intermediate-step": [("abcde", 3, "ace"), ("abdef", 3, "acef"), ("abdef", 3, "aef")],
    "3-of-5-all-keys-rotated-with-intermediate-step": [
        ("abcde", 3, "ace"), ("fghij", 3, "acefgh"), ("fghij", 3, "fgh"),
    ],
    "1-of-3-threshold-increase-to-2-of-3": [("bcd", 1, "b"), ("bcd", 2, "bc")],
    "2-of-3-threshold-decrease-to-1-of-3": [("bcd", 2, "bc"), ("bcd", 1, "bc"), ("bcd", 1, "b")],
    "1-of-2-threshold-increase-to-2-of-2": [("b", 1, "b"), ("bc", 2, "bc")],
    "1-of-1-key-rotation-fail-not-signed-with-old-key": [("b", 1, "b"), ("c", 1, "cde")],
    "1-of-1-key-rotation-fail-not-signed-with-new-key": [("b", 1, "b"), ("c", 1, "bde")],
    "3-of-5-one-key-rotate-fails-not-signed-with-3-new-keys": [("abcde", 3, "ace"), ("abdef", 3, "ace")],
    "3-of-5-one-key-rotate-fails-not-signed-with-3-old-keys": [("abcde", 3, "ace"), ("abdef", 3, "aef")],
    "1-of-3-threshold-bump-to-2-of-3-fails-new-threshold-not-reached": [("bcd", 1, "b"), ("bcd", 2, "c")],
    "2-of-3-threshold-decr-to-1-of-3-fails-old-threshold-not-eached": [("bcd", 2, "bc"), ("bcd", 1, "b")],
}  # fmt: skip
ROLE_ROTATIONS: Final = {
    "1-of-1-key-rotation": ("c", 1, "c", True),
    "1-of-1-key-rotation-unused-signatures": ("b", 1, "dbe", True),
    "1-of-1-key-rotation-fail-not-signed-with-new-key": ("c", 1, "bde", False),
    "3-of-5-one-key-signature-wrong-not-signed-with-3-expected-keys": ("abdef", 3, "ace", False),
    "2-of-5-one-key-signature-mising-threshold-not-reached": ("abdef", 3, "ae", False),
    "3-of-5-sign-first-combo": ("abcde", 3, "ace", True),
    "3-of-5-sign-second-combo": ("abcde", 3, "aeb", True),
    "3-of-5-sign-third-combo": ("abcde", 3, "abd", True),
    "3-of-5-sign-fourth-combo": ("abcde", 3, "bcd", True),
    "3-of-5-sign-fifth-combo": ("abcde", 3, "cde", True),
}
_TREE = (
    "basic-delegation", "single-level-delegations", "two-level-delegations", "two-level-test-DFS-order-of-traversal",
    "three-level-delegation-test-DFS-order-of-traversal", "two-level-terminating-ignores-all-but-roles-descendants",
    "three-level-terminating-ignores-all-but-roles-descendants", "two-level-ignores-all-branches-not-matching-paths",
    "three-level-ignores-all-branches-not-matching-paths", "cyclic-graph", "two-roles-delegating-to-a-third",
    "two-roles-delegating-to-a-third-different-paths",
)  # fmt: skip
_SEARCH = (
    "no delegations", "targetpath matches wildcard", "targetpath with separators x", "targetpath with separators y",
    "targetpath is not delegated by all roles in the chain", "wildcard does not match path separator",
    "targetpath matches question mark wildcard", "targetpath does not match question mark wildcard",
    "targetpath matching is case sensitive",
)  # fmt: skip
#: Module of the suite -> its cases -> the parameters of a case.
UPSTREAM: Final[dict[str, dict[str, Iterable[str]]]] = {
    "test_basic": {
        "test_basic_refresh_requests": (), "test_basic_refresh_trusted_data": (), "test_implicit_refresh": (),
        "test_invalid_initial_root": (), "test_unsigned_initial_root": (),
        "test_unsigned_metadata": ("root", "timestamp", "snapshot", "targets"),
        "test_url_and_metadata_version_mismatch": ("root", "snapshot", "targets"),
        "test_timestamp_content_changes": (), "test_basic_metadata_hash_support": (), "test_targets_hash_mismatch": (),
        "test_snapshot_hash_mismatch": (), "test_metadata_bytes_match": (), "test_custom_fields": (),
        "test_deprecated_keyid_hash_algorithms": (), "test_snapshot_404": (), "test_targets_404": (),
        "test_timestamp_404": (), "test_incorrect_metadata_type": (), "test_faketime": (),
    },
    "test_expiration": {
        "test_root_expired": (), "test_timestamp_expired": (), "test_snapshot_expired": (), "test_targets_expired": (),
        "test_expired_local_root": (), "test_expired_local_timestamp": (),
    },
    "test_file_download": {
        "test_client_downloads_expected_file": (), "test_client_downloads_expected_file_in_sub_dir": (),
        "test_repository_substitutes_target_file": (), "test_multiple_changes_to_target": (),
        "test_download_with_hash_algorithms": ("hashes0", "hashes1", "hashes2"),
        "test_download_with_unknown_hash_algorithm": (), "test_artifact_cache": (),
    },
    "test_keys": {
        "test_snapshot_does_not_meet_threshold": (), "test_snapshot_has_too_few_keys": (), "test_duplicate_keys": (),
        "test_duplicate_sig_keyids": (),
        "test_keytype_and_scheme": ("rsa/rsassa-pss-sha256", "ecdsa/ecdsa-sha2-nistp256", "ed25519/ed25519"),
        "test_invalid_sig_in_valid_metadata": (),
    },
    "test_quoting_issues": {"test_unusual_role_name": ("?", "#", "/delegatedrole", "../delegatedrole")},
    "test_repository_simulator": {"TestRepositorySimulator": ()},
    "test_rollback": {
        "test_new_timestamp_version_rollback": (), "test_snapshot_rollback": ("basic", "with hashes"),
        "test_targets_role_removal": (), "test_targets_fast_forward_recovery": (),
        "test_new_snapshot_fast_forward_recovery": (), "test_new_timestamp_fast_forward_recovery": (),
        "test_targets_rollback": ("basic", "with hashes"),
    },
    "test_static_repositories": {"test_static_repository": ("tuf-on-ci-0.11", "sigstore-root-signing")},
    "test_updater_delegation_graphs": {
        "test_graph_traversal": _TREE, "test_targetfile_search": _SEARCH,
        "test_cached_role_is_verified_against_current_delegator": (), "test_delegation_not_in_snapshot": (),
    },
    "test_updater_key_rotations": {"test_root_rotation": ROTATIONS, "test_non_root_rotations": ROLE_ROTATIONS},
}  # fmt: skip
#: Case, or module of the suite -> why it says nothing about a root of trust or a signed log.
NOT_APPLICABLE: Final = {
    "test_basic_refresh_requests": "counts HTTP requests; versions are files of the workspace",
    "test_implicit_refresh": "there is no separate download: every use of a key begins with `Trust.of`",
    "test_faketime": "tests the suite's own clock",
    "test_snapshot_expired": "records do not expire; the head that names them does",
    "test_targets_expired": "records do not expire; the head that names them does",
    "test_file_download": "a root lists no target files; the digests of exports are tested in tests/registry/exports",
    "test_quoting_issues": "roles have fixed names",
    "test_repository_simulator": "tests the suite itself",
    "test_static_repositories": "reads the JSON format of TUF repositories",
    "test_updater_delegation_graphs": "the root delegates nothing: each role has its keys in the root",
}
#: Case -> why Plinth refuses what the suite's client accepts.
STRICTER: Final = {
    "test_timestamp_content_changes": "TUF keeps the old timestamp; a head with another digest is an error by name",
    "test_custom_fields": "an unknown field is refused: a new field needs a new predicate type",
    "test_deprecated_keyid_hash_algorithms": "an unknown field of a key is refused",
    "test_keytype_and_scheme[rsa/rsassa-pss-sha256]": "keys are ECDSA on P-256 only",
    "test_keytype_and_scheme[ed25519/ed25519]": "keys are ECDSA on P-256 only",
    "test_targets_fast_forward_recovery": "records are history: a log never gets shorter, also under new keys",
    "test_new_snapshot_fast_forward_recovery": "as above; a revoked key ends records from the theft on",
    "test_new_timestamp_fast_forward_recovery": "as above; the head never names an older record",
}
#: Case -> test in this module.
RUN: Final[dict[str, str]] = {}


def runs(*cases: str) -> Callable[[F], F]:
    """Mark a test as the translation of cases of the suite."""

    def marked(test: F) -> F:
        RUN.update(dict.fromkeys(cases, test.__name__))
        return test

    return marked


class Client:
    """A machine that pins a root, and the workspace where it finds later versions."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.pin = workspace, workspace.trust_folder / ROOT_FILE

    def init(self, version: dict[str, Any]) -> None:
        self.pin.parent.mkdir(parents=True, exist_ok=True)
        self.pin.write_bytes(json.dumps(version).encode())

    def publish(self, number: int, version: dict[str, Any]) -> None:
        place = root.version_path(self.workspace, number)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(json.dumps(version).encode())

    def refresh(self) -> bool:
        try:
            Trust.of(self.workspace)
        except SignatureError:
            return False
        return True

    @property
    def version(self) -> int:
        """Version of the pinned root."""
        return int(dsse.unverified(json.loads(self.pin.read_bytes()), "it")["predicate"]["version"])


@pytest.fixture
def client(workspace: Workspace) -> Client:
    return Client(workspace)


@pytest.fixture
def ctx(workspace: Workspace, trust: Trust) -> State:
    """Three records in the log and in the other log, with a head."""
    state = State(workspace)
    for number in range(3):
        extended(state, number)
    refresh_log(state)
    return state


def extended(ctx: State, number: int) -> None:
    OTHER.append(ctx, {"n": number}, {}, COMPLIANCE)
    HEAD.sign(ctx, LOG.append(ctx, {"n": number}, {}, PROMOTER), (OTHER,))


def refresh_log(ctx: State) -> None:
    """What a reader of a log does: head, newest record, records of the other log."""
    HEAD.require(ctx, LOG.newest(ctx))
    assert HEAD.records_of(ctx, OTHER)


def refused_log(ctx: State, match: str) -> None:
    with pytest.raises(SignatureError, match=match):
        refresh_log(ctx)


def signed_head(ctx: State, **changes: Any) -> None:
    """A head that the promoter signed, whatever it says."""
    head = HEAD.read(ctx)
    assert head is not None
    stated = HeadStatement.model_validate({**head.model_dump(), **changes}).model_dump(mode="json")
    dsse.write(HEAD.path(ctx), dsse.statement(HEAD.kind, {}, stated), Trust.of(ctx.workspace).signer(PROMOTER))


def later(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr(root, "datetime", Clock)
    monkeypatch.setattr(signed_log, "now", lambda: Clock.now(UTC).isoformat(timespec="seconds"))


A1: Final = Version(1, "a", 1, "a")


def names() -> set[str]:
    """Every case of the suite, with its parameters."""
    return {
        f"{case}[{parameter}]" if parameter else case
        for cases in UPSTREAM.values()
        for case, parameters in cases.items()
        for parameter in [*parameters] or [""]
    }


def test_every_case_is_run_or_has_a_reason() -> None:
    assert len(names()) + 2 == 113  # the suite's tests of itself are three, and one name here
    left_out = {one for one in names() if any(_within(one, case) for case in NOT_APPLICABLE)}
    assert set(RUN) | left_out == names()
    assert not set(RUN) & left_out
    assert set(STRICTER) <= set(RUN)
    assert all(any(_within(one, case) for one in names()) for case in NOT_APPLICABLE)
    assert all(callable(globals()[test]) for test in RUN.values())


def _within(one: str, case: str) -> bool:
    name = one.partition("[")[0]
    return name == case or name in UPSTREAM.get(case, ())


# Root.


@runs(*(f"test_root_rotation[{name}]" for name in ROTATIONS))
@pytest.mark.parametrize("name", ROTATIONS)
def test_root_rotation(client: Client, name: str) -> None:
    chain = [Version(number, *each) for number, each in enumerate(ROTATIONS[name], start=1)]
    accepted = "-fail" not in name
    client.init(envelope(chain[0]))
    for one in chain[1:]:
        client.publish(one.number, envelope(one))
    assert client.refresh() is accepted
    assert client.version == (len(chain) if accepted else len(chain) - 1)
    assert tufs(chain) == End(client.version)


@runs("test_basic_refresh_trusted_data", "test_metadata_bytes_match")
def test_the_pinned_root_has_the_bytes_of_the_newest_version(client: Client) -> None:
    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "ab", 1, "a")))
    published = root.version_path(client.workspace, 2)
    published.write_bytes(published.read_bytes() + b" ")
    assert client.refresh()
    assert client.pin.read_bytes() == published.read_bytes()


@runs("test_invalid_initial_root")
def test_an_initial_root_without_a_version_is_refused(client: Client) -> None:
    client.init(envelope(A1, lambda predicate: predicate.pop("version")))
    assert not client.refresh()


@runs("test_unsigned_initial_root")
def test_an_initial_root_with_another_signature_is_refused(client: Client) -> None:
    client.init({**envelope(A1), "signatures": envelope(Version(2, "a", 1, "a"))["signatures"]})
    client.publish(2, envelope(Version(2, "a", 1, "a")))
    assert not client.refresh()
    assert client.version == 1


@runs("test_unsigned_metadata[root]")
def test_an_unsigned_version_is_refused(client: Client) -> None:
    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "a", 1, "")))
    assert not client.refresh()
    assert client.version == 1


@runs("test_url_and_metadata_version_mismatch[root]")
@pytest.mark.parametrize("inside", [1, 3])
def test_a_version_under_the_name_of_another_is_refused(client: Client, inside: int) -> None:
    client.init(envelope(A1))
    client.publish(2, envelope(Version(inside, "a", 1, "a")))
    assert not client.refresh()
    assert client.version == 1


def test_a_version_that_was_left_out_ends_the_chain_and_the_same_version_is_not_read_again(client: Client) -> None:
    client.init(envelope(A1))
    client.publish(3, envelope(Version(3, "a", 1, "a")))
    client.publish(1, envelope(Version(1, "b", 1, "b")))
    before = client.pin.read_bytes()
    assert client.refresh()
    assert client.pin.read_bytes() == before


def test_a_root_that_was_rolled_back_is_refused(client: Client) -> None:
    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "b", 1, "ab")))
    assert client.refresh()
    client.init(envelope(A1))
    root.version_path(client.workspace, 2).unlink()
    assert not client.refresh()


@runs("test_custom_fields", "test_deprecated_keyid_hash_algorithms")
@pytest.mark.parametrize("where", ["root", "key", "role"])
def test_an_unknown_field_is_refused(client: Client, where: str) -> None:
    def change(predicate: dict[str, Any]) -> None:
        key = next(iter(predicate["keys"].values()))
        {"root": predicate, "key": key, "role": predicate["roles"]["root"]}[where]["keyid_hash_algorithms"] = "md5"

    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "a", 1, "a"), change))
    assert not client.refresh()
    assert client.version == 1


@runs("test_root_expired")
def test_an_expired_root_is_pinned_and_then_nothing_verifies(client: Client) -> None:
    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "a", 1, "a")))
    assert client.refresh()
    client.publish(3, envelope(Version(3, "a", 1, "a", days=-1)))
    assert not client.refresh()
    assert client.version == 3
    assert not client.refresh()


@runs("test_expired_local_root")
def test_a_root_that_expired_here_is_followed_by_the_next_one(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "a", 1, "a", days=7)))
    assert client.refresh()
    later(monkeypatch, 18)
    assert not client.refresh()  # a frozen workspace
    client.publish(3, envelope(Version(3, "a", 1, "a", days=21)))
    assert client.refresh()
    assert client.version == 3


@runs("test_keytype_and_scheme[ecdsa/ecdsa-sha2-nistp256]")
def test_a_key_that_is_needed_must_have_signed(client: Client) -> None:
    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "ab", 2, "ab")))
    assert client.refresh()
    client.publish(3, envelope(Version(3, "ab", 2, "aB")))
    assert not client.refresh()
    assert client.version == 2


@runs("test_keytype_and_scheme[rsa/rsassa-pss-sha256]", "test_keytype_and_scheme[ed25519/ed25519]")
@pytest.mark.parametrize("kind", ["rsa", "ed25519"])
def test_other_types_of_keys_are_refused(kind: str) -> None:
    rsa_key = rsa.generate_private_key(65537, 2048)
    made = rsa_key if kind == "rsa" else ed25519.Ed25519PrivateKey.generate()
    pem = made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    one = envelope(A1, lambda predicate: predicate["keys"][holder("a").key_id].update(public=pem))
    with pytest.raises(SignatureError, match="unsupported kind of public key"):
        root.first(one, "it")


# Roles.


def authority(keys: str, threshold: int) -> Authority:
    """The keys of a role in a version that the root's own key signed."""

    def change(predicate: dict[str, Any]) -> None:
        held = [holder(letter) for letter in keys]
        predicate["keys"] |= {one.key_id: {"owner": "it", "public": one.public} for one in held}
        predicate["roles"][PROMOTER] = {"keys": [one.key_id for one in held], "threshold": threshold}

    before, version = root.first(envelope(A1), "1"), envelope(Version(2, "a", 1, "a"), change)
    return root.following(before, version, "2").authority(PROMOTER)


def sealed(signers: str, kind: str = KIND) -> dict[str, Any]:
    return dsse.seal(dsse.statement(kind, {}, {"n": 1}), *map(holder, signers))  # type: ignore[arg-type]


def accepts(known: Authority, statement: dict[str, Any]) -> bool:
    try:
        return bool(dsse.opened(statement, known, KIND, "it"))
    except SignatureError:
        return False


@runs(*(f"test_non_root_rotations[{name}]" for name in ROLE_ROTATIONS))
@pytest.mark.parametrize("name", ROLE_ROTATIONS)
def test_non_root_rotations(name: str) -> None:
    keys, threshold, signers, accepted = ROLE_ROTATIONS[name]
    assert accepts(authority(keys, threshold), sealed(signers)) is accepted


@runs("test_snapshot_does_not_meet_threshold")
def test_two_signatures_of_three_are_too_few() -> None:
    known = authority("bcd", 3)
    assert accepts(known, sealed("bcd"))
    assert not accepts(known, sealed("bc"))


@runs("test_snapshot_has_too_few_keys")
def test_a_role_with_fewer_keys_than_its_threshold_signs_nothing() -> None:
    known = authority("bcdef", 6)
    assert not accepts(known, sealed("bcdef"))


@runs("test_duplicate_keys")
def test_one_key_is_never_several(client: Client) -> None:
    with pytest.raises(SignatureError, match="lists one key twice"):
        authority("bbbbbbbbb", 6)
    with pytest.raises(SignatureError, match="lists one key twice"):
        authority("bb", 1)
    client.init(envelope(A1))
    client.publish(2, envelope(Version(2, "aa", 1, "a")))
    assert not client.refresh()
    with pytest.raises(ValueError, match="lists one key twice"):
        Role(keys=("0" * 64, "0" * 64))


def test_one_key_under_two_ids_is_refused() -> None:
    known = RootKey(owner="it", public=holder("b").public)
    twice = Authority(role=PROMOTER, root="it", keys={holder("b").key_id: known, "0" * 64: known}, threshold=2)
    one = sealed("b")
    forged = {**one, "signatures": [*one["signatures"], {**one["signatures"][0], "keyid": "0" * 64}]}
    with pytest.raises(SignatureError, match="under the id of another key"):
        dsse.opened(forged, twice, KIND, "it")


@runs("test_duplicate_sig_keyids")
def test_two_signatures_of_one_key_are_refused() -> None:
    one = sealed("b")
    assert accepts(authority("b", 1), one)
    assert not accepts(authority("b", 1), {**one, "signatures": one["signatures"] * 2})


@runs("test_invalid_sig_in_valid_metadata")
@pytest.mark.parametrize("wrong", [sealed("b", "urn:test:other:v1")["signatures"][0]["sig"], ""], ids=["of another statement", "empty"])
def test_a_wrong_signature_does_not_harm_a_right_one(wrong: str) -> None:
    one = sealed("bc")
    one["signatures"][0]["sig"] = wrong
    assert accepts(authority("bc", 1), one)
    assert not accepts(authority("bc", 2), one)


@runs("test_incorrect_metadata_type")
def test_a_statement_of_another_type_is_refused() -> None:
    assert not accepts(authority("b", 1), sealed("b", "urn:test:other:v1"))


# Logs and their head.


@runs("test_basic_metadata_hash_support")
def test_a_log_that_its_head_names_is_accepted(ctx: State) -> None:
    head = HEAD.read(ctx)
    assert head is not None
    assert head.sha256 == anchor_of(LOG.newest(ctx))["sha256"]
    assert head.logs == {"notes": anchor_of(OTHER.newest(ctx))}


@runs("test_unsigned_metadata[timestamp]", "test_unsigned_metadata[snapshot]", "test_unsigned_metadata[targets]")
@pytest.mark.parametrize("which", ["head", "versions/00003.json", "notes/00003.json"])
def test_an_unsigned_file_is_refused(ctx: State, own_memory: None, which: str) -> None:
    path = HEAD.path(ctx) if which == "head" else ctx.workspace.root / which
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "signatures": []}))
    refused_log(ctx, "the signature of .* is invalid")


@runs("test_url_and_metadata_version_mismatch[snapshot]", "test_url_and_metadata_version_mismatch[targets]")
@pytest.mark.parametrize("log", [LOG, OTHER], ids=["versions", "notes"])
def test_a_record_under_the_number_of_another_is_refused(ctx: State, own_memory: None, log: SignedLog) -> None:
    shutil.copy(log.path(ctx, 2), log.path(ctx, 3))
    refused_log(ctx, "are broken at 00003.json")


@runs("test_timestamp_content_changes")
def test_a_head_with_the_same_number_and_another_digest_is_refused(ctx: State) -> None:
    signed_head(ctx, sha256="0" * 64)
    refused_log(ctx, "does not name the newest")


@runs("test_snapshot_hash_mismatch")
def test_another_newest_record_than_the_head_names_is_refused(ctx: State, own_memory: None) -> None:
    resigned(ctx, LOG, 3, PROMOTER)
    refused_log(ctx, "does not name the newest")


@runs("test_targets_hash_mismatch")
def test_another_record_of_the_other_log_than_the_head_names_is_refused(ctx: State, own_memory: None) -> None:
    resigned(ctx, OTHER, 3, COMPLIANCE)
    refused_log(ctx, "records of notes/ are missing or were replaced")


def resigned(ctx: State, log: SignedLog, number: int, role: str) -> None:
    """Replace a record with another one that the role signed."""
    trust, before = Trust.of(ctx.workspace), log.records(ctx)[number - 2]
    trust.folder.joinpath(root.SEEN).unlink(missing_ok=True)
    log.path(ctx, number).write_bytes(log.sealed(trust.signer(role), before, before.at, {"n": "other"}, {}))


@pytest.fixture
def own_memory(ctx: State) -> None:
    """The reader has seen no record yet: what it refuses, it refuses because of signatures and the head."""
    Trust.of(ctx.workspace).folder.joinpath(root.SEEN).unlink()


@runs("test_snapshot_404", "test_targets_404")
@pytest.mark.parametrize("log", [LOG, OTHER], ids=["versions", "notes"])
def test_a_record_that_the_head_names_must_exist(ctx: State, own_memory: None, log: SignedLog) -> None:
    log.path(ctx, 3).unlink()
    refused_log(ctx, "are missing")


@runs("test_timestamp_404")
def test_a_log_without_its_head_is_refused(ctx: State, own_memory: None) -> None:
    HEAD.path(ctx).unlink()
    refused_log(ctx, "the head is older than the newest")


@runs("test_timestamp_expired")
def test_an_expired_head_is_refused(ctx: State) -> None:
    signed_head(ctx, expires="2026-01-01T00:00:00+00:00")
    refused_log(ctx, "has expired")


@runs("test_expired_local_timestamp")
def test_a_head_that_expired_is_followed_by_the_next_one(ctx: State, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, 31)
    refused_log(ctx, "has expired")  # a frozen log
    newest = LOG.newest(ctx)
    assert newest is not None
    HEAD.sign(ctx, newest, (OTHER,))
    refresh_log(ctx)


def with_new_key(ctx: State, role: str) -> None:
    """A new key for a role. The old one ends soon, so what it has signed still holds."""
    folder, (old,) = Trust.of(ctx.workspace).folder, Trust.of(ctx.workspace).root.roles[role].keys
    enrolment.enrol(ctx.workspace, role, "new", enrolment.new_key(folder, role, "new"))
    enrolment.revoke(ctx.workspace, old, datetime.now(UTC) + timedelta(hours=1))


@runs("test_new_timestamp_version_rollback", "test_snapshot_rollback[basic]", "test_snapshot_rollback[with hashes]",
      "test_new_snapshot_fast_forward_recovery", "test_new_timestamp_fast_forward_recovery")  # fmt: skip
@pytest.mark.parametrize("rotated", [False, True], ids=["same key", "new key"])
def test_a_log_and_its_head_never_go_back(ctx: State, rotated: bool) -> None:
    older = LOG.records(ctx)[1]
    LOG.path(ctx, 3).unlink()
    signed_head(ctx, number=older.number, sha256=older.sha256)
    if rotated:
        with_new_key(ctx, PROMOTER)
    refused_log(ctx, "the newest records of versions/ are missing")


@runs("test_targets_rollback[basic]", "test_targets_rollback[with hashes]", "test_targets_fast_forward_recovery")
@pytest.mark.parametrize("rotated", [False, True], ids=["same key", "new key"])
def test_the_other_log_never_goes_back(ctx: State, rotated: bool) -> None:
    older = anchor_of(OTHER.records(ctx)[1])
    OTHER.path(ctx, 3).unlink()
    signed_head(ctx, logs={"notes": older})
    if rotated:
        with_new_key(ctx, COMPLIANCE)
    refused_log(ctx, "the newest records of notes/ are missing")


@runs("test_targets_role_removal")
def test_a_log_does_not_disappear_from_the_head(ctx: State) -> None:
    shutil.rmtree(OTHER.folder(ctx))
    signed_head(ctx, logs={})
    refused_log(ctx, "the newest records of notes/ are missing")
