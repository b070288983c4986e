"""New code is accepted only if its replay of the last steps supports it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from plinth.training import attempts
from plinth.training.attempts import AttemptRecord, HostFacts
from plinth.training.config import RunConfig
from plinth.training.forensics import proof
from plinth.training.forensics.proof import COMPARED, GENERATORS, PARAMETERS
from plinth.training.upgrade.comparison import compared, judged
from plinth.training.upgrade.record import MAX_INCREASE, CodeComparison, UpgradeRequest
from plinth_registry import trained
from plinth_registry.gates.facts import CheckResult, Evidence
from plinth_registry.gates.origin import lineage
from plinth_registry.gates.settings import LineagePolicy


def replay(differences: list[float]) -> dict[str, Any]:
    """A replay whose losses differ from the original by these amounts, and its committed state with them."""
    same = not any(differences)
    state: dict[str, Any] = {
        PARAMETERS: {"original": "d" * 64, "replayed": "d" * 64 if same else "e" * 64},
        GENERATORS: {"original": "g", "replayed": "g"},
        "monitor": {"equal": True},
    }
    rows = []
    for step, difference in enumerate(differences, 1):
        row: dict[str, Any] = {name: {"original": 1, "replayed": 1} for name in COMPARED}
        rows.append(row | {"step": step, "loss": {"original": 3.0, "replayed": 3.0 + difference}})
    return {
        "from_step": 0,
        "to_step": len(differences),
        "skipped_steps": {"original": [], "replayed": []},
        "interventions": {"original": [], "replayed": []},
        "steps": rows,
        "commits": [{"step": len(differences), "parts": state}],
        "max_abs_difference": {"parameters": 0.0},
        "tolerance": None,
    }


def drawn(mean: float, spread: float, steps: int = 64) -> list[float]:
    draw = random.Random(7)
    return [draw.gauss(mean, spread) for _ in range(steps)]


def test_equal_numbers_and_states_are_bit_equal() -> None:
    assert judged(replay([0.0] * 4), MAX_INCREASE) == ("bit-equal", None)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        (drawn(0.0, 1e-5), "no worse"),
        (drawn(-0.02, 1e-3), "no worse"),  # better is not worse
        (drawn(0.0005, 1e-5), "no worse"),  # below the limit
        (drawn(0.02, 1e-3), "worse"),
        (drawn(0.0, 0.05), "undecided"),  # the interval is wider than the limit
        ([1e-6, -1e-6], "undecided"),  # two steps decide nothing
        ([1e-6] * 16, "undecided"),  # no spread, so no interval
        ([*drawn(0.0, 1e-5, 15), float("nan")], "worse"),
    ],
)
def test_other_numbers_are_accepted_by_the_interval_of_the_loss(differences: list[float], verdict: str) -> None:
    found, estimate = judged(replay(differences), MAX_INCREASE)
    assert found == verdict
    if verdict == "no worse":
        assert estimate is not None
        assert estimate.high <= MAX_INCREASE


def test_neighboring_steps_count_as_one_observation() -> None:
    drifting = [0.0005 * (step // 16 % 2) for step in range(128)]
    found, estimate = judged(replay(drifting), 0.00035)
    assert estimate is not None
    assert estimate.clusters == 16
    assert found == "worse"  # as 128 independent steps, the upper end would be 0.00029, and accepted


@pytest.mark.parametrize("name", ["lr", "batch", "vetoed"])
def test_other_decisions_are_refused_whatever_the_loss(name: str) -> None:
    changed = replay([0.0] * 4)
    changed["steps"][2][name] = {"original": 1, "replayed": 2}
    assert judged(changed, 1.0)[0] == "other decisions"


def test_other_random_numbers_are_refused() -> None:
    changed = replay(drawn(0.0, 1e-5))
    changed["commits"][0]["parts"][GENERATORS]["replayed"] = "h"
    assert judged(changed, 1.0)[0] == "other decisions"


def test_differences_within_the_noise_of_two_replays_are_measured() -> None:
    verdict, found = judged(noisy([1e-5, 0.0, -2e-5], 1e-5), MAX_INCREASE)
    assert (verdict, found and (found.low, found.high)) == ("measured", pytest.approx((-2e-5, 1e-5)))


def test_noisy_code_is_limited_like_any_other() -> None:
    """Two replays of it differ as much as it differs from the run's code, which would excuse any increase."""
    assert judged(noisy(drawn(0.5, 0.05), 0.2), MAX_INCREASE)[0] == "worse"
    assert judged(noisy([0.5, 0.4], 0.2), MAX_INCREASE)[0] == "undecided"
    assert comparison(verdict="measured").increase == 5e-4  # the limit of a run is for all accepted changes


def noisy(differences: list[float], noise: float) -> dict[str, Any]:
    """A replay whose numbers differ by `noise` from those of a second one."""
    found = replay(differences)
    for row in found["steps"]:
        for name in ("loss", "grad_norm", "loss_ema"):
            row[name]["repeated"] = row[name]["replayed"] + noise
    found["tolerance"] = {"state": {"original": 1e-6, "repeated": 1e-6}, "hardware": ["cpu"], "method": "two replays"}
    return found


def test_a_comparison_in_words() -> None:
    fields: dict[str, Any] = {"before": "a", "after": "b", "from_step": 4, "to_step": 36, "steps": 32}
    fields |= {"max_increase": 1e-3, "evidence_sha256": "c"}
    assert CodeComparison(**fields, verdict="bit-equal").in_words == "bit-equal over 32 steps"
    measured = {"difference": 0.0123, "low": 0.01, "high": 0.0146, "parameters": 3e-4}
    said = CodeComparison(**fields, verdict="worse", **measured)
    assert said.in_words == "worse over 32 steps: loss +0.012 (+0.01 to +0.015) nats, parameters up to 0.0003"
    assert not said.accepted


def host(code: str) -> HostFacts:
    return HostFacts(host="a", commit="c0ffee", dirty=False, code={"plinth": code}, python="3", system="s", cpus=1)


def attempt(number: int, code: str, upgrade: CodeComparison | None = None, *, audit: bool = False) -> AttemptRecord:
    fields: dict[str, Any] = {"run": "r", "key": "k", "config_sha256": "", "ranks": 1, "nodes": 1, "at": ""}
    return AttemptRecord(
        number=number, from_step=10 * (number - 1), hosts=(host(code),), audit=audit, upgrade=upgrade, **fields
    )


def test_the_gate_knows_the_code_of_every_machine_that_trained() -> None:
    began = (attempt(1, "old"), attempt(2, "old").model_copy(update={"nodes": 3}))
    evidence = Evidence.model_construct(lineage=CheckResult(holds=True, detail="complete"), code=trained.code(began))
    found = lineage(LineagePolicy(max_code_increase=1e-3), evidence)
    assert (found.passed, found.reason) == (False, "attempt 2: the code of 2 machines is unknown")
    assert lineage(LineagePolicy(), evidence).passed


def comparison(**changes: Any) -> CodeComparison:
    fields: dict[str, Any] = {"before": host("old").trains_with, "after": host("new").trains_with, "from_step": 4}
    fields |= {"to_step": 20, "steps": 16, "verdict": "no worse", "difference": 1e-4, "low": 0.0, "high": 5e-4}
    return CodeComparison(**fields | {"max_increase": 1.0, "evidence_sha256": "c"} | changes)


@pytest.mark.parametrize(
    ("upgrade", "passed"),
    [
        (comparison(), True),
        (comparison(verdict="bit-equal", difference=None, low=None, high=None), True),
        (None, False),
        (comparison(difference=-0.3, low=-0.4, high=-0.2), True),
        (comparison(high=0.5), False),  # the user accepted more than the policy does
        (comparison(verdict="worse"), False),
        (comparison(after=host("another").trains_with), False),
        (comparison(before=host("another").trains_with), False),
        (comparison(to_step=16), False),  # the run went on after other steps
    ],
)
def test_the_gate_requires_a_comparison_of_this_change(upgrade: CodeComparison | None, passed: bool) -> None:
    began = attempt(1, "old"), attempt(2, "new", audit=True), attempt(3, "new", upgrade), attempt(4, "new")
    evidence = Evidence.model_construct(lineage=CheckResult(holds=True, detail="complete"), code=trained.code(began))
    for policy, expected in ((LineagePolicy(max_code_increase=1e-3), passed), (LineagePolicy(), True)):
        found = lineage(policy, evidence)
        assert found.passed is expected
    if not passed:
        assert (
            "attempt 3 has other code from step 21" in lineage(LineagePolicy(max_code_increase=1e-3), evidence).reason
        )


def began_with(*highs: float) -> tuple[AttemptRecord, ...]:
    """Attempts of a run whose code changed, each time with this upper end of the loss increase."""
    names = [f"code {number}" for number in range(len(highs) + 1)]
    made = [attempt(1, names[0])]
    for at, high in enumerate(highs, 1):
        ends = {"before": host(names[at - 1]).trains_with, "after": host(names[at]).trains_with}
        change = comparison(**ends, high=high, low=high - 1e-4, difference=high - 5e-5, to_step=10 * at)
        made.append(attempt(at + 1, names[at], change))
    return tuple(made)


@pytest.mark.parametrize(
    ("highs", "passed"),
    [((6e-4,), True), ((6e-4, 3e-4), True), ((6e-4, 6e-4), False), ((-1.0, 6e-4, 6e-4), False)],
)
def test_the_gate_limits_all_changes_together(highs: tuple[float, ...], passed: bool) -> None:
    code = trained.code(began_with(*highs))
    evidence = Evidence.model_construct(lineage=CheckResult(holds=True, detail="complete"), code=code)
    found = lineage(LineagePolicy(max_code_increase=1e-3), evidence)
    assert found.passed is passed
    assert passed or "increase the loss by up to 0.0012 nats (limit 0.001)" in found.reason


def test_earlier_changes_leave_less_for_the_next_one(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Each of two changes is below the limit, and both together are above it."""
    Workspace(tmp_path).ensure()
    config = make(workspace=tmp_path)
    old, newer = began_with(6e-4)
    for one in (old, newer):
        attempts.state(
            config.directory, b"{}", config.key, ranks=1, nodes=1, hosts=one.hosts, audit=False, upgrade=one.upgrade
        )
    proof.store(config, replay(drawn(0.0005, 1e-5)), of_resume=False)
    assert not config.directory.evidence.exists()
    for limit, verdict in ((1e-3, "worse"), (1.2e-3, "no worse")):
        found = compared(config, UpgradeRequest(from_step=1, max_increase=limit))
        assert (found.verdict, found.before) == (verdict, newer.hosts[0].trains_with)
        assert found.max_increase == pytest.approx(limit - 6e-4)
