"""Next steps of a candidate follow from its gates, with a command that can be typed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plinth.compute.context import Context
from plinth_jobs.cli import cli
from plinth_registry import incidents
from plinth_registry.decisions import CandidateStatus, _how_to_decide, next_step
from plinth_registry.gates import evaluate
from plinth_registry.gates.facts import Evidence
from plinth_registry.mlflow import settings as login
from tests.command_lines import resolve
from tests.registry.gate_evidence import person, policy, proof

RECIPE = cast(Any, SimpleNamespace(required_release=lambda: SimpleNamespace(name="demo")))


def step(ctx: Context, evidence: Evidence) -> str:
    """The next step of a candidate with this evidence; its commands are parsed."""
    gates = evaluate(policy(), evidence)
    said = next_step(ctx, RECIPE, CandidateStatus(model="demo-candidate", version="3", checkpoint="", gates=gates))
    for line in re.findall("`(plinth [^`]+)`", said):
        resolve(cli, line)
    return said


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cost": None, "stability": None}, "blocked by stability, cost: fix the cause and rerun, or"),
        ({"cost": None}, "`plinth gates waive 3 cost --until DATE --reason TEXT`"),
        ({"approvals": ()}, "blocked by approvals: approve the version with `plinth approve 3 --by PERSON"),
        ({"approvals": (), "taints": ("bad",)}, "taint cannot be waived"),
        ({"approvals": (person("ada"), person("ben", "rejected"))}, "approvals cannot be waived"),
        (
            {},
            "the approval sensor promotes the candidate to champion while `plinth up` runs; to promote now: `plinth "
            "release promote 3 --stage champion --by",
        ),
        ({"champion": "", "comparison": None}, "the approval sensor promotes the candidate to champion"),
    ],
)
def test_the_next_step_follows_from_what_blocks(ctx: Context, changed: dict[str, Any], says: str) -> None:
    assert says in step(ctx, proof(**changed))


def test_while_an_incident_is_open_nothing_is_promised(ctx: Context) -> None:
    incidents.declare(ctx, "loss diverges", "ben@example.org")
    assert step(ctx, proof()) == "promotions are frozen by incident 1: `plinth ops incident show`"


@pytest.mark.parametrize(
    ("tags", "known", "says"),
    [
        ({"approval": "approved"}, {"approval_faults": ("tag approval is set, but approval.by is missing",)},
         "is missing. To sign the decision, run `plinth approve 3 --by PERSON --reason TEXT`. MLflow authentication is "
         "disabled"),
        ({"approval.2": "rejected"}, {"approvals": (person("ada", "rejected", how="tag"),)}, "approve 3 --reject --by"),
        ({"approval": ""}, {"approval_faults": ("a statement does not verify",)}, ""),
        ({"approval": "approved"}, {"approvals": ()}, ""),
    ],
)  # fmt: skip
def test_approval_tags_that_do_not_count_are_answered_with_what_to_do(
    ctx: Context, tags: dict[str, str], known: dict[str, Any], says: str
) -> None:
    version = SimpleNamespace(version="3", tags=tags)
    said = _how_to_decide(ctx, version, policy().approvals, Evidence(**known))
    assert (says in said) if says else said == ""
    for command in re.findall("`(plinth [^`]+)`", said):
        resolve(cli, command)


@pytest.mark.parametrize(
    ("accepted", "says"), [(["statement"], "does not accept approvals by tags"), (["tag"], "set the tags again")]
)
def test_behind_a_login_the_answer_names_what_is_left(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, accepted: list[str], says: str
) -> None:
    monkeypatch.setattr(login, "load", lambda _: login.LoginSettings())
    version = SimpleNamespace(version="3", tags={"approval": "approved"})
    asked = policy(approvals={"accepted": accepted}).approvals
    assert says in _how_to_decide(ctx, version, asked, Evidence(approvals=(person("ada", how="tag"),)))
