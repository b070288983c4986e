"""A waiver lets one candidate pass one gate until a date, under one policy; it never lifts what proves a candidate."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import PROMOTER
from plinth.trust.root import Trust
from plinth_registry import judgement, policy
from plinth_registry.gates import blocking, evaluate
from plinth_registry.gates.settings import always
from tests.registry.gate_evidence import policy as strict
from tests.registry.gate_evidence import proof

CANDIDATE, OTHER = "a" * 64, "a" * 12 + "b" * 52
WHY = "the restarts were a planned move"
LATER = "2999-01-01T00:00:00+00:00"


@pytest.fixture
def governing(ctx: Context) -> policy.SignedPolicy:
    return policy.sign(ctx, strict())


def test_a_waiver_opens_its_gate_for_its_candidate_until_its_date(ctx: Context, governing: policy.SignedPolicy) -> None:
    made = judgement.sign_waiver(ctx, governing, "stability", CANDIDATE, WHY, LATER)
    found = judgement.waivers_of(ctx, governing, CANDIDATE)
    assert (found.valid, found.faults) == ({"stability": made}, ())
    assert found.said == {"stability": f"waived by {made.by} until {LATER}: {WHY}"}
    assert blocking(evaluate(governing.policy, proof(stability=None), found.said)) == ()
    other = judgement.waivers_of(ctx, governing, OTHER)  # begins alike, so that its file is looked at
    assert (dict(other.valid), other.faults) == (
        {},
        (f"waiver of stability by {made.by}: belongs to another candidate",),
    )


def test_after_its_date_a_waiver_is_none_and_is_shown(ctx: Context, governing: policy.SignedPolicy) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    made = judgement.sign_waiver(ctx, governing, "stability", CANDIDATE, WHY, soon.isoformat())
    before, at = (judgement.waivers_of(ctx, governing, CANDIDATE, when) for when in (soon - timedelta(seconds=1), soon))
    assert list(before.valid) == ["stability"]
    assert (dict(at.valid), at.faults) == ({}, (f"waiver of stability by {made.by}: expired {soon.isoformat()}",))


def test_under_another_policy_a_waiver_is_none(ctx: Context, governing: policy.SignedPolicy) -> None:
    judgement.sign_waiver(ctx, governing, "stability", CANDIDATE, WHY, LATER)
    second = policy.sign(ctx, strict(version=2, stability={"max_events": 3}))
    found = judgement.waivers_of(ctx, second, CANDIDATE)
    assert (dict(found.valid), len(found.faults)) == ({}, 1)
    assert "another policy" in found.faults[0]


@pytest.mark.parametrize("gate", [*always(), "colour"])
def test_what_proves_a_candidate_is_not_waived(ctx: Context, governing: policy.SignedPolicy, gate: str) -> None:
    with pytest.raises(GateError, match="cannot be waived"):
        judgement.sign_waiver(ctx, governing, gate, CANDIDATE, WHY, LATER)


@pytest.mark.parametrize(
    ("reason", "expires"),
    [("short", LATER), (WHY, "2001-01-01T00:00:00+00:00"), (WHY, "2999-01-01T00:00:00"), (WHY, "never")],
)
def test_a_waiver_needs_a_reason_and_a_date_to_come(
    ctx: Context, governing: policy.SignedPolicy, reason: str, expires: str
) -> None:
    with pytest.raises(GateError):
        judgement.sign_waiver(ctx, governing, "stability", CANDIDATE, reason, expires)
    assert judgement.waiver_paths(ctx, "demo", CANDIDATE) == ()


def test_a_waiver_by_another_role_or_changed_counts_for_nothing_and_is_shown(
    ctx: Context, governing: policy.SignedPolicy
) -> None:
    made = judgement.sign_waiver(ctx, governing, "stability", CANDIDATE, WHY, LATER)
    (path,) = judgement.waiver_paths(ctx, "demo", CANDIDATE)
    kept = path.read_bytes()
    content = dsse.statement(judgement.WAIVER_PREDICATE, {"candidate": CANDIDATE}, made.model_dump(mode="json"))
    dsse.write(path, content, Trust.of(ctx.workspace).signer(PROMOTER))
    assert "is invalid" in judgement.waivers_of(ctx, governing, CANDIDATE).faults[0]
    envelope = json.loads(kept)
    envelope["payload"] = envelope["payload"][:-8] + "AAAA" + envelope["payload"][-4:]
    path.write_text(json.dumps(envelope))
    found = judgement.waivers_of(ctx, governing, CANDIDATE)
    assert (dict(found.valid), len(found.faults)) == ({}, 1)
    path.write_bytes(kept)
    assert list(judgement.waivers_of(ctx, governing, CANDIDATE).valid) == ["stability"]


def test_a_waiver_of_a_gate_that_none_lifts_is_none_however_it_was_signed(
    ctx: Context, governing: policy.SignedPolicy
) -> None:
    made = judgement.sign_waiver(ctx, governing, "stability", CANDIDATE, WHY, LATER)
    forged = made.model_copy(update={"gate": "taint"})
    path = judgement.waiver_paths(ctx, "demo", CANDIDATE)[0].with_name(f"{CANDIDATE[:12]}.taint.json")
    content = dsse.statement(judgement.WAIVER_PREDICATE, {"candidate": CANDIDATE}, forged.model_dump(mode="json"))
    dsse.write(path, content, Trust.of(ctx.workspace).signer("policy"))
    found = judgement.waivers_of(ctx, governing, CANDIDATE)
    assert list(found.valid) == ["stability"]
    assert "this gate cannot be waived" in found.faults[0]


def test_without_the_key_nobody_waives(
    ctx: Context, governing: policy.SignedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLINTH_KEY_POLICY", "file:/nowhere/policy.key")
    with pytest.raises(SignatureError):
        judgement.sign_waiver(ctx, governing, "stability", CANDIDATE, WHY, LATER)
