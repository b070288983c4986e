"""The log of decisions: what was decided and what was refused, by whom, and that no entry can be lost or made up."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError
from plinth.trust import enrolment
from plinth.trust.dsse import EVALUATOR, PROMOTER, TRAINER
from plinth.trust.root import Trust
from plinth_registry import audit_log, decisions, policy, releases
from plinth_registry.audit_log import AUDIT, AuditedAction, audited
from tests.registry.conftest import make_recipe, small_policy
from tests.registry.test_releases import write

PROMOTION = AuditedAction("promote", "demo-candidate version 1", "ops", "better")


def three(ctx: Context) -> None:
    for _ in range(3):
        audit_log.record(ctx, PROMOTION)


def test_what_is_done_is_signed_by_the_role_that_does_it(ctx: Context) -> None:
    with audited(ctx, AuditedAction("approve", "x", "ada@example.org", "good", "ada@example.org")) as asked:
        asked.subject = "demo-candidate version 7"
    (entry,) = audit_log.entries(ctx)
    assert (entry.outcome, entry.actor, entry.role) == ("done", "ada@example.org", "approver")
    assert entry.who == "ada@example.org"
    assert (entry.subject, entry.reason, entry.signed_by) == (
        "demo-candidate version 7",
        "good",
        ("ada@example.org",),
    )


def test_a_refusal_is_recorded_with_its_reason_and_raised(ctx: Context) -> None:
    with pytest.raises(GateError, match="closed"), audited(ctx, PROMOTION):
        raise GateError("closed", found="stability: 3 restarts")
    (entry,) = audit_log.entries(ctx)
    assert (entry.outcome, entry.actor, entry.refusal) == ("refused", "promoter", "closed: stability: 3 restarts")
    assert entry.who == "promoter (for ops)"


def test_another_failure_decides_nothing(ctx: Context) -> None:
    with pytest.raises(ZeroDivisionError), audited(ctx, PROMOTION):
        _ = 1 / 0
    assert audit_log.entries(ctx) == ()


@pytest.mark.parametrize("name", ["stranger@example.org", "promoter", ""])
def test_a_refused_approval_by_a_stranger_is_recorded_as_of_nobody(ctx: Context, name: str) -> None:
    policy.sign(ctx, small_policy("demo", approvers=["ada@example.org"]))
    with pytest.raises(GateError, match="may not approve"):
        decisions.approve(ctx, make_recipe("demo"), "1", name, "let it through")
    entry = audit_log.entries(ctx)[-1]
    assert (entry.action, entry.outcome, entry.by) == ("approve", "refused", name)
    assert entry.actor.startswith(f"unauthenticated {name}")
    assert entry.who == entry.actor
    assert entry.refusal.endswith("may not approve demo")


def test_a_role_without_a_key_here_is_refused_by_another_roles_signature(ctx: Context, own_trust: Path) -> None:
    for role in own_trust.joinpath("keys").iterdir():
        if role.name not in (EVALUATOR, "root"):
            shutil.rmtree(role)
    audit_log.record(ctx, PROMOTION, "no key")
    (entry,) = audit_log.entries(ctx)
    assert (entry.role, entry.actor) == (EVALUATOR, "unauthenticated ops")
    with pytest.raises(SignatureError, match="no private key"):
        audit_log.record(ctx, PROMOTION)
    shutil.rmtree(own_trust / "keys")
    with pytest.raises(GateError), audited(ctx, PROMOTION):
        raise GateError("closed")
    assert len(audit_log.entries(ctx)) == 1


def test_the_same_is_recorded_once_where_asked_and_another_reason_again(ctx: Context) -> None:
    for refusal in ("stability", "stability", "cost", "cost", "stability"):
        audit_log.record(ctx, PROMOTION, refusal, once=True)
    assert [entry.refusal for entry in audit_log.entries(ctx)] == ["stability", "cost", "stability"]


def test_a_policy_is_recorded_once(ctx: Context) -> None:
    for version in (1, 1, 3, 2):
        with pytest.raises(GateError) if version == 3 else nullcontext():
            policy.sign(ctx, small_policy("demo", version, two_person=version > 1))
    found = [(entry.subject[:14], entry.outcome, entry.actor) for entry in audit_log.entries(ctx)]
    assert found == [
        ("demo version 1", "done", "policy"),
        ("demo version 3", "refused", "policy"),
        ("demo version 2", "done", "policy"),
    ]


def test_a_release_names_the_newest_entry_and_others_miss_it_too(
    ctx: Context, own_trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(ctx)
    record = write(ctx, "1")
    assert record.audit == {"number": 3, "sha256": AUDIT.records(ctx)[-1].sha256}
    proof = releases.prove_log(ctx)
    assert (proof.entries, proof.sha256, proof.anchors) == (3, record.audit["sha256"], ("release record 1",))
    AUDIT.path(ctx, 3).unlink()
    (own_trust / "seen.json").unlink()
    assert len(audit_log.entries(ctx)) == 2  # this machine has seen none: the log alone looks whole
    with pytest.raises(SignatureError, match="missing or were replaced"):
        releases.prove_log(ctx)
    with pytest.raises(SignatureError, match="missing or were replaced"):
        write(ctx, "2")
    assert len(releases.history(ctx)) == 1


def test_a_log_written_anew_is_not_what_an_older_release_names(
    ctx: Context, own_trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(ctx)
    write(ctx, "1")
    shutil.rmtree(AUDIT.folder(ctx))
    (own_trust / "seen.json").unlink()
    monkeypatch.setattr("plinth_registry.audit_log.getpass.getuser", lambda: "eve")
    for _ in range(4):
        audit_log.record(ctx, AuditedAction("promote", "something else", "eve", "nothing happened"))
    with pytest.raises(SignatureError, match="missing or were replaced"):
        audit_log.prove(ctx, [("release record 1", releases.history(ctx)[0].audit)])


@pytest.mark.parametrize(
    ("action", "actor", "outcome", "role"),
    [
        ("approve", "ada@example.org", "done", TRAINER),
        ("promote", "ada@example.org", "done", PROMOTER),
        ("promote", "unauthenticated eve", "done", TRAINER),
        ("rewrite", "trainer", "done", TRAINER),
    ],
)
def test_a_key_states_nothing_in_the_name_of_another(
    ctx: Context, action: str, actor: str, outcome: str, role: str
) -> None:
    said = {"action": action, "actor": actor, "outcome": outcome}
    AUDIT.append(ctx, {**said, "by": "", "subject": "x", "reason": "", "refusal": ""}, {"subject": "0" * 64}, role)
    with pytest.raises(SignatureError, match="who did not sign it"):
        audit_log.entries(ctx)


def test_a_key_revoked_for_the_past_leaves_the_log_whole_and_its_entries_marked(
    ctx: Context, own_trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(ctx)
    key = Trust.of(ctx.workspace).signer(PROMOTER)
    enrolment.revoke(ctx.workspace, key.key_id, datetime(2020, 1, 1, tzinfo=UTC))
    assert [entry.signed_by for entry in audit_log.entries(ctx)] == [()] * 3
    audit_log.record(ctx, PROMOTION, "its key was revoked")
    assert audit_log.entries(ctx)[-1].actor == "unauthenticated ops"
