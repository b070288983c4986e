"""Gates are pure: exact outcomes on hand-made evidence, and missing evidence never passes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.recipe.gate import BUILT_IN, GATES, Gate, GateVerdict
from plinth.recipe.release import Gates
from plinth.records import Frozen
from registry import gates
from registry.gates import Approval, CheckResult, Evidence, GateResult, SliceScore, evaluate, failed, open_gates
from tests.catalogues import Including

EVERY_GATE = Gates(max_bits_per_byte=2.4, max_stability_events=1)
NAMES = [
    *("signature", "lineage", "beats_gzip", "beats_trigram", "max_bits_per_byte", "contamination"),
    *("licence", "resume", "stability", "taint", "approvals"),
]


def person(by: str, decision: str = "approved") -> Approval:
    return Approval.model_validate({"by": by, "decision": decision, "reason": "looked at it", "how": "statement"})


def proof(**changes: Any) -> Evidence:
    """Evidence that opens every gate, with some of it changed."""
    holds = CheckResult(holds=True, detail="as it should be")
    good = {
        "signature": holds,
        "lineage": holds,
        "slices": {"web": SliceScore(bytes=10, model=2.0, gzip=3.0, trigram=2.5)},
        "expected_slices": ("web",),
        "contaminated_documents": 0,
        "licences": {"MIT": 3},
        "permitted_licences": ("MIT", "Apache-2.0"),
        "resume": holds,
        "stability": {"restart": 1},
        "taints": (),
        "requested_by": "grace",
        "approvals": (person("ada"),),
    }
    return Evidence.model_validate(good | changes)


def gate(name: str, policy: Gates, evidence: Evidence) -> GateResult:
    (found,) = [result for result in evaluate(policy, evidence) if result.name == name]
    return found


def closed(policy: Gates, evidence: Evidence) -> list[str]:
    return [result.name for result in failed(evaluate(policy, evidence))]


def test_good_evidence_opens_every_gate_in_a_fixed_order() -> None:
    results = evaluate(EVERY_GATE, proof())
    assert [result.name for result in results] == NAMES
    assert open_gates(results)


def test_no_evidence_at_all_fails_every_gate() -> None:
    assert closed(EVERY_GATE, Evidence()) == NAMES


def test_no_gates_is_not_a_pass() -> None:
    assert not open_gates(())


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("signature", "signature"),
        ("lineage", "lineage"),
        ("contaminated_documents", "contamination"),
        ("licences", "licence"),
        ("resume", "resume"),
        ("stability", "stability"),
        ("taints", "taint"),
        ("approvals", "approvals"),
    ],
)
def test_one_missing_piece_fails_its_own_gate_alone(field: str, name: str) -> None:
    evidence = proof(**{field: None})
    assert closed(EVERY_GATE, evidence) == [name]
    assert gate(name, EVERY_GATE, evidence).reason == "no evidence"


@pytest.mark.parametrize("slices", [None, {}])
def test_no_scores_fail_every_quality_gate(slices: object) -> None:
    assert closed(EVERY_GATE, proof(slices=slices)) == ["beats_gzip", "beats_trigram", "max_bits_per_byte"]


def test_one_bad_slice_is_named() -> None:
    slices = {
        "code": SliceScore(bytes=10, model=2.6, gzip=3.0, trigram=2.6),
        "web": SliceScore(bytes=10, model=2.0, gzip=3.0, trigram=2.5),
    }
    result = gate("beats_trigram", Gates(), proof(slices=slices))
    assert not result.passed
    assert result.reason == "not below the byte trigram on code"
    assert result.evidence["bits_per_byte"]["code"] == {"model": 2.6, "bound": 2.6}
    assert closed(Gates(), proof(slices=slices)) == ["beats_trigram"]


def test_a_bucket_without_a_slice_and_a_slice_without_bytes_are_no_proof() -> None:
    missing = gate("beats_gzip", Gates(), proof(expected_slices=("web", "code")))
    assert (missing.passed, missing.reason) == (False, "nothing measured on code")
    empty = proof(slices={"web": SliceScore(bytes=0, model=1.0, gzip=3.0, trigram=2.5)})
    assert gate("beats_gzip", Gates(), empty).reason == "nothing measured on web"


@given(model=st.floats(), bound=st.floats())
def test_beating_means_strictly_below_and_nan_never_is(model: float, bound: float) -> None:
    slices = {"web": SliceScore(bytes=1, model=model, gzip=bound, trigram=bound)}
    result = gate("beats_gzip", Gates(), proof(slices=slices))
    assert result.passed == (not math.isnan(model) and not math.isnan(bound) and model < bound)


@pytest.mark.parametrize(("found", "allowed", "passed"), [(0, 0, True), (1, 0, False), (2, 2, True), (-1, 0, False)])
def test_contamination_is_counted_against_the_bound(found: int, allowed: int, passed: bool) -> None:
    policy = Gates(max_contaminated_documents=allowed)
    assert gate("contamination", policy, proof(contaminated_documents=found)).passed == passed


def test_an_unpermitted_licence_is_named_with_its_documents() -> None:
    result = gate("licence", Gates(), proof(licences={"MIT": 3, "GPL-3.0-only": 2, "unknown": 0}))
    assert (result.passed, result.reason) == (False, "not permitted: GPL-3.0-only (2 documents)")


def test_stability_is_reported_and_bounded_only_where_asked() -> None:
    events = {"restart": 2, "spike": 1}
    assert gate("stability", Gates(), proof(stability=events)).reason == (
        "events of the run: 2 restart, 1 spike; reported only"
    )
    assert not gate("stability", Gates(max_stability_events=2), proof(stability=events)).passed
    assert gate("stability", Gates(max_stability_events=3), proof(stability=events)).passed


def test_a_resume_that_differs_fails_unless_it_is_not_asked_for() -> None:
    evidence = proof(resume=CheckResult(holds=False, detail="a resumed run differs"))
    assert closed(Gates(), evidence) == ["resume"]
    assert closed(Gates(require_resume_evidence=False), evidence) == []


def test_taint_closes_with_its_reason() -> None:
    result = gate("taint", Gates(), proof(taints=("web/curated is marked by ada: poisoned",)))
    assert (result.passed, result.reason) == (False, "web/curated is marked by ada: poisoned")


@pytest.mark.parametrize(
    ("policy", "people", "passed"),
    [
        ({"approvals": 0}, [], True),
        ({"approvals": 1}, [], False),
        ({"approvals": 1}, ["ada"], True),
        ({"approvals": 2}, ["ada", "ada"], False),
        ({"approvals": 2}, ["ada", "ben"], True),
        ({"approvals": 1, "approvers": ("ben",)}, ["ada"], False),
        ({"approvals": 1, "approvers": ("ben",)}, ["ada", "ben"], True),
        ({"approvals": 1, "two_person": True}, ["ada"], False),
        ({"approvals": 1, "two_person": True}, ["ada", "grace"], False),
        ({"approvals": 1, "two_person": True}, ["ada", "ben"], True),
    ],
)
def test_approvals_count_different_allowed_people(policy: dict[str, Any], people: list[str], passed: bool) -> None:
    evidence = proof(approvals=tuple(person(name) for name in people))
    assert gate("approvals", Gates(**policy), evidence).passed == passed


def test_one_rejection_outweighs_any_number_of_approvals() -> None:
    evidence = proof(approvals=(person("ada"), person("ben"), person("cleo", "rejected")))
    result = gate("approvals", Gates(), evidence)
    assert not result.passed
    assert "rejected by cleo: looked at it" in result.reason


def test_two_person_approval_needs_to_know_who_asked() -> None:
    evidence = proof(requested_by=None, approvals=(person("ada"), person("ben")))
    assert not gate("approvals", Gates(two_person=True), evidence).passed
    assert gate("approvals", Gates(approvals=2), evidence).passed


def test_what_is_not_asked_for_is_not_judged() -> None:
    names = [result.name for result in evaluate(Gates(beat_gzip=False, beat_trigram=False), proof())]
    assert "beats_gzip" not in names
    assert "beats_trigram" not in names
    assert "max_bits_per_byte" not in names


def test_licence_expressions_are_read_as_the_corpus_gate_reads_them() -> None:
    counts = {"MIT AND Apache-2.0": 2, "GPL-2.0-only OR MIT": 1, "Apache-2.0 WITH LLVM-exception": 1}
    assert gate("licence", Gates(), proof(licences=counts)).passed
    result = gate("licence", Gates(), proof(licences={**counts, "MIT AND GPL-2.0-only": 4}))
    assert not result.passed
    assert "MIT AND GPL-2.0-only (4 documents)" in result.reason


# ---- gates of installed packages ------------------------------------------------------------------


class AtMost(Frozen):
    """Parameters of the gate of these tests."""

    restarts: int = 1


def installed(monkeypatch: pytest.MonkeyPatch, judge: Any, needs: tuple[str, ...] = ("stability",)) -> None:
    made = Gate(name="calm", description="Few restarts.", needs=needs, judge=judge, params=AtMost)
    monkeypatch.setattr(gates, "GATES", Including(GATES, made))


def passing(**evidence: Any) -> GateVerdict:
    return GateVerdict(passed=True, reason="", evidence=evidence)


def few(params: AtMost, evidence: Evidence) -> GateVerdict:
    count = (evidence.stability or {}).get("restart", 0)
    return GateVerdict(passed=count <= params.restarts, reason=f"{count} restarts", evidence={"restarts": count})


CALM = Gates(extensions={"calm": {}})


def test_names_of_built_in_gates_are_kept_from_packages() -> None:
    assert set(BUILT_IN) == set(NAMES)


def test_a_gate_of_a_package_is_asked_with_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, few)
    assert gate("calm", CALM, proof()).passed
    assert [result.name for result in evaluate(CALM, proof())][-2:] == ["calm", "approvals"]
    strict = gate("calm", Gates(extensions={"calm": {"restarts": 0}}), proof())
    assert (strict.passed, strict.reason) == (False, "1 restarts")
    assert strict.evidence["restarts"] == 1
    assert strict.evidence["parameters"] == {"restarts": 0}


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_gate_of_a_package_without_its_evidence_fails_unasked(
    monkeypatch: pytest.MonkeyPatch, nothing: object
) -> None:
    installed(monkeypatch, lambda params, evidence: GateVerdict(passed=True, reason="asked"))
    found = gate("calm", CALM, proof(stability=nothing))
    assert (found.passed, found.reason) == (False, "no evidence: stability")
    installed(monkeypatch, lambda params, evidence: GateVerdict(passed=True, reason="asked"), needs=("colour",))
    assert gate("calm", CALM, proof()).reason == "no evidence: colour"


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (lambda params, evidence: 1 / 0, "the gate broke: ZeroDivisionError"),
        (lambda params, evidence: True, "the gate broke: AttributeError"),
        (lambda params, evidence: passing(x=math.nan), "the gate broke: ValueError"),
        (lambda params, evidence: passing(x={1}), "the gate broke: TypeError"),
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
    refused = gate("calm", Gates(extensions={"calm": {"restart": 0}}), proof())
    assert (refused.passed, refused.reason.startswith("gate calm has no parameter 'restart'")) == (False, True)
    assert closed(Gates(extensions={"calm": {"restarts": "few"}}), proof()) == ["calm"]


def test_evidence_that_a_gate_forges_does_not_hide_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, lambda params, evidence: passing(parameters="none"))
    assert gate("calm", CALM, proof()).evidence["parameters"] == {"restarts": 1}
