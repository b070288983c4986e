"""Keys are made once, private, and refused when they are not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import SignatureError
from plinth.storage.workspace import Workspace
from plinth.trust import keys


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def test_a_key_is_made_on_first_use_and_kept(workspace: Workspace) -> None:
    key = keys.trainer(workspace).ensure()
    assert key.private.stat().st_mode & 0o777 == 0o600
    before = key.private.read_bytes()
    assert keys.trainer(workspace).ensure().private.read_bytes() == before
    assert b"BEGIN PRIVATE KEY" in before
    assert b"BEGIN PUBLIC KEY" in key.public.read_bytes()


def test_many_at_once_make_one_key(workspace: Workspace) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: keys.promoter(workspace).ensure().private.read_bytes(), range(16)))
    assert len(set(made)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(workspace: Workspace, mode: int) -> None:
    key = keys.trainer(workspace).ensure()
    key.private.chmod(mode)
    with pytest.raises(SignatureError, match="others can read"):
        key.signer()
    with pytest.raises(SignatureError, match="others can read"):
        key.ensure()


def test_an_installed_public_key_is_not_shadowed_by_a_new_private_one(workspace: Workspace) -> None:
    theirs = keys.approver(workspace, "ada@example.org").ensure()
    theirs.private.unlink()
    with pytest.raises(SignatureError, match="no private key"):
        keys.approver(workspace, "ada@example.org").ensure()
    assert not theirs.private.exists()


def test_a_lost_public_half_is_made_again_from_the_private_one(workspace: Workspace) -> None:
    key = keys.trainer(workspace).ensure()
    public = key.public.read_bytes()
    key.public.unlink()
    key.ensure()
    assert key.public.read_bytes() == public


def test_roles_and_people_have_different_keys(workspace: Workspace) -> None:
    made = [keys.trainer(workspace), keys.promoter(workspace)]
    made += [keys.approver(workspace, name) for name in ("trainer", "ada", "Ada", "a/da", "a/../trainer")]
    assert len({key.ensure().public.read_bytes() for key in made}) == len(made)
    assert all(workspace.keys in key.private.resolve().parents for key in made)


@pytest.mark.parametrize("name", ["", "   ", ".", "../trainer", "\udcff"])
def test_a_nameless_person_has_no_key(workspace: Workspace, name: str) -> None:
    with pytest.raises(SignatureError, match="name of a person"):
        keys.approver(workspace, name)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_different_people_never_share_a_file(one: str, other: str) -> None:
    try:
        names = keys.file_name(one), keys.file_name(other)
    except SignatureError:
        return
    assert (names[0] == names[1]) == (one.strip() == other.strip())
    assert "/" not in names[0]


def test_garbage_is_not_a_key(workspace: Workspace) -> None:
    key = keys.trainer(workspace).ensure()
    key.private.write_bytes(b"garbage")
    key.public.write_bytes(b"garbage")
    with pytest.raises(SignatureError, match="not a private key"):
        key.signer()
    with pytest.raises(SignatureError, match="not a public key"):
        key.verifier()
