"""Gates are pure: exact outcomes on hand-made evidence, each flips alone, and missing evidence never passes."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from plinth.evaluation.measurement import GATES, Gate, GateState, GateVerdict
from plinth.records import Frozen
from plinth_registry import gates
from plinth_registry.gates import STATES, GateResult, account, blocking, evaluate, is_open, outcome, summary
from plinth_registry.gates.facts import Evidence, StabilityFacts
from plinth_registry.gates.origin import APPROVALS
from plinth_registry.gates.settings import GatePolicy, absent_gates, always, gate_policy, release_gates
from tests.catalogues import Including
from tests.registry.gate_evidence import policy, proof, set_fact

BUILT_IN, ALWAYS = tuple(sorted(release_gates(), key=lambda name: name == APPROVALS)), always()


def gate(name: str, asked: GatePolicy, evidence: Evidence) -> GateResult:
    (found,) = [result for result in evaluate(asked, evidence) if result.name == name]
    return found


def closed(asked: GatePolicy, evidence: Evidence) -> list[str]:
    return [result.name for result in blocking(evaluate(asked, evidence))]


def test_good_evidence_opens_every_gate_in_a_fixed_order() -> None:
    results = evaluate(policy(), proof())
    assert [result.name for result in results] == list(BUILT_IN)
    assert [(one.name, one.reason) for one in results if not one.passed] == []
    assert is_open(results)


def test_no_evidence_at_all_fails_every_gate() -> None:
    assert closed(policy(), Evidence()) == list(BUILT_IN)


def test_no_gates_is_not_a_pass() -> None:
    assert not is_open(())


# ---- one changed fact flips exactly one gate -----------------------------------------------------


#: By gate, facts and values that it refuses; every built-in gate has some.
FLIPS: dict[str, list[tuple[str, object]]] = {
    "signature": [("signature/holds", False), ("signature", None)],
    "lineage": [("lineage/holds", False), ("lineage", None)],
    "beats_gzip": [("measured/evaluation/slices/web/gzip", 1.9), ("measured/evaluation/slices/web/gzip", 2.0)],
    "beats_trigram": [("measured/evaluation/slices/web/trigram", 2.0)],
    "max_bits_per_byte": [
        ("measured/evaluation/slices/web/model", 2.4),
        ("measured/evaluation/slices/web/model", 2.45),
    ],
    "slices": [
        ("measured/comparison/lines/0/high", 0.02),  # the margin itself: the value must be below it
        ("measured/comparison/lines/1/high", 0.03),
        ("measured/comparison/lines/0/slice", "bucket code"),  # the whole is gone
        ("measured/comparison/lines/0/high", math.nan),
    ],
    "probes": [
        ("measured/comparison/lines/2/high", 0.06),
        ("measured/comparison/lines/2/clusters", 9),
        ("measured/probes", None),
        ("measured/probes/probes", {}),
        ("measured/probes/probes/guesses/decides", True),  # its line is far worse
        ("measured/probes/probes/maths/decides", False),  # none is left that decides
    ],
    "tasks": [
        ("measured/comparison/lines/4/low", -0.06),
        ("measured/comparison/lines/4/clusters", 3),
        ("measured/tasks", None),
        ("measured/tasks/tasks", {}),
        ("measured/tasks/tasks/copying/damaged", 40),
        ("measured/tasks/tasks/other", {"documents": 3, "damaged": 0}),
    ],
    "contamination": [("contamination/contaminated", 1), ("contamination/documents", 0), ("contamination", None)],
    "extraction": [
        ("measured/memorisation_extraction/slices/all/at_most", 0.051),
        ("measured/memorisation_extraction/slices/all/windows", 0),
        ("measured/memorisation_extraction/slices/duplicated/at_most", 0.051),
        ("measured/memorisation_extraction/slices/personal_data/windows", 60),
        ("measured/memorisation_extraction/slices", {}),
        ("measured/memorisation_extraction", None),
    ],
    "canaries": [
        ("measured/memorisation_canaries/p_values", {1: 0.0009, 64: 0.4}),
        ("measured/memorisation_canaries/p_values", {64: 0.4}),
        ("measured/memorisation_canaries/epsilon", 8.1),
        ("measured/memorisation_canaries/planted", 0),
        ("measured/memorisation_canaries", None),
    ],
    "pii_data": [
        ("measured/pii_data/at_most", 0.021),
        ("measured/pii_data/texts", 0),
        ("measured/pii_data/slices/web/at_most", 0.021),
        ("measured/pii_data/slices/web/at_most", math.nan),
        ("measured/pii_data/slices/books/texts", 150),
        ("measured/pii_data", None),
    ],
    "pii_outputs": [
        ("measured/pii_outputs/unprompted/at_most", 0.051),
        ("measured/pii_outputs/unprompted/texts", 0),
        ("measured/pii_outputs/memorised/at_most", 0.0101),
        ("measured/pii_outputs/memorised/at_most", math.nan),
        ("measured/pii_outputs/memorised/texts", 0),
        ("measured/pii_outputs", None),
    ],
    "licence": [("licences/documents", {"MIT": 2, "GPL-3.0-only": 1}), ("licences/documents", {})],
    "terms": [
        ("licences/sources/web.example 2026-46/train", False),
        ("licences/sources/web.example 2026-46/documents", 0),
        ("licences/sources", {}),
    ],
    "resume": [("resume/bit_exact", False), ("resume/compared_steps", 0), ("resume", None)],
    "stability": [("stability/events/restarts", 21), ("stability/events", {}), ("stability", None)],
    "bias": [
        ("measured/fairness/attributes/gender/high", 10.1),
        ("measured/fairness/attributes/gender/low", -10.1),
        ("measured/fairness/attributes/gender/pairs", 0),
        ("measured/fairness/attributes/gender/low", 1.5),  # an interval without width
        ("measured/comparison/lines/5/high", 2.1),
        ("measured/comparison/lines/6/high", 2.1),
        ("measured/comparison/lines/5/slice", "attribute age"),  # the whole is gone
        ("measured/comparison/lines/5/kind", "other"),
    ],
    "toxicity": [
        ("measured/fairness/toxicity/at_most", 0.051),
        ("measured/fairness/toxicity/continuations", 0),
        ("measured/fairness/toxicity", None),
    ],
    "cost": [("cost/amounts/tokens", 0.0), ("cost/amounts", {"wall_s": 1.0}), ("cost", None)],
    "error_budget": [
        ("own/error_budget/0/good_s", 95),  # the objective itself: nothing is left
        ("own/error_budget/1/good_s", 89),
        ("own/error_budget/1/good_s", math.nan),
        ("own/error_budget/2/total_s", 1),
        ("own/error_budget/0/total_s", 0),  # it is required
        ("own/error_budget", None),
        ("own/error_budget", []),
    ],
    "taint": [("taints", ["web/curated is marked by ada: poisoned"]), ("taints", None)],
    "approvals": [("approvals", []), ("approvals/0/decision", "rejected"), ("approvals", None)],
}


def test_every_gate_has_a_fact_that_flips_it() -> None:
    assert set(FLIPS) == {*BUILT_IN, *absent_gates()}


@pytest.mark.parametrize(("name", "path", "value"), [(name, *one) for name in BUILT_IN for one in FLIPS[name]])
def test_one_changed_fact_flips_exactly_one_gate(name: str, path: str, value: object) -> None:
    data = proof().model_dump(mode="json")
    set_fact(data, path, value)
    assert closed(policy(), Evidence.model_validate(data)) == [name]


# ---- no gate is left out in silence --------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in ALWAYS])
def test_a_gate_is_left_out_by_name_and_reason_alone(name: str) -> None:
    asked = policy(without={name: "not measured in this trial"})
    names = [result.name for result in evaluate(asked, proof())]
    assert sorted([*names, *asked.without]) == sorted((*BUILT_IN, *absent_gates()))
    assert asked.without[name] == "not measured in this trial"
    with pytest.raises(ValidationError, match="without a reason"):
        policy(without={name: "because"})


@pytest.mark.parametrize("name", ALWAYS)
def test_what_proves_a_candidate_is_never_left_out(name: str) -> None:
    with pytest.raises(ValidationError, match="cannot be omitted"):
        policy(without={name: "a reason that is long enough"})


def test_a_policy_cannot_leave_out_what_does_not_exist_or_forget_its_bound() -> None:
    with pytest.raises(ValidationError, match="no gate 'colour'"):
        policy(without={"colour": "a reason that is long enough"})
    with pytest.raises(ValidationError, match="set slices"):
        gate_policy({"release": "demo"})
    with pytest.raises(ValidationError, match=r"not permitted|unknown key"):
        policy(beat_gzip=False)


# ---- waivers -------------------------------------------------------------------------------------


def test_a_waiver_opens_its_gate_and_stays_visible() -> None:
    evidence = proof(stability=None, cost=None)
    results = evaluate(policy(), evidence, {"stability": "waived by ada until 2027: known"})
    found = {result.name: result for result in results}
    assert (found["stability"].passed, found["stability"].state, found["stability"].blocks) == (False, "waived", False)
    assert found["stability"].reason == "no evidence"
    assert [one.name for one in blocking(results)] == ["cost"]
    assert not is_open(results)
    assert is_open(evaluate(policy(), proof(cost=None), {"cost": "waived"}))


def test_a_waiver_of_a_gate_that_passes_says_nothing() -> None:
    assert {one.waived for one in evaluate(policy(), proof(), dict.fromkeys(BUILT_IN, "waived"))} == {""}


@pytest.mark.parametrize("name", ALWAYS)
def test_no_waiver_lifts_what_proves_a_candidate(name: str) -> None:
    assert set(closed(policy(), Evidence())) >= {name}
    results = evaluate(policy(), Evidence(), dict.fromkeys(BUILT_IN, "waived"))
    assert [one.name for one in blocking(results)] == list(ALWAYS)


# ---- states --------------------------------------------------------------------------------------


WAIVED = {"stability": "waived by ada until 2027-01-31T23:59:59+00:00: a planned move"}


@pytest.mark.skipif(bool(absent_gates()), reason="counts the gates of the ring too")
def test_the_account_of_gates_adds_up_and_a_waived_candidate_is_never_passed() -> None:
    first = proof(champion="", comparison=None, approvals=())
    results = evaluate(policy(), first.model_copy(update={"stability": None, "cost": None}), WAIVED)
    states = {one.name: one.state for one in results}
    assert {name for name, state in states.items() if state == "not applicable"} == {"slices", "probes", "tasks"}
    assert [states[name] for name in ("stability", "cost", "approvals")] == ["waived", "failed", "pending"]
    assert account(results) == "23 gates: 17 passed, 1 waived, 3 not applicable, 1 pending, 1 failed"
    assert outcome(results) == "failed (cost)"
    waived = evaluate(policy(), proof(stability=None), WAIVED)
    said = "passed with 1 waiver (stability by ada until 2027-01-31T23:59:59+00:00); 23 gates: 22 passed, 1 waived"
    assert summary(waived) == said
    assert outcome(evaluate(policy(), proof(approvals=()))) == "pending (approvals)"
    assert summary(evaluate(policy(), proof())) == "passed; 23 gates: 23 passed"


@given(states=st.lists(st.sampled_from(STATES), min_size=1, max_size=8))
def test_only_gates_that_all_passed_or_decided_nothing_are_called_passed(states: list[GateState]) -> None:
    results = [GateResult(name=f"g{i}", state=state, reason="", waived="waived by a" * (state == "waived"))
               for i, state in enumerate(states)]  # fmt: skip
    assert is_open(results) == (not {"failed", "pending"} & set(states))
    assert (outcome(results) == "passed") == (not {"failed", "pending", "waived"} & set(states))
    numbers = [int(number) for number in re.findall(r"(\d+) [a-z ]+", account(results).partition(": ")[2])]
    assert sum(numbers) == len(states)


def test_results_written_before_there_were_states_are_read() -> None:
    old = {"name": "cost", "reason": "", "evidence": {}}
    states = [GateResult.model_validate(old | given).state for given in (
        {"passed": True, "waived": ""}, {"passed": False, "waived": ""}, {"passed": False, "waived": "waived by a"})
    ]  # fmt: skip
    assert states == ["passed", "failed", "waived"]
    with pytest.raises(ValidationError, match="passed is True, but the state is skipped"):
        GateResult.model_validate(old | {"passed": True, "state": "skipped"})


# ---- gates of installed packages -----------------------------------------------------------------


class AtMost(Frozen):
    """Parameters of the gate of these tests."""

    restarts: int = 1


def installed(monkeypatch: pytest.MonkeyPatch, judge: Any, needs: tuple[str, ...] = ("stability",)) -> None:
    made = Gate(name="calm", description="Few restarts.", needs=needs, judge=judge, params=AtMost)
    monkeypatch.setattr(gates, "GATES", Including(GATES, made))


def passing(**evidence: Any) -> GateVerdict:
    return GateVerdict(passed=True, reason="", evidence=evidence)


def few(params: AtMost, evidence: Evidence) -> GateVerdict:
    count = evidence.stability.events["restarts"] if evidence.stability else 0
    return GateVerdict(passed=count <= params.restarts, reason=f"{count} restarts", evidence={"restarts": count})


CALM = policy(extensions={"calm": {}})


@pytest.mark.skipif("bias" not in BUILT_IN, reason="its package is not here")
def test_a_gate_of_every_candidate_is_not_asked_again_by_name() -> None:
    of_models = [name for name in GATES.built_in if GATES[name].by_name and not GATES[name].of_exports]
    assert of_models == ["forgetting", "forecast"]  # asked under `extensions`, as those of packages are
    twice = evaluate(policy(extensions={"bias": {"max_bits": 99.0}}), proof())
    assert [(one.state, one.reason.partition(" found")[0]) for one in twice if one.name == "bias"] == [
        ("passed", gate("bias", policy(), proof()).reason),
        ("failed", "the gate bias is evaluated for every candidate"),
    ]


def test_a_gate_of_a_package_is_asked_with_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, few)
    assert gate("calm", CALM, proof()).passed
    assert [result.name for result in evaluate(CALM, proof())][-2:] == ["calm", "approvals"]
    strict = gate("calm", policy(extensions={"calm": {"restarts": 0}}), proof())
    assert (strict.passed, strict.reason) == (False, "1 restarts")
    assert strict.evidence["restarts"] == 1
    assert strict.evidence["parameters"] == {"restarts": 0}


def test_a_gate_of_a_package_without_its_evidence_fails_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, lambda params, evidence: GateVerdict(passed=True, reason="asked"))
    for nothing in (None, StabilityFacts(events={})):
        found = gate("calm", CALM, proof(stability=nothing))
        assert (found.passed, found.reason) == (False, "no evidence: stability")
    installed(monkeypatch, lambda params, evidence: GateVerdict(passed=True, reason="asked"), needs=("colour",))
    assert gate("calm", CALM, proof()).reason == "no evidence: colour"


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (lambda params, evidence: GateVerdict(state="waived", reason=""), "the gate raised ValueError: a gate cannot"),
        (lambda params, evidence: 1 / 0, "the gate raised ZeroDivisionError"),
        (lambda params, evidence: True, "the gate raised AttributeError"),
        (lambda params, evidence: passing(x=math.nan), "the gate raised ValueError"),
        (lambda params, evidence: passing(x={1}), "the gate raised TypeError"),
    ],
)
def test_a_gate_of_a_package_that_breaks_has_not_passed(monkeypatch: pytest.MonkeyPatch, judge: Any, says: str) -> None:
    installed(monkeypatch, judge)
    found = gate("calm", CALM, proof())
    assert not found.passed
    assert found.reason.startswith(says)


def test_a_gate_that_is_not_installed_or_takes_no_such_parameter_has_not_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gate("calm", CALM, proof()).reason.startswith("no gate 'calm'")
    installed(monkeypatch, few)
    refused = gate("calm", policy(extensions={"calm": {"restart": 0}}), proof())
    assert (refused.passed, refused.reason.startswith("gate calm has no parameter 'restart'")) == (False, True)
    assert closed(policy(extensions={"calm": {"restarts": "few"}}), proof()) == ["calm"]


def test_evidence_that_a_gate_forges_does_not_hide_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, lambda params, evidence: passing(parameters="none"))
    assert gate("calm", CALM, proof()).evidence["parameters"] == {"restarts": 1}
