"""Decisions count when they are signed by whom they name, about this candidate; or set as complete tags."""

from __future__ import annotations

import base64
import json
import shutil
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import APPROVER
from plinth.trust.root import Trust
from plinth_registry import approval
from plinth_registry.candidate import Candidate
from plinth_registry.gates.facts import Approval

ADA = "ada@example.org"


def test_a_signed_approval_counts_once(ctx: Context, unregistered: Candidate) -> None:
    path = approval.sign(ctx, unregistered, ADA, "better on every slice")
    before = path.read_bytes()
    assert approval.sign(ctx, unregistered, f" {ADA} ", "better on every slice") == path
    assert path.read_bytes() == before
    key = Trust.of(ctx.workspace).signer(APPROVER, ADA).key_id
    expected = Approval(by=ADA, decision="approved", reason="better on every slice", how="statement", key=key)
    assert approval.collect(ctx, unregistered, {}) == ((expected,), ())


def test_a_later_decision_replaces_an_earlier_one(ctx: Context, unregistered: Candidate) -> None:
    approval.sign(ctx, unregistered, ADA, "looks fine")
    approval.sign(ctx, unregistered, ADA, "found a leak", "rejected")
    (found,), faults = approval.collect(ctx, unregistered, {})
    assert (found.decision, found.reason, faults) == ("rejected", "found a leak", ())


@pytest.mark.parametrize(("by", "reason"), [("", "why"), (ADA, ""), (ADA, "  ")])
def test_a_decision_needs_a_person_and_a_reason(ctx: Context, unregistered: Candidate, by: str, reason: str) -> None:
    with pytest.raises(SignatureError):
        approval.sign(ctx, unregistered, by, reason)


def test_a_statement_about_another_candidate_is_refused(ctx: Context, unregistered: Candidate) -> None:
    for field in ("key", "checkpoint", "evaluation"):
        other = unregistered.model_copy(update={field: "f" * 64})
        path = approval.sign(ctx, other, ADA, "meant for another")
        target = approval.statement_path(ctx, unregistered, ADA)
        target.parent.mkdir(exist_ok=True)
        if path != target:
            shutil.copy(path, target)
        with pytest.raises(SignatureError, match="about another candidate"):
            approval.verify_statement(ctx, target, unregistered)
        decisions, faults = approval.collect(ctx, unregistered, {})
        assert decisions == ()
        assert "about another candidate" in faults[0]


def test_a_changed_statement_is_refused(ctx: Context, unregistered: Candidate) -> None:
    path = approval.sign(ctx, unregistered, ADA, "no", "rejected")
    envelope = json.loads(path.read_bytes())
    raw = base64.b64decode(envelope["payload"]).replace(b"rejected", b"approved")
    envelope["payload"] = base64.b64encode(raw).decode()
    path.write_text(json.dumps(envelope))
    with pytest.raises(SignatureError, match="is invalid"):
        approval.verify_statement(ctx, path, unregistered)


def test_nobody_signs_for_somebody_else(ctx: Context, unregistered: Candidate) -> None:
    bobs = approval.sign(ctx, unregistered, "bob@example.org", "trust me")
    forged = approval.statement_path(ctx, unregistered, ADA)
    shutil.copy(bobs, forged)
    with pytest.raises(SignatureError, match="is invalid"):
        approval.verify_statement(ctx, forged, unregistered)


def test_a_stranger_without_an_enrolled_key_counts_for_nothing(ctx: Context, unregistered: Candidate) -> None:
    with pytest.raises(SignatureError, match="mallory has no key as approver"):
        approval.sign(ctx, unregistered, "mallory", "trust me")
    ada = approval.sign(ctx, unregistered, ADA, "good")
    theirs = Trust.of(ctx.workspace).signer(APPROVER, ADA)
    statement = dsse.unverified(dsse.envelope_of(ada), "it")
    statement["predicate"]["by"] = "mallory"
    dsse.write(ada.with_name("mallory.json"), statement, theirs)
    decisions, faults = approval.collect(ctx, unregistered, {})
    assert [each.by for each in decisions] == [ADA]
    assert faults == ("mallory has no key as approver",)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"payload": 3, "payloadType": "x", "signatures": []}'])
def test_garbage_is_a_fault_not_a_traceback(ctx: Context, unregistered: Candidate, content: bytes) -> None:
    path = approval.sign(ctx, unregistered, ADA, "good")
    path.write_bytes(content)
    decisions, faults = approval.collect(ctx, unregistered, {})
    assert decisions == ()
    assert len(faults) == 1


def test_an_approval_under_another_policy_does_not_count_and_a_rejection_does(
    ctx: Context, unregistered: Candidate
) -> None:
    approval.sign(ctx, unregistered, ADA, "good under the old one", policy="1" * 64)
    assert [one.by for one in approval.collect(ctx, unregistered, {}, "1" * 64)[0]] == [ADA]
    decisions, faults = approval.collect(ctx, unregistered, {}, "2" * 64)
    assert (decisions, faults) == ((), (f"{ADA} approved under another gate policy (111111111111)",))
    approval.sign(ctx, unregistered, ADA, "bad under any", "rejected", policy="1" * 64)
    assert [one.decision for one in approval.collect(ctx, unregistered, {}, "2" * 64)[0]] == ["rejected"]


def tags(**extra: str) -> dict[str, Any]:
    base = {"approval": "approved", "approval.by": ADA, "approval.reason": "good numbers"}
    return {key.replace("__", "."): value for key, value in (base | extra).items() if value != "absent"}


def test_tags_as_a_person_sets_them(ctx: Context, unregistered: Candidate) -> None:
    expected = Approval(by=ADA, decision="approved", reason="good numbers", how="tag")
    assert approval.collect(ctx, unregistered, tags()) == ((expected,), ())


def test_a_second_person_has_tags_of_their_own(ctx: Context, unregistered: Candidate) -> None:
    second = {"approval.2": "Approved ", "approval.2.by": "ben", "approval.2.reason": "agreed"}
    decisions, faults = approval.collect(ctx, unregistered, tags() | second)
    assert [decision.by for decision in decisions] == [ADA, "ben"]
    assert faults == ()


@pytest.mark.parametrize("absent", ["approval.by", "approval.reason"])
def test_an_incomplete_tag_does_not_count_and_says_what_is_missing(
    ctx: Context, unregistered: Candidate, absent: str
) -> None:
    given = {key: value for key, value in tags().items() if key != absent}
    decisions, faults = approval.collect(ctx, unregistered, given)
    assert decisions == ()
    assert faults == (f"tag approval is set, but {absent} is missing",)


def test_a_rejection_needs_no_name_to_stop(ctx: Context, unregistered: Candidate) -> None:
    (found,), _ = approval.collect(ctx, unregistered, {"approval": "REJECTED"})
    assert found.decision == "rejected"


def test_other_values_and_other_tags_decide_nothing(ctx: Context, unregistered: Candidate) -> None:
    decisions, faults = approval.collect(
        ctx, unregistered, {"approval": "yes please", "approval.x": "approved", "gate/approvals": "passed: all"}
    )
    assert decisions == ()
    assert faults == ("tag approval is 'yes please', expected approved or rejected",)
