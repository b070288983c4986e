"""Roles and their signers follow from the pinned root alone, whatever the workspace contains."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import SignatureError
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment, root
from plinth.trust.dsse import APPROVER, PROMOTER, ROLES, ROOT, TRAINER
from plinth.trust.root import Root, Trust
from plinth.trust.signers import key_id_of
from tests.plinth.trust.conftest import ADA, BEN

KIND = "urn:test:v1"


def said(trust: Trust, role: str, owner: str | None = None, **predicate: Any) -> dict[str, Any]:
    return dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, predicate), trust.signer(role, owner))


def test_a_root_has_every_role_and_private_files(workspace: Workspace, trust: Trust) -> None:
    assert set(trust.root.roles) == set(ROLES)
    assert Trust.of(workspace).root == trust.root
    assert trust.folder.stat().st_mode & 0o777 == 0o700
    private = list(trust.folder.glob("keys/*/*.key"))
    assert len(private) == len(ROLES) + 1
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    assert not list(workspace.root.rglob("*.key"))


def test_no_root_means_no_key_and_no_verification(workspace: Workspace) -> None:
    with pytest.raises(SignatureError, match="no root of trust is pinned"):
        Trust.of(workspace)
    assert not workspace.trust_folder.exists()


def test_each_workspace_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRUST_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    one, other = (Workspace(tmp_path / name).trust_folder for name in ("a/w", "b/w"))
    assert one != other
    assert one.parent == other.parent == tmp_path / "plinth" / "trust"


def test_a_role_signs_for_itself_only(trust: Trust) -> None:
    envelope = said(trust, TRAINER, x=1)
    assert dsse.opened(envelope, trust.authority(TRAINER), KIND, "it")["predicate"] == {"x": 1}
    assert dsse.signed_by(envelope, trust.authority(TRAINER)) == (TRAINER,)
    for role in set(ROLES) - {TRAINER}:
        with pytest.raises(SignatureError, match="is invalid"):
            dsse.opened(envelope, trust.authority(role), KIND, "it")


def test_one_approver_is_not_another(trust: Trust) -> None:
    envelope = said(trust, APPROVER, ADA)
    assert dsse.opened(envelope, trust.authority(APPROVER).owned_by(ADA), KIND, "it")
    with pytest.raises(SignatureError, match="is invalid"):
        dsse.opened(envelope, trust.authority(APPROVER).owned_by(BEN), KIND, "it")
    with pytest.raises(SignatureError, match="eve has no key as approver"):
        trust.authority(APPROVER).owned_by("eve")
    with pytest.raises(SignatureError, match="several keys"):
        trust.signer(APPROVER)


def test_a_root_that_somebody_puts_into_the_workspace_counts_for_nothing(
    workspace: Workspace, trust: Trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "attacker"))
    theirs = enrolment.initialise(Workspace(tmp_path / "elsewhere"), "acme", [ADA])
    second = enrolment.renew(Workspace(tmp_path / "elsewhere"))
    monkeypatch.setenv(TRUST_VARIABLE, str(trust.folder))
    root.version_path(workspace, 2).write_bytes((theirs.folder / root.ROOT_FILE).read_bytes())
    assert second.root.version == 2
    with pytest.raises(SignatureError, match="is invalid"):
        Trust.of(workspace)


def test_versions_are_followed_in_order_and_never_back(workspace: Workspace, trust: Trust) -> None:
    first = (trust.folder / root.ROOT_FILE).read_bytes()
    enrolment.renew(workspace)
    enrolment.threshold(workspace, PROMOTER, 1)
    (trust.folder / root.ROOT_FILE).write_bytes(first)
    assert Trust.of(workspace).root.version == 3
    assert json.loads((trust.folder / root.ROOT_FILE).read_bytes()) != json.loads(first)
    (trust.folder / root.ROOT_FILE).write_bytes(first)
    root.version_path(workspace, 2).write_bytes(root.version_path(workspace, 3).read_bytes())
    with pytest.raises(SignatureError, match="does not follow"):
        Trust.of(workspace)


def test_a_demo_root_never_becomes_a_real_one(workspace: Workspace) -> None:
    trust = enrolment.initialise(workspace, "demo", [ADA], demo=True)
    assert "demo root" in trust.root.title
    changed = trust.root.model_copy(update={"version": 2, "demo": False})
    envelope = root.sign(changed, [trust.signer(ROOT)])
    with pytest.raises(SignatureError, match="does not follow"):
        root.following(trust.root, envelope, "it")


def test_an_expired_root_verifies_nothing_until_it_is_renewed(workspace: Workspace, trust: Trust) -> None:
    later = datetime.now(UTC) + timedelta(days=366)
    with pytest.raises(SignatureError, match="has expired"):
        trust.root.require_current(later)
    assert enrolment.renew(workspace, 500).root.require_current(later)


@pytest.mark.parametrize("flip", [10, 200, -40])
def test_a_changed_pin_is_refused(workspace: Workspace, trust: Trust, flip: int) -> None:
    path = trust.folder / root.ROOT_FILE
    envelope = json.loads(path.read_bytes())
    payload = bytearray(envelope["payload"].encode())
    payload[flip] = ord("A") if payload[flip] != ord("A") else ord("B")
    path.write_text(json.dumps(envelope | {"payload": payload.decode()}))
    with pytest.raises(SignatureError):
        Trust.of(workspace)


def test_a_threshold_needs_different_keys(workspace: Workspace, trust: Trust) -> None:
    enrolment.enrol(workspace, PROMOTER, "second", enrolment.new_key(trust.folder, PROMOTER, "second"))
    trust = enrolment.threshold(workspace, PROMOTER, 2)
    statement = dsse.statement(KIND, {"a": "0" * 64}, {})
    one, two = trust.signer(PROMOTER, PROMOTER), trust.signer(PROMOTER, "second")
    assert dsse.opened(dsse.seal(statement, one, two), trust.authority(PROMOTER), KIND, "it")
    for signers in ([one], [one, one]):
        with pytest.raises(SignatureError, match="1 valid signatures"):
            dsse.opened(dsse.seal(statement, *signers), trust.authority(PROMOTER), KIND, "it")
    with pytest.raises(SignatureError, match="cannot require 3"):
        enrolment.threshold(workspace, PROMOTER, 3)


def test_a_revoked_key_holds_for_what_it_stated_before(workspace: Workspace, trust: Trust) -> None:
    when = datetime(2026, 6, 1, tzinfo=UTC)
    early = said(trust, TRAINER, at="2026-05-31T23:59:59+00:00")
    late, timeless = said(trust, TRAINER, at="2026-06-01T00:00:00+00:00"), said(trust, TRAINER)
    key = trust.signer(TRAINER)
    trust = enrolment.revoke(workspace, key.key_id[:10], when)
    authority = trust.authority(TRAINER)
    assert dsse.opened(early, authority, KIND, "it")
    assert dsse.opened(timeless, authority, KIND, "it", at="2026-01-01T00:00:00+00:00")
    for envelope in (late, timeless, said_with(key, at="yesterday"), said_with(key, at="2026-05-01T00:00:00")):
        with pytest.raises(SignatureError):
            dsse.opened(envelope, authority, KIND, "it")
    with pytest.raises(SignatureError, match="no private key of anybody as trainer"):
        trust.signer(TRAINER)


def said_with(key: Any, **predicate: Any) -> dict[str, Any]:
    return dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, predicate), key)


def test_rotation_gives_a_new_key_and_the_old_one_ends(workspace: Workspace, trust: Trust) -> None:
    old = trust.signer(TRAINER)
    rotated = enrolment.rotate(workspace, TRAINER, TRAINER)
    assert rotated.signer(TRAINER).key_id != old.key_id
    assert rotated.root.keys[old.key_id].revoked_from is not None
    with pytest.raises(SignatureError, match="revoked"):
        enrolment.enrol(workspace, TRAINER, TRAINER, old.public)


def test_a_key_has_one_owner(workspace: Workspace, trust: Trust) -> None:
    ada = trust.signer(APPROVER, ADA)
    with pytest.raises(SignatureError, match="enrolled already"):
        enrolment.enrol(workspace, APPROVER, "eve", ada.public)


def test_the_last_root_key_stays(workspace: Workspace, trust: Trust) -> None:
    with pytest.raises(SignatureError, match="last root key"):
        enrolment.revoke(workspace, trust.signer(ROOT).key_id, datetime.now(UTC))


def test_a_lost_root_key_is_revoked_with_the_other_one(workspace: Workspace, trust: Trust) -> None:
    lost = enrolment.new_key(trust.folder, ROOT, "second")
    enrolment.enrol(workspace, ROOT, "second", lost)
    (trust.folder / "keys" / ROOT / "second.key").unlink()
    after = enrolment.revoke(workspace, key_id_of(lost), datetime.now(UTC))
    assert after.root.roles[ROOT].keys == trust.root.roles[ROOT].keys
    assert Trust.of(workspace).root == after.root


def test_without_the_root_key_nothing_is_enrolled(workspace: Workspace, trust: Trust) -> None:
    (trust.folder / "keys" / ROOT / f"{ROOT}.key").unlink()
    pem = enrolment.new_key(trust.folder, TRAINER, "second")
    with pytest.raises(SignatureError, match="no private key of root as root"):
        enrolment.enrol(workspace, TRAINER, "second", pem)
    assert Trust.of(workspace).root.version == 1


def test_a_second_root_needs_a_word(workspace: Workspace, trust: Trust, tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="is already pinned"):
        enrolment.initialise(workspace, "again", [])
    other = trust.root.model_copy(update={"name": "other"})
    path = tmp_path / "other.json"
    path.write_text(json.dumps(root.sign(other, [trust.signer(ROOT)])))
    with pytest.raises(SignatureError, match="another root is pinned"):
        enrolment.pin_root(workspace, path)
    root.version_path(workspace, 1).unlink()
    assert enrolment.pin_root(workspace, path, replace=True).root.name == "other"


def test_an_older_version_is_pinned_again_by_a_word_only(workspace: Workspace, trust: Trust, tmp_path: Path) -> None:
    (older := tmp_path / "older.json").write_bytes((trust.folder / root.ROOT_FILE).read_bytes())
    enrolment.renew(workspace)
    (newer := tmp_path / "newer.json").write_bytes((trust.folder / root.ROOT_FILE).read_bytes())
    root.version_path(workspace, 2).unlink()
    (trust.folder / root.ROOT_FILE).unlink()
    with pytest.raises(SignatureError, match="root acme was replaced with an older version"):
        enrolment.pin_root(workspace, older)
    assert not (trust.folder / root.ROOT_FILE).exists()
    assert enrolment.pin_root(workspace, newer).root.version == 2
    assert enrolment.pin_root(workspace, older, replace=True).root == trust.root
    assert Trust.of(workspace).root == trust.root
    enrolment.renew(workspace)
    shutil.rmtree(workspace.trust)
    (trust.folder / root.ROOT_FILE).unlink()
    shutil.rmtree(trust.folder / "keys")
    assert enrolment.initialise(workspace, "acme", []).root == Trust.of(workspace).root  # a new root begins at 1


def test_the_highest_number_seen_is_kept(trust: Trust) -> None:
    assert trust.seen("x") == 0
    for number in (3, 1, 2):
        trust.remember("x", number)
    assert (trust.seen("x"), trust.seen("y")) == (3, 0)


def test_a_root_whose_keys_are_listed_under_other_identities_is_refused(trust: Trust) -> None:
    trainer, promoter = trust.signer(TRAINER), trust.signer(PROMOTER)
    keys = dict(trust.root.keys) | {trainer.key_id: trust.root.keys[promoter.key_id]}
    swapped = trust.root.model_copy(update={"keys": keys})
    assert key_id_of(promoter.public) != trainer.key_id
    envelope = dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, {}), trainer)
    with pytest.raises(SignatureError, match="under the id of another key"):
        dsse.opened(envelope, swapped.authority(TRAINER), KIND, "it")


@pytest.mark.parametrize("change", [{"roles": {}}, {"version": 0}, {"expires": "soon"}, {"expires": "2030-01-01"}])
def test_half_a_root_is_none(trust: Trust, change: dict[str, Any]) -> None:
    content = trust.root.model_dump(mode="json") | change
    envelope = dsse.seal(dsse.statement(root.PREDICATE, {"x": "0" * 64}, content), trust.signer(ROOT))
    with pytest.raises(SignatureError, match="not a root of trust"):
        root.first(envelope, "it")
    assert Root.model_validate(trust.root.model_dump(mode="json")) == trust.root
