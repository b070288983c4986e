"""While an incident is open nothing is promoted; its log cannot be edited; its facts come from evidence."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, MissingError, RequestError, SignatureError
from plinth.trust.dsse import PROMOTER
from plinth_ops.reviews import postmortem
from plinth_ops.reviews import postmortem as incident_page
from plinth_registry import api, audit_log, decisions, incidents, releases
from plinth_registry.audit_log import INCIDENTS
from tests.attacks.conftest import mlflow, mlflow_database

__all__ = ["mlflow", "mlflow_database"]

ADA, BEN = "ada@example.org", "ben@example.org"


@pytest.fixture
def approved(ctx: Context, line: Any, mlflow: Any) -> str:
    """The version of a candidate that may be promoted."""
    given = (line.recipe, line.checkpoint, line.evaluation, line.run, line.facts())
    found = api.register_candidate(ctx, *given, materials=line.materials)[0]
    decisions.approve(ctx, line.recipe, found.version, ADA, "good")
    return found.version


def test_nothing_is_promoted_while_an_incident_is_open(ctx: Context, line: Any, approved: str) -> None:
    opened = incidents.declare(ctx, "loss diverges", BEN)
    with pytest.raises(GateError, match="frozen") as refused:
        decisions.promote(ctx, line.recipe, approved, "ops", "weekly")
    assert "loss diverges" in str(refused.value.found)
    assert releases.history(ctx) == ()
    assert (audit_log.entries(ctx)[-1].outcome, audit_log.entries(ctx)[-1].action) == ("refused", "promote")
    assert decisions.ready(ctx, line.recipe) == ()
    assert api.promote_if_approved(ctx, line.recipe) == ()
    incidents.close(ctx, opened.number, "a wrong alarm", BEN)
    assert [one.version for one in decisions.ready(ctx, line.recipe)] == [approved]
    assert decisions.promote(ctx, line.recipe, approved, "ops", "weekly").action == "champion"


def test_one_that_is_opened_while_the_gates_are_judged_stops_the_record(
    ctx: Context, line: Any, approved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plinth_registry import judgement

    judged = judgement.require_open

    def opened_meanwhile(found: Any) -> None:
        judged(found)
        incidents.declare(ctx, "bad shard", BEN)

    monkeypatch.setattr(judgement, "require_open", opened_meanwhile)
    with pytest.raises(GateError, match="frozen"):
        decisions.promote(ctx, line.recipe, approved, "ops", "weekly")
    assert releases.history(ctx) == ()


def test_the_way_back_is_not_frozen(ctx: Context, line: Any, approved: str) -> None:
    decisions.promote(ctx, line.recipe, approved, "ops", "weekly")
    incidents.declare(ctx, "complaints", BEN)
    assert decisions.rollback(ctx, line.recipe, BEN, "worse", withdraw=True).action == "withdrawn"


def test_an_edited_or_removed_record_stops_promotions_too(ctx: Context, line: Any, approved: str) -> None:
    incidents.declare(ctx, "bad shard", BEN)
    path = INCIDENTS.path(ctx, 1)
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(SignatureError):
        decisions.promote(ctx, line.recipe, approved, "eve", "nobody saw it")
    path.write_bytes(kept.replace(b'"payload": "', b'"payload": "e30', 1))
    with pytest.raises(SignatureError):
        decisions.promote(ctx, line.recipe, approved, "eve", "nobody saw it")
    path.write_bytes(kept)
    with pytest.raises(GateError, match="frozen"):
        decisions.promote(ctx, line.recipe, approved, "ops", "weekly")


def test_the_promoter_does_not_lift_the_freeze_alone(ctx: Context) -> None:
    """A record that closes, signed with the promoter's key: the log does not hold, and so stays frozen."""
    incidents.declare(ctx, "bad shard", BEN)
    body = {"action": "close", "incident": 1, "text": "all is well", "by": "eve"}
    INCIDENTS.append(ctx, body, {"incident": "0" * 64}, PROMOTER)
    with pytest.raises(SignatureError, match="may not close"):
        incidents.require_none(ctx)


def test_each_is_found_by_number_or_as_the_newest_that_is_open(ctx: Context) -> None:
    with pytest.raises(MissingError):
        incidents.find(ctx, None)
    first, second = incidents.declare(ctx, "one", BEN), incidents.declare(ctx, "two", BEN)
    incidents.close(ctx, second.number, "it was nothing", BEN)
    assert incidents.find(ctx, None).title == "one"
    incidents.note(ctx, first.number, "seen at node 3", ADA)
    assert [one.action for one in incidents.find(ctx, first.number).records] == ["open", "note"]
    with pytest.raises(MissingError, match="was closed at"):
        incidents.close(ctx, second.number, "again", BEN)
    with pytest.raises(RequestError):
        incidents.declare(ctx, "  ", BEN)
    assert [one.number for one in incidents.open_ones(ctx)] == [first.number]


def test_facts_are_those_of_the_records(ctx: Context, line: Any, approved: str) -> None:
    hostile = "a|b <script>alert(1)</script>"
    (ctx.workspace.root / "alerts.jsonl").write_text(
        json.dumps({"time": time.time() - 60, "run": "", "job": "mirror", "message": hostile}) + "\nno json\n"
        + json.dumps({"time": time.time() - 90000, "run": "", "job": "old", "message": "of before"}) + "\n"
    )  # fmt: skip
    opened = incidents.declare(ctx, "bad shard", BEN, runs=["gone-run"], targets=[line.curated.digest])
    with pytest.raises(GateError):
        decisions.promote(ctx, line.recipe, approved, "ops", "weekly")
    facts = postmortem.collect(ctx, opened, time.time())
    tables = {one.title: one.rows for one in facts.tables}
    course = [row[1:] for row in tables["Timeline"]]
    assert ("alert", "mirror", hostile) in course
    assert ("incident", BEN, "open: bad shard") in course
    assert not any("of before" in row[-1] for row in course)
    assert [row[2].split(" ")[0] for row in tables["Blocked promotions"]] == [line.recipe.release.name + "-candidate"]
    assert any(f"evaluation {line.evaluation.digest[:16]}" in row[2] for row in tables["Derived artifacts"])
    assert [gap.split(":")[0] for gap in facts.gaps][:2] == ["run gone-run", "alerts.jsonl, line 2"]
    assert "<script>" not in incident_page.page(facts)
    assert "<script>" not in incident_page.markdown(facts)
    assert incident_page.page(facts) == incident_page.page(facts)


def test_the_frozen_state_is_named_by_the_head(ctx: Context, line: Any, approved: str, own_trust: Path) -> None:
    """A machine that has seen nothing misses a removed incident, once a head was signed."""
    decisions.promote(ctx, line.recipe, approved, "ops", "weekly")
    incidents.declare(ctx, "bad shard", BEN)
    releases.refresh(ctx)
    INCIDENTS.path(ctx, 1).unlink()
    (own_trust / "seen.json").unlink()
    with pytest.raises(SignatureError, match="missing or were replaced"):
        incidents.require_none(ctx)
