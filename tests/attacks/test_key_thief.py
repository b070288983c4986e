"""Attack: a thief has the private key of one role and can write every file of the workspace."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.trust import dsse, enrolment, root
from plinth.trust.dsse import APPROVER, EVALUATOR, POLICY, PROMOTER, ROOT, TRAINER, RootKey
from plinth.trust.root import Trust
from plinth_registry import approval, attestations, policy
from plinth_registry.candidate import Candidate
from tests.attacks.judging import ANNA, BEN, closed, decide
from tests.registry.conftest import small_policy


def signed_again(ctx: Context, path: Path, role: str, owner: str | None = None, **changed: Any) -> None:
    """Replace a statement by one with other facts, signed with the key that was stolen."""
    content = dsse.unverified(dsse.envelope_of(path), str(path))
    content["predicate"] |= changed
    dsse.write(path, content, Trust.of(ctx.workspace).signer(role, owner))


@pytest.mark.parametrize("thief", [PROMOTER, TRAINER, POLICY])
def test_a_stolen_key_of_another_role_states_an_evaluation(
    ctx: Context, line: Any, unregistered: Candidate, thief: str
) -> None:
    decide(ctx, unregistered, BEN, "good")
    assert closed(ctx, line.recipe, unregistered) == {}
    signed_again(ctx, attestations.path_of(ctx, line.checkpoint.digest, "evaluation"), thief)
    assert "is invalid" in closed(ctx, line.recipe, unregistered)["signature"]


def test_a_stolen_evaluator_key_after_the_date_of_its_revocation(
    own_trust: Path, ctx: Context, line: Any, unregistered: Candidate
) -> None:
    decide(ctx, unregistered, BEN, "good")
    path = attestations.path_of(ctx, line.checkpoint.digest, "evaluation")
    stolen = Trust.of(ctx.workspace).signer(EVALUATOR)
    now = datetime.now(UTC)
    enrolment.revoke(ctx.workspace, stolen.key_id, now + timedelta(hours=1))
    assert closed(ctx, line.recipe, unregistered) == {}  # what it stated before still holds
    content = dsse.unverified(dsse.envelope_of(path), str(path))
    content["predicate"] |= {"at": (now + timedelta(hours=2)).isoformat()}
    dsse.write(path, content, stolen)
    refused = closed(ctx, line.recipe, unregistered)
    assert f"the signature of {path} is invalid" in refused["signature"]
    assert "beats_gzip" in refused


def test_a_stolen_approver_key_approves_in_another_name(
    ctx: Context, make_line: Any, unregistered: Candidate, line: Any
) -> None:
    """Ben's key makes Anna's file: with her name inside, and with his."""
    governing = policy.sign(ctx, small_policy(line.recipe.required_release().name, 2, people=2)).digest
    own = decide(ctx, unregistered, BEN, "good")
    assert "approvals" in closed(ctx, line.recipe, unregistered)
    for name in (ANNA, BEN):
        forged = approval.statement_path(ctx, unregistered, ANNA)
        forged.write_bytes(own.read_bytes())
        signed_again(ctx, forged, APPROVER, BEN, by=name, number=1)
        found, faults = approval.collect(ctx, unregistered, {}, governing)
        assert ([one.by for one in found], len(faults)) == ([BEN], 1)
        assert "approvals" in closed(ctx, line.recipe, unregistered)
    forged.unlink()
    decide(ctx, unregistered, ANNA, "good")
    assert closed(ctx, line.recipe, unregistered) == {}


@pytest.mark.parametrize("thief", [TRAINER, PROMOTER, EVALUATOR])
def test_a_stolen_key_of_another_role_writes_a_policy(ctx: Context, line: Any, thief: str) -> None:
    release = line.recipe.required_release().name
    before = policy.current(ctx, release)
    lax = small_policy(release, 2, people=0)
    predicate = {"at": "2026-11-01T00:00:00+00:00", "prior": before.digest, "policy": lax.model_dump(mode="json")}
    content = dsse.statement(policy.PREDICATE, {release: policy.digest(lax)}, predicate)
    path = policy.path_of(ctx, release, 2)
    dsse.write(path, content, Trust.of(ctx.workspace).signer(thief))
    with pytest.raises(SignatureError, match="is invalid"):
        policy.current(ctx, release)
    path.unlink()
    assert policy.current(ctx, release) == before


def test_stolen_keys_of_every_role_but_root_make_no_root(own_trust: Path, ctx: Context) -> None:
    trust = Trust.of(ctx.workspace)
    stolen = [trust.signer(role) for role in trust.root.roles if role not in (ROOT, APPROVER)]
    mine = stolen[0]
    keys = {**trust.root.keys, mine.key_id: RootKey(owner="eve", public=mine.public)}
    roles = {name: role.model_copy(update={"keys": (mine.key_id,)}) for name, role in trust.root.roles.items()}
    forged = trust.root.model_copy(update={"version": 2, "keys": keys, "roles": roles})
    path = root.version_path(ctx.workspace, 2)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(root.sign(forged, stolen)))
    with pytest.raises(SignatureError, match="0 valid signatures"):
        Trust.of(ctx.workspace)
    path.unlink()
    assert Trust.of(ctx.workspace).root == trust.root


def test_a_root_put_back_to_before_the_revocation(own_trust: Path, ctx: Context, tmp_path: Path) -> None:
    """The workspace's newer versions are deleted; users who pinned the newer root keep it, also against `keys pin`."""
    trust = Trust.of(ctx.workspace)
    stolen, earlier = trust.signer(TRAINER), (trust.folder / root.ROOT_FILE).read_bytes()
    enrolment.revoke(ctx.workspace, stolen.key_id, datetime(2026, 1, 1, tzinfo=UTC))
    said = dsse.seal(dsse.statement("urn:test:v1", {"a": "0" * 64}, {"at": "2026-11-01T00:00:00+00:00"}), stolen)
    root.version_path(ctx.workspace, 2).unlink()
    root.version_path(ctx.workspace, 1).write_bytes(earlier)
    now = Trust.of(ctx.workspace)
    assert now.root.version == 2
    with pytest.raises(SignatureError, match="was revoked"):
        dsse.opened(said, now.authority(TRAINER), "urn:test:v1", "it")
    (older := tmp_path / "older.json").write_bytes(earlier)
    with pytest.raises(SignatureError, match="another root is pinned"):
        enrolment.pin_root(ctx.workspace, older)
    assert Trust.of(ctx.workspace).root.version == 2
    (now.folder / root.ROOT_FILE).write_bytes(earlier)  # out of a backup of this machine
    with pytest.raises(SignatureError, match="root tests was replaced with an older version"):
        Trust.of(ctx.workspace)
