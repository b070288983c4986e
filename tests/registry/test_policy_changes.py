"""Signing a policy shows what it makes weaker or stronger, and asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.storage.workspace import Workspace
from plinth_registry.gates.settings import FeedPolicy, GatePolicy, release_gates
from plinth_registry.policy import PolicyChange, changes, direction, settings
from tests.jobs.cli.conftest import plinth
from tests.registry.gate_evidence import policy

__all__ = ["plinth"]

REASON = "nobody measures it in this trial"


def keys(after: GatePolicy, before: GatePolicy | None = None) -> dict[str, str]:
    return {one.key: one.direction for one in changes(before or policy(), after)}


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"slices": {"max_bits_per_byte": 2.5}}, "slices.max_bits_per_byte"),
        ({"slices": {"max_bits_per_byte": 2.4, "margin": 3}}, "slices.margin"),
        ({"slices": {"max_bits_per_byte": 2.4, "margins": {"bucket code": 3}}}, "slices.margins.bucket code"),
        ({"slices": {"max_bits_per_byte": 2.4, "min_documents": 99}}, "slices.min_documents"),
        ({"probes": {"none_decides": "passes"}}, "probes.none_decides"),
        ({"canaries": {"min_p": {1: 0.0001}}}, "canaries.min_p.1"),
        ({"canaries": {"min_p": {4: 0.001}}}, "canaries.min_p.1"),
        ({"licences": {"uses": ["commercial"]}}, None),
        ({"approvals": {"people": 0}}, "approvals.people"),
        ({"approvals": {"accepted": ["statement", "tag"]}}, "approvals.accepted"),
        ({"error_budget": {"objectives": {"job_success": 0.3}}}, "error_budget.objectives.job_success"),
        ({"error_budget": {"objectives": {"checkpoint_age_s": 9e9}}}, "error_budget.objectives.checkpoint_age_s"),
        ({"without": {"stability": REASON}}, "gate stability"),
        ({"trial": {"margin": 0.5}}, "trial.margin"),
    ],
)
def test_what_lets_more_pass_is_weaker_and_its_reverse_stronger(changed: dict[str, Any], key: str | None) -> None:
    other = policy(**changed)
    if key is None:  # another list, neither above nor below
        assert set(keys(other).values()) == {"changed"}
        return
    assert keys(other)[key] == "weaker"
    assert keys(policy(), before=other)[key] == "stronger"


def test_a_list_of_approvers_restricts_and_a_longer_one_restricts_less() -> None:
    some, more = (policy(approvals={"approvers": names}) for names in (["ada"], ["ada", "ben"]))
    found = [keys(some), keys(more, before=some), keys(policy(), before=more)]
    assert [one["approvals.approvers"] for one in found] == ["stronger", "weaker", "weaker"]


def test_a_gate_of_a_package_that_goes_is_weaker() -> None:
    asked = policy(extensions={"forgetting": {"margin": 0.2}})
    assert (keys(policy(), before=asked), keys(asked)) == (
        {"extension forgetting": "weaker"}, {"extension forgetting": "stronger"}
    )  # fmt: skip


def test_every_bound_has_a_direction() -> None:
    """A new setting declares its direction, or is listed here as neutral."""
    given = policy(slices={"max_bits_per_byte": 2.4, "margins": {"bucket web": 0.1}},
                   trial={"feeds": {"latency": FeedPolicy(lines="a").model_dump()}})  # fmt: skip
    unknown = []
    for key, value in settings(given):
        others: list[Any] = [True] if value is False else [value * 2 + 1] if isinstance(value, int | float) else []
        others += [None] if value is None else []
        others += [(*value, "more")] if isinstance(value, tuple) else []
        unknown += [key for other in others if other != value and direction(key, value, other) == "changed"]
    assert unknown == ["trial.level", "trial.least", "trial.higher_is_better", "error_budget.objectives.window_days"]


def test_the_worst_comes_first_with_both_values() -> None:
    asked = policy(approvals={"people": 2}, slices={"max_bits_per_byte": 9}, without={"cost": REASON})
    assert changes(policy(), asked) == (
        PolicyChange("gate cost", "required", f"not required: {REASON}", "weaker"),
        PolicyChange("slices.max_bits_per_byte", "2.4", "9.0", "weaker"),
        PolicyChange("approvals.people", "1", "2", "stronger"),
    )
    assert changes(policy(), policy(version=2, description="other words")) == ()


def test_a_weaker_policy_is_shown_and_signed_only_on_confirmation(
    plinth: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
    without = {name: REASON for name in release_gates() if name == "toxicity"}
    for version, own in enumerate(({}, {"without": without, "slices": {"max_bits_per_byte": 2.4, "margin": 3}}), 1):
        text = yaml.safe_dump(policy(version=version, **own).model_dump(mode="json"))
        (tmp_path / f"{version}.yaml").write_text(text)
    Workspace(tmp_path / "workspace").ensure()
    assert plinth("keys", "init", "--demo").code == 0
    assert plinth("gates", "sign", "1.yaml").code == 0  # the first one replaces none
    refused = plinth("gates", "sign", "2.yaml")
    assert refused.code != 0
    assert "2 settings weaker, 0 other changes" in refused.err
    for words in ("gate toxicity", "slices.margin", "0.02", "3.0", "weaker"):
        assert words in refused.out
    assert "version 1 (" in plinth("gates", "show", "demo").out
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda asked: "Sign it?" not in asked)
    assert plinth("gates", "sign", "2.yaml").code != 0
    assert plinth("gates", "sign", "2.yaml", "--yes").code == 0
    assert "version 2 (" in plinth("gates", "show", "demo").out
