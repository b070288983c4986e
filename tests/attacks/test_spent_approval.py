"""Attack: a promoter reuses the approval of a promotion that has ended. An approval is for one promotion."""

from __future__ import annotations

from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import GateError
from plinth_registry import approval, decisions, policy
from plinth_registry.candidate import Candidate
from plinth_registry.gates.facts import Evidence
from plinth_registry.releases import Action
from tests.attacks.test_mlflow_writer import ADA, BEN, register, release
from tests.registry.conftest import moved

PROXY = "anna@example.org"


def test_a_withdrawn_candidate_is_not_promoted_again_on_its_old_approval(ctx: Context, line: Any, mlflow: Any) -> None:
    release(ctx, line)
    again = (ctx, line.recipe, "1", "ops", "again")
    assert decisions.promote(*again).action == "champion"  # it is champion: nothing moves
    ended = decisions.rollback(ctx, line.recipe, ADA, "worse", withdraw=True).number
    with pytest.raises(GateError) as caught:
        decisions.promote(*again)
    assert f"{ADA} approved a promotion that ended with release record {ended}" in str(caught.value.found)
    decisions.approve(ctx, line.recipe, "1", ADA, "good")  # the same words are another decision now
    assert decisions.promote(*again).number == ended + 2


@pytest.mark.exhaustive
def test_a_canary_that_was_given_back_is_approved_anew(ctx: Context, line: Any, mlflow: Any) -> None:
    register(ctx, line)
    decisions.approve(ctx, line.recipe, "1", ADA, "good")
    decisions.promote(ctx, line.recipe, "1", "ops", "trial", "canary")
    decisions.return_canary(ctx, line.recipe, ADA, "worse")
    with pytest.raises(GateError, match="0 of 1 approvals"):
        decisions.promote(ctx, line.recipe, "1", "ops", "again", "canary")


def move(ctx: Context, found: Candidate, action: Action, version: str | None, previous: str | None = None) -> int:
    name = found.model.removesuffix("-candidate")
    return moved(ctx, action, version, found.subjects, previous, model=name).number


@pytest.mark.parametrize("how", ["statement", "tag"])
def test_both_ways_to_approve_are_of_one_promotion(ctx: Context, unregistered: Candidate, how: str) -> None:
    found, governs = unregistered, policy.governing(ctx, unregistered.model.removesuffix("-candidate"))

    def decide(person: str) -> None:
        if how == "statement":
            approval.sign(ctx, found, person, "good", policy=governs)
        else:
            for tag, value in (("approval", "approved"), ("approval.reason", "good")):
                approval.write_login(ctx, found, PROXY, person, tag, value, governs)

    def counted() -> list[str]:
        return [one.by for one in approval.collect(ctx, found, {}, governs)[0]]

    decide(ADA)
    assert counted() == [ADA]
    move(ctx, found, "champion", "1")
    assert counted() == [ADA]
    ended = move(ctx, found, "withdrawn", None, "1")
    assert counted() == []
    decide(BEN)
    assert counted() == [BEN]
    given = Evidence(approvals=approval.collect(ctx, found, {}, governs)[0])
    assert given.approvals is not None
    assert given.approvals[0].after == ended
