"""A root of several holders, each with a key on a machine of its own: what they agree on is published, nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plinth.errors import SignatureError
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment, root, versions
from plinth.trust.dsse import PROMOTER, ROLES, ROOT, TRAINER
from plinth.trust.root import Trust, changes
from plinth.trust.signers import key_id_of
from plinth.trust.versions import Proposing

Machine = Callable[[str], None]


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """`on("ada")`: what follows is done on that holder's machine. Each has a folder of trust; all see the workspace."""
    return lambda name: monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / name))


@pytest.fixture
def shared(tmp_path: Path, on: Machine) -> Workspace:
    """A workspace whose root needs two of the keys of Ada, Ben and Eve, which are on their machines."""
    workspace = Workspace(tmp_path / "workspace").ensure()
    on("ada")
    first = enrolment.initialise(workspace, "acme", ["ada"])
    for name in ("ben", "eve"):
        on(name)
        public = enrolment.new_key(workspace.trust_folder, ROOT, name)
        shutil.copy(first.folder / root.ROOT_FILE, workspace.trust_folder / root.ROOT_FILE)
        on("ada")
        enrolment.enrol(workspace, ROOT, name, public)
    file = tmp_path / "two.json"
    enrolment.threshold(workspace, ROOT, 2, propose=Proposing(file=file))
    on("ben")
    versions.sign(workspace, file)
    versions.publish_proposal(workspace, file)
    assert Trust.of(workspace).root.roles[ROOT].threshold == 2
    return workspace


def test_two_of_three_sign_and_somebody_without_a_key_publishes(shared: Workspace, on: Machine, tmp_path: Path) -> None:
    file = tmp_path / "next.json"
    on("ada")
    enrolment.threshold(shared, PROMOTER, 1, propose=Proposing(file=file))
    before = Trust.of(shared)
    with pytest.raises(SignatureError, match=r"too few signatures(.|\n)*1 by root keys of version 4, 1 by root keys"):
        versions.publish_proposal(shared, file)
    versions.sign(shared, file)  # the same holder again
    assert versions.read(before, file).missing
    on("eve")
    assert versions.sign(shared, file).missing == ""
    on("nobody")
    shared.trust_folder.mkdir()
    shutil.copy(before.folder / root.ROOT_FILE, shared.trust_folder)
    assert versions.publish_proposal(shared, file).root.version == 5
    on("ben")
    assert Trust.of(shared).root.version == 5


def test_one_holder_alone_changes_nothing(shared: Workspace, on: Machine) -> None:
    for holder in ("ada", "ben"):
        on(holder)
        with pytest.raises(SignatureError, match="this machine has too few root keys"):
            enrolment.renew(shared)
    assert sorted(path.name for path in shared.trust.glob("*.json"))[-1] == "4.root.json"
    on("ada")
    key = shared.trust_folder / "keys" / TRAINER / f"{TRAINER}.key"
    private = key.read_bytes()
    with pytest.raises(SignatureError, match="too few root keys"):
        enrolment.rotate(shared, TRAINER, TRAINER)
    assert key.read_bytes() == private
    assert Trust.of(shared).signer(TRAINER)


def test_the_old_holders_and_the_new_ones_must_agree(shared: Workspace, on: Machine, tmp_path: Path) -> None:
    """Ada and Ben give the root to two keys of Ada's own: enough of the old, and her new ones have to sign as well."""
    on("ada")
    lost = next(k for k, v in Trust.of(shared).root.keys.items() if v.owner == "eve")
    file = tmp_path / "next.json"
    enrolment.revoke(shared, lost, datetime.now(UTC), propose=Proposing(file=file))
    on("eve")  # her key still belongs to the version before, not to the next one
    found = versions.sign(shared, file)
    assert (len(found.signed_old), len(found.signed_new)) == (2, 1)
    assert found.missing == "1 by root keys of version 5"
    with pytest.raises(SignatureError, match="has too few signatures"):
        versions.publish_proposal(shared, file)
    on("ben")
    assert versions.sign(shared, file).missing == ""
    assert lost not in versions.publish_proposal(shared, file).root.roles[ROOT].keys


def test_a_proposal_of_an_outdated_version_and_a_second_of_one_number(
    shared: Workspace, on: Machine, tmp_path: Path
) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    on("ada")
    enrolment.renew(shared, 100, propose=Proposing(file=one))
    with pytest.raises(SignatureError, match="signed another version 5"):
        enrolment.renew(shared, 200, propose=Proposing(file=other))
    on("ben")
    enrolment.renew(shared, 300, propose=Proposing(file=other))
    with pytest.raises(SignatureError, match="signed another version 5"):
        versions.sign(shared, one)
    on("eve")
    versions.sign(shared, one)
    with pytest.raises(SignatureError, match="signed another version 5"):
        versions.sign(shared, other)
    assert versions.sign(shared, other, instead=True).missing == ""
    published = versions.publish_proposal(shared, one).root
    for refused in (lambda: versions.publish_proposal(shared, other), lambda: versions.sign(shared, other)):
        with pytest.raises(SignatureError, match="does not follow"):
            refused()
    assert Trust.of(shared).root == published


def test_two_that_publish_at_once(shared: Workspace, on: Machine, tmp_path: Path) -> None:
    """The second has read the workspace before the first wrote: the file that is there stays."""
    on("ada")
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    for days, file in enumerate(files, 100):
        on("ada")
        enrolment.renew(shared, days, propose=Proposing(file=file, instead=True))
        on("ben")
        versions.sign(shared, file, instead=True)
    first = versions.publish_proposal(shared, files[0])
    late = json.loads(files[1].read_bytes())
    with pytest.raises(SignatureError, match="version 5 of root acme is already published"):
        versions._put(shared, shared.trust_folder, root.first(late, "it"), late)
    assert Trust.of(shared).root == first.root


def test_what_no_holder_proposed_is_not_signed(shared: Workspace, on: Machine, tmp_path: Path) -> None:
    on("ada")
    trust, file = Trust.of(shared), tmp_path / "planted.json"
    keys = dict(trust.root.keys)
    key_id = key_id_of(trust.signer(TRAINER).public)
    roles = {**trust.root.roles, ROOT: trust.root.roles[ROOT].model_copy(update={"keys": (key_id,), "threshold": 1})}
    taken = trust.root.model_copy(update={"version": 5, "keys": keys, "roles": roles})
    dsse.write(file, dsse.statement(root.PREDICATE, {"acme": taken.digest()}, taken.model_dump(mode="json")),
               trust.signer(TRAINER))  # fmt: skip
    for attempt in (versions.sign, versions.publish_proposal):
        with pytest.raises(SignatureError, match="no holder of root acme version 4 has signed"):
            attempt(shared, file)
    assert f"root: key {key_id[:12]} may sign" in changes(trust.root, taken)


def test_what_was_shown_is_what_is_signed(shared: Workspace, on: Machine, tmp_path: Path) -> None:
    shown, file = tmp_path / "shown.json", tmp_path / "next.json"
    on("ada")
    enrolment.renew(shared, 100, propose=Proposing(file=shown))
    enrolment.renew(shared, 200, propose=Proposing(file=file, instead=True))
    on("ben")
    with pytest.raises(SignatureError, match="was changed after it was shown for review"):
        versions.sign(shared, file, expected=versions.read(Trust.of(shared), shown).record)
    assert len(versions.read(Trust.of(shared), file).signed_old) == 1


def test_every_change_is_told(shared: Workspace, on: Machine) -> None:
    on("ada")
    before = Trust.of(shared).root
    one, other = (k for k, v in before.keys.items() if v.owner in ("ben", "eve"))
    changed = before.keys[one].model_copy(update={"revoked_from": "2026-01-01T00:00:00+00:00"})
    keys = {k: v for k, v in before.keys.items() if k != other} | {one: changed}
    kept = tuple(k for k in before.roles[ROOT].keys if k != other)
    roles = {**before.roles, ROOT: before.roles[ROOT].model_copy(update={"keys": kept, "threshold": 1})}
    after = before.model_copy(update={"keys": keys, "roles": roles, "expires": "2030-01-01T00:00:00+00:00"})
    assert set(changes(before, after)) == {
        f"key {one[:12]} of {before.keys[one].owner}: revoked from 2026-01-01T00:00:00+00:00 on, was valid",
        f"key {other[:12]} of {before.keys[other].owner}: removed from the root",
        f"root: key {other[:12]} may no longer sign",
        "root: needs 1 keys, was 2",
        f"expires 2030-01-01T00:00:00+00:00, was {before.expires}",
    }
    assert changes(before, before) == ()
    assert f"{TRAINER}: key {one[:12]} may sign" in changes(
        before, before.model_copy(update={"roles": {**before.roles, TRAINER: before.roles[ROOT]}})
    )
    assert set(before.roles) == set(ROLES)
