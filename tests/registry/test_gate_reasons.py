"""Reasons of single gates: each names the finding and the limit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.training.corruption.sampling import ReplayRecord
from plinth.training.forensics.order_proof import OrderProof
from plinth_registry.gates import GateResult, evaluate, shown
from plinth_registry.gates.facts import (
    CorruptionFacts,
    EvaluationFacts,
    Evidence,
    GrantedUses,
    LicenceFacts,
    ResumeFacts,
    SliceScore,
    StabilityFacts,
    ToleranceFacts,
)
from plinth_registry.gates.settings import APPROVALS, GatePolicy, release_gates
from tests.registry.gate_evidence import LINES, MEASURED, THEIRS, line, person, policy, proof, set_fact

OFF = {"max_bits_per_byte": "no absolute bound in this test"}


def gate(name: str, evidence: Evidence, asked: GatePolicy | None = None) -> GateResult:
    if name not in release_gates():
        pytest.skip("its package is not here")
    (found,) = [result for result in evaluate(asked or policy(), evidence) if result.name == name]
    return found


def compared(*lines: Any, **changes: Any) -> Evidence:
    """Evidence with other lines of the comparison."""
    given = MEASURED["comparison"]
    return proof(comparison=given.model_copy(update={"lines": lines} | changes))


def scored(**slices: SliceScore) -> Evidence:
    return proof(evaluation=EvaluationFacts(slices=slices))


# ---- baselines and bounds ------------------------------------------------------------------------


def test_one_bad_slice_is_named() -> None:
    web, code = (SliceScore(bytes=10, model=m, gzip=3.0, trigram=t) for m, t in ((2.0, 2.5), (2.6, 2.6)))
    result = gate("beats_trigram", scored(web=web, code=code))
    said = "bits per byte not below the byte trigram: code 2.6, limit 2.6, n 10 bytes"
    assert (result.passed, result.reason) == (False, said)
    assert result.evidence["bits_per_byte"]["code"] == {"model": 2.6, "bound": 2.6}


def test_a_bucket_without_a_slice_and_a_slice_without_bytes_are_no_proof() -> None:
    missing = gate("beats_gzip", proof(expected_slices=("web", "code")))
    assert (missing.passed, missing.reason) == (False, "not measured: code")
    empty = scored(web=SliceScore(bytes=0, model=1.0, gzip=3.0, trigram=2.5))
    assert gate("beats_gzip", empty).reason == "not measured: web"


@given(model=st.floats(), bound=st.floats())
def test_beating_means_strictly_below_and_nan_never_is(model: float, bound: float) -> None:
    result = gate("beats_gzip", scored(web=SliceScore(bytes=1, model=model, gzip=bound, trigram=bound)))
    assert result.passed == (not math.isnan(model) and not math.isnan(bound) and model < bound)


# ---- no worse than the champion ------------------------------------------------------------------


@given(value=st.floats(-1, 1), half=st.floats(0.001, 1), fewer=st.booleans())
def test_the_upper_end_decides_and_the_value_does_not(value: float, half: float, fewer: bool) -> None:
    one = line("slices", "bits per byte", value, half, fewer_is_better=fewer)
    worst = value + half if fewer else half - value
    assert gate("slices", compared(one)).passed == (worst < 0.02)


def test_a_better_point_with_a_wide_interval_does_not_pass() -> None:
    result = gate("slices", compared(line("slices", "bits per byte", value=-0.1, half=0.2)))
    said = "1 of 1 difference from the champion above the limit: overall -0.1 (95% upper bound 0.1), limit 0.02, n 40"
    assert (result.passed, result.reason) == (False, said)


def test_a_candidate_that_is_worse_within_the_margin_is_never_called_no_worse() -> None:
    code = line("slices", "bits per byte", 0.57, half=0.04, slice="bucket code")
    asked = policy(slices={"max_bits_per_byte": 3, "margin": 3})
    result = gate("slices", compared(*LINES[:1], code), asked)
    said = "worst: code +0.57 (95% upper bound 0.61), limit 3.0, n 40"
    assert (result.passed, result.reason) == (True, f"2 differences from the champion within the limit; {said}")
    copied = line("tasks", "copying: accuracy", -0.1, half=0.02, fewer_is_better=False)
    worse = gate("tasks", compared(copied), policy(tasks={"margin": 0.1}))
    said = "copying: accuracy -0.1 (95% lower bound -0.12), limit -0.1, n 40"
    assert worse.reason == f"1 of 1 difference from the champion above the limit: {said}"


@given(value=st.floats(0, 1), limit=st.floats(0, 1))
def test_a_value_never_looks_equal_to_the_limit_that_it_misses(value: float, limit: float) -> None:
    assert (shown(value, limit) == shown(limit, value)) == (value == limit)


def test_small_slices_are_shown_and_not_judged_and_the_whole_always_is() -> None:
    small = line("slices", "bits per byte", 5.0, slice="licence ISC", clusters=9)
    result = gate("slices", compared(*LINES[:1], small))
    assert (result.passed, result.evidence["too_small"]) == (True, ["licence ISC"])
    assert result.reason.endswith("; 1 slice not judged (n below 10): licence ISC (n 9)")
    assert not gate("slices", compared(line("slices", "bits per byte", 5.0, clusters=3))).passed


def test_a_slice_probe_or_task_of_just_enough_is_judged() -> None:
    ten = line("slices", "bits per byte", 5.0, slice="licence ISC", clusters=10)
    assert not gate("slices", compared(*LINES[:1], ten)).passed
    assert gate("probes", compared(line("probes", "maths: bits per byte", clusters=10))).passed
    assert gate("tasks", compared(line("tasks", "copying: exact_match", clusters=10))).passed


def test_an_interval_without_width_says_nothing_unless_all_answers_were_the_same() -> None:
    assert not gate("slices", compared(line("slices", "bits per byte", -0.1, half=0.0))).passed
    assert gate("slices", compared(line("slices", "bits per byte", 0.0, half=0.0))).passed


def test_a_slice_may_have_a_margin_of_its_own() -> None:
    code = line("slices", "bits per byte", 0.05, slice="bucket code")
    assert not gate("slices", compared(*LINES[:1], code)).passed
    asked = policy(slices={"max_bits_per_byte": 3, "margins": {"bucket code": 0.1}})
    assert gate("slices", compared(*LINES[:1], code), asked).passed


@pytest.mark.parametrize("name", ["slices", "probes", "tasks", "bias"])
def test_a_first_release_is_a_named_case_of_the_policy(name: str) -> None:
    first = proof(champion="", comparison=None)
    said = "no change measured: this is the first release,"
    found = gate(name, first)
    assert found.state == ("passed" if name == "bias" else "not applicable")
    assert f"{said} allowed by the policy" in found.reason
    refused = gate(name, first, policy(first_release="refused"))
    assert (refused.passed, refused.reason) == (False, f"{said} refused by the policy")


@pytest.mark.parametrize("name", ["slices", "probes", "tasks", "bias"])
def test_a_comparison_with_another_model_than_the_champion_is_none(name: str) -> None:
    found = gate(name, compared(*LINES, champion="c" * 64))
    assert (found.passed, found.reason) == (False, f"compared with cccccccccccc, but the champion is {THEIRS[:12]}")
    assert not gate(name, proof(comparison=None)).passed
    assert not gate(name, proof(champion=None)).passed


def test_probes_that_are_noise_are_shown_and_decide_nothing() -> None:
    result = gate("probes", proof())
    assert result.evidence["compared"].keys() == {"maths: bits per byte"}
    assert result.evidence["snr"] == {"guesses": 0.5, "maths": 3.0}
    known = MEASURED["probes"]
    assert known is not None
    noise = known.model_copy(update={"probes": {"guesses": known.probes["guesses"]}})
    said = gate("probes", proof(probes=noise))
    reason = "none of 1 probes has a signal-to-noise ratio of at least 1: guesses (n 20)"
    assert (said.state, said.reason) == ("failed", reason)
    assert "; 1 probe skipped (signal-to-noise ratio below 1): guesses (n 20)" in result.reason
    lenient = gate("probes", proof(probes=noise), policy(probes={"none_decides": "passes"}))
    assert (lenient.state, lenient.blocks, lenient.reason) == ("skipped", False, reason)


# ---- risk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("found", "allowed", "passed"), [(0, 0, True), (1, 0, False), (2, 2, True), (-1, 0, False)])
def test_contamination_is_counted_against_the_bound(found: int, allowed: int, passed: bool) -> None:
    known = proof().contamination
    assert known is not None
    evidence = proof(contamination=known.model_copy(update={"contaminated": found}))
    assert gate("contamination", evidence, policy(contamination={"max_documents": allowed})).passed == passed


@pytest.mark.parametrize(
    ("name", "part", "bound"),
    [
        ("extraction", "measured/memorisation_extraction/slices/all", {"extraction": {"max_share": 0.1}}),
        ("pii_data", "measured/pii_data", {"pii": {"max_data_share": 0.1}}),
        ("pii_outputs", "measured/pii_outputs/memorised", {"pii": {"max_memorised_share": 0.1}}),
        ("pii_outputs", "measured/pii_outputs/unprompted", {"pii": {"max_output_share": 0.1}}),
        ("toxicity", "measured/fairness/toxicity", {"bias": {"max_toxic_share": 0.1}}),
    ],
)
@pytest.mark.parametrize(("limit", "passed"), [(0.1, True), (0.1001, False), (math.nan, False)])
def test_upper_limits_pass_up_to_the_bound(name: str, part: str, bound: Any, limit: float, passed: bool) -> None:
    if name not in release_gates():
        pytest.skip("its package is not here")
    data = proof().model_dump(mode="json")
    set_fact(data, f"{part}/at_most", limit)
    assert gate(name, Evidence.model_validate(data), policy(**bound)).passed == passed


def test_a_slice_below_the_minimum_is_skipped_by_name_with_its_bound() -> None:
    assert gate("pii_data", proof()).reason == (
        "personal data, worst: web ≤ 1.98% (95% upper bound), limit 2.0%, n 150, 0 found; "
        "not higher: overall; 1 bucket not judged (n below 150): books ≤ 3.0% (n 149)"
    )
    assert gate("extraction", proof()).reason == (
        "extraction rate, worst: duplicated ≤ 4.0% (95% upper bound), limit 5.0%, n 60; "
        "not higher: overall; 1 slice not judged (n below 60): personal_data ≤ 70.0% (n 3)"
    )
    assert gate("toxicity", proof()).reason == "toxic continuations ≤ 4.0% (95% upper bound), limit 5.0%, n 60"
    assert gate("pii_outputs", proof()).reason == (
        "memorized personal data ≤ 0.94% (95% upper bound), limit 1.0%, n 320, 0 found; "
        "unprompted personal data ≤ 3.0% (95% upper bound), limit 5.0%, n 200, 1 found"
    )


def test_an_error_budget_without_a_measurement_is_skipped() -> None:
    idle = policy(error_budget={"indicators": ["checkpoint age"], "required": []})
    found = gate("error_budget", proof(), idle)
    assert (found.state, found.reason) == ("skipped", "no data in the last 28 days: checkpoint age")
    assert gate("error_budget", proof()).reason.endswith(
        "; no data: checkpoint age; error budget exhausted, but not required by the policy: "
        "ingestion lag 0.00% of 100 bucket-seconds, target 90.00% (1000% of the error budget spent)"
    )


def test_canaries_are_judged_by_how_often_they_were_planted() -> None:
    asked = policy(canaries={"min_p": {1: 0.01, 64: 0.01}})
    result = gate("canaries", proof(), asked)
    assert result.reason == "exposure p-value of canaries with 64 repetitions: 1e-30 (minimum 0.01); n 30 canaries"
    assert gate("canaries", proof()).reason == (
        "exposure p-value of canaries with 1 repetition: 0.4 (minimum 0.001); lower bound on the differential-privacy "
        "epsilon: 2.0 (maximum 8.0); n 30 canaries"
    )
    assert gate("canaries", proof(), policy(canaries={"min_p": {4: 0.01}})).reason == (
        "no evidence: no canary was planted 4 times"
    )


def test_bias_is_bounded_whichever_group_is_favoured_and_drift_by_its_upper_end() -> None:
    if (known := MEASURED.get("fairness")) is None:
        pytest.skip("its package is not here")
    gender = known.attributes["gender"].model_copy(update={"pairs": 9, "low": -10.5, "high": -0.5})
    far = known.model_copy(update={"attributes": {"gender": gender}})
    said = "gender favors a group by up to 10.5 bits per sentence (95% upper bound), limit 10.0, n 9 pairs"
    assert gate("bias", proof(fairness=far)).reason == said
    moved = line("fairness", "bits between groups", value=1.5, half=0.6)
    assert gate("bias", compared(moved)).reason == "drift overall +1.5 (95% upper bound 2.1), limit 2.0, n 40"
    assert gate("bias", compared(line("fairness", "bits between groups", value=-9.0, half=0.6))).passed
    assert not gate("bias", compared(line("fairness", "bits between groups", value=-9.0, half=0.0))).passed


# ---- origin --------------------------------------------------------------------------------------


def rights(licences: dict[str, int], **changes: Any) -> Evidence:
    known = proof().licences
    assert known is not None
    return proof(licences=known.model_copy(update={"documents": licences} | changes))


def test_an_unpermitted_licence_is_named_with_its_documents() -> None:
    result = gate("licence", rights({"MIT": 3, "GPL-3.0-only": 2, "unknown": 0}))
    assert (result.passed, result.reason) == (
        False,
        "2 of 5 documents under licenses that are not permitted (limit 0): GPL-3.0-only (n 2)",
    )


def test_licence_expressions_are_read_as_the_corpus_gate_reads_them() -> None:
    counts = {"MIT AND Apache-2.0": 2, "GPL-2.0-only OR MIT": 1, "Apache-2.0 WITH LLVM-exception": 1}
    assert gate("licence", rights(counts)).passed
    assert "MIT AND GPL-2.0-only (n 4)" in gate("licence", rights({**counts, "MIT AND GPL-2.0-only": 4})).reason


def test_the_policy_narrows_what_the_recipe_permits_and_never_widens_it() -> None:
    narrow = policy(licences={"permitted": ["MIT"]})
    assert gate("licence", rights({"MIT": 1}), narrow).passed
    assert not gate("licence", rights({"Apache-2.0": 1}), narrow).passed
    assert not gate("licence", rights({"ISC": 1}), policy(licences={"permitted": ["ISC"]})).passed


def test_every_declared_term_of_every_source_that_entered_is_read() -> None:
    used = GrantedUses(documents=2, train=True, redistribute=False, commercial=True)
    unused = GrantedUses(documents=0, train=False, redistribute=False, commercial=False)
    evidence = proof(licences=LicenceFacts(documents={"MIT": 2}, sources={"a": used, "b": unused}))
    assert gate("terms", evidence).passed
    asked = policy(licences={"uses": ["train", "redistribute", "commercial"]})
    assert gate("terms", evidence, asked).reason == (
        "train, redistribute, commercial: granted by 0 of 1 source; a does not grant redistribute"
    )
    assert gate("terms", evidence, policy(licences={"uses": ["commercial"]})).passed
    granted = used.model_dump()
    for use in ("train", "redistribute", "commercial"):
        refused = LicenceFacts(documents={"MIT": 2}, sources={"a": GrantedUses(**(granted | {use: False}))})
        assert not gate("terms", proof(licences=refused), policy(licences={"uses": [use]})).passed


def test_a_replay_of_just_enough_steps_is_a_proof() -> None:
    assert gate("resume", proof(), policy(resume={"min_steps": 4})).passed
    short = gate("resume", proof(), policy(resume={"min_steps": 5}))
    assert (short.passed, short.reason) == (False, "no evidence: compared over 4 steps (minimum 5)")


def test_a_measured_tolerance_counts_where_the_policy_names_it() -> None:
    measured = ToleranceFacts(
        differences={"loss": 3e-6, "state": 4e-5},
        bounds={"loss": 8e-6, "state": 1e-4},
        hardware=("NVIDIA H200", "NVIDIA H200"),
        method="twice",
    )
    apart = {"bit_exact": False, "compared_steps": 4, "faults": ("step 9: loss differ",)}
    evidence = proof(resume=ResumeFacts(**apart, tolerance=measured))
    accepting = {"classes": ["bit-equal", "measured"]}
    refused = gate("resume", evidence)
    assert not refused.passed
    assert "differs from" in refused.reason
    assert "the policy accepts only bit-exact replays; step 9: loss differ" in refused.reason
    found = gate("resume", evidence, policy(resume=accepting))
    assert found.passed
    assert "loss 3e-06, limit 8e-06; state 4e-05, limit 0.0001; measured on 2 x NVIDIA H200" in found.reason
    assert found.evidence["tolerance"]["method"] == "twice"
    narrow = gate("resume", evidence, policy(resume={**accepting, "max_bound": 5e-5}))
    assert not narrow.passed
    assert "tolerance of state 0.0001, limit 5e-05" in narrow.reason
    wrong = measured.model_copy(update={"faults": ("state differs by 0.3",)})
    worse = gate("resume", proof(resume=ResumeFacts(**apart, tolerance=wrong)), policy(resume=accepting))
    assert (worse.passed, "state differs by 0.3" in worse.reason) == (False, True)
    assert not gate("resume", proof(resume=ResumeFacts(**apart)), policy(resume=accepting)).passed
    assert gate("resume", proof(), policy(resume=accepting)).passed


def test_corruption_is_bounded_by_replays_where_the_policy_asks_for_it() -> None:
    replays = ReplayRecord(steps=60_000, samples=400, other_hosts=True)
    words = "no mismatch in 400 steps replayed on another host: corruption of a step is rarer than 0.0075 at 95%"
    seen = {"bit_exact": True, "compared_steps": 4}
    evidence = proof(resume=ResumeFacts(**seen, corruption=CorruptionFacts(replays=replays, steps=60_000)))
    assert gate("resume", evidence).reason.endswith(f"(minimum 1); {words}")
    assert gate("resume", evidence, policy(resume={"max_corruption": 0.01})).passed
    narrow = gate("resume", evidence, policy(resume={"max_corruption": 0.001}))
    assert (narrow.passed, narrow.reason.endswith(f"{words}; limit 0.001")) == (False, True)
    without = gate("resume", proof(), policy(resume={"max_corruption": 0.01}))
    assert (without.passed, without.reason.endswith("no step was replayed; limit 0.01")) == (False, True)
    own = ResumeFacts(bit_exact=False, compared_steps=0, unproved="not proved by this trainer")
    accepting = {"classes": ["unproved"], "max_corruption": 0.01}
    assert not gate("resume", proof(resume=own), policy(resume=accepting)).passed


def test_a_run_that_nothing_replays_passes_only_where_the_policy_names_it() -> None:
    evidence = proof(resume=ResumeFacts(bit_exact=False, compared_steps=0, unproved="not proved by this trainer"))
    refused = gate("resume", evidence, policy(resume={"classes": ["bit-equal", "measured"]}))
    assert (refused.passed, refused.reason) == (
        False,
        "not proved by this trainer; order and data: not replayed, no evidence; the policy accepts only bit-equal, "
        "measured",
    )
    accepting = policy(resume={"classes": ["bit-equal", "unproved"]})
    accepted = gate("resume", evidence, accepting)
    assert accepted.passed
    assert accepted.reason.endswith("the policy accepts this")
    assert gate("resume", proof(), accepting).reason.startswith("a resumed run is bit-identical")
    differs = ResumeFacts(bit_exact=False, compared_steps=4, faults=("step 9: loss differ",))
    assert not gate("resume", proof(resume=differs), accepting).passed  # what was proved wrong is not unproved


def test_the_replay_of_an_order_passes_where_the_policy_names_it() -> None:
    order = OrderProof(steps=2, difference=6e-7, shuffled=0.015, chance=2.5e-5)
    unproved = {"bit_exact": False, "compared_steps": 0, "unproved": "not proved by this trainer"}
    asked = {"classes": ["bit-equal", "order"]}

    def judged(order: OrderProof, **more: object) -> GateResult:
        return gate("resume", proof(resume=ResumeFacts(**unproved, order=order)), policy(resume={**asked, **more}))

    found = judged(order)
    assert (found.passed, found.reason) == (
        True,
        "not proved by this trainer; order and data: 2 steps replayed, losses differ by at most 6e-07; those of a "
        "shuffled batch differ by 0.015 (chance that all are as near: 2.5e-05); the policy accepts this",
    )
    assert not judged(order, classes=["bit-equal"]).passed
    assert not judged(order, min_steps=3).passed
    assert not judged(order, max_chance=1e-5).passed
    assert not judged(OrderProof(fault="out of memory")).passed
    apart = judged(order.model_copy(update={"chance": 0.4}))
    assert not apart.passed
    assert apart.reason.endswith("only bit-equal, order; at least 1 step with a chance of at most 0.001")


def test_policies_signed_before_keep_their_digest() -> None:
    assert "classes" not in policy(resume={"min_steps": 1}).model_dump(mode="json")["resume"]


def test_stability_is_reported_and_bounded() -> None:
    events = StabilityFacts(events={"restart": 2, "spike": 1})
    found = gate("stability", proof(stability=events))
    assert found.reason == "3 events: 2 restarts, 1 spike (limit 20)"
    assert gate("stability", proof()).reason == "1 restart (limit 20)"
    assert gate("taint", proof()).reason == "no upstream artifact is marked as bad (tainted)"
    assert not gate("stability", proof(stability=events), policy(stability={"max_events": 2})).passed
    assert gate("stability", proof(stability=events), policy(stability={"max_events": 3})).passed


# ---- people --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "people", "passed"),
    [
        ({"people": 0}, [], True),
        ({"people": 1}, [], False),
        ({"people": 1}, ["ada"], True),
        ({"people": 2}, ["ada", "ada"], False),
        ({"people": 2}, ["ada", "ben"], True),
        ({"people": 1, "approvers": ("ben",)}, ["ada"], False),
        ({"people": 1, "approvers": ("ben",)}, ["ada", "ben"], True),
        ({"people": 1, "two_person": True}, ["ada"], False),
        ({"people": 1, "two_person": True}, ["ada", "grace"], False),
        ({"people": 1, "two_person": True}, ["ada", "ben"], True),
        ({"people": 3, "two_person": True}, ["ada", "ben"], False),
    ],
)
def test_approvals_count_different_allowed_people(asked: dict[str, Any], people: list[str], passed: bool) -> None:
    evidence = proof(approvals=tuple(person(name) for name in people))
    found = gate(APPROVALS, evidence, policy(approvals=asked))
    assert found.blocks != passed
    assert found.state in ("pending", "passed" if asked["people"] else "not applicable")


def test_two_people_need_two_keys() -> None:
    shared = proof(approvals=(person("ada", key="k"), person("ben", key="k")))
    result = gate(APPROVALS, shared, policy(approvals={"two_person": True}))
    assert (result.passed, result.reason) == (
        False,
        "2 of 2 approvals (ada, ben); 2 people used 1 of 2 required different keys or logins",
    )
    assert gate(APPROVALS, shared, policy(approvals={"people": 2})).passed


def test_two_person_approval_needs_to_know_who_asked() -> None:
    evidence = proof(requested_by=None, approvals=(person("ada"), person("ben")))
    assert not gate(APPROVALS, evidence, policy(approvals={"two_person": True})).passed
    assert gate(APPROVALS, evidence, policy(approvals={"people": 2})).passed


def test_one_rejection_outweighs_any_number_of_approvals() -> None:
    evidence = proof(approvals=(person("ada"), person("ben"), person("cleo", "rejected")))
    result = gate(APPROVALS, evidence)
    assert result.state == "failed"
    assert "rejected by cleo: looked at it" in result.reason


def test_what_the_policy_does_not_accept_neither_approves_nor_vetoes() -> None:
    tagged = proof(approvals=(person("ada", how="tag"),))
    takes_tags = {"accepted": ["statement", "tag"], "proxies": ["login"], "approvers": ["ada", "cleo"]}
    assert not gate(APPROVALS, tagged).passed
    assert not gate(APPROVALS, tagged, policy(approvals=takes_tags)).passed
    anonymous = proof(approvals=(person("ada"), person("an unnamed person", "rejected", how="tag")))
    found = gate(APPROVALS, anonymous)
    assert found.passed
    assert "rejection not counted: an unnamed person: looked at it (tag" in found.reason
    assert gate(APPROVALS, anonymous, policy(approvals=takes_tags)).passed


LOGGED_IN = {"accepted": ["statement", "tag"], "proxies": ["login"], "approvers": ["ada", "ben"]}


@pytest.mark.parametrize(
    ("by", "proxy", "changes", "counts"),
    [
        ("ada", "login", {}, True),
        ("ada", "", {}, False),
        ("ada", "", {"proxies": [""]}, False),
        ("ada", "another", {}, False),
        ("cleo", "login", {}, False),
        ("ada", "login", {"approvers": []}, False),
        ("ada", "login", {"proxies": []}, False),
        ("ada", "login", {"accepted": ["statement"]}, False),
    ],
)
def test_a_tag_counts_for_a_listed_person_through_a_named_server(
    by: str, proxy: str, changes: dict[str, Any], counts: bool
) -> None:
    asked = policy(approvals=LOGGED_IN | changes)
    assert gate(APPROVALS, proof(approvals=(person(by, how="tag", proxy=proxy),)), asked).passed is counts
    ben = person("ben") if "ben" in (LOGGED_IN | changes)["approvers"] else person("dora")
    rejected = proof(approvals=(ben, person(by, "rejected", how="tag", proxy=proxy)))
    assert gate(APPROVALS, rejected, asked).passed is not counts


def test_a_server_that_states_for_others_does_not_approve_itself() -> None:
    asked = policy(approvals={"proxies": ["login"]})
    assert not gate(APPROVALS, proof(approvals=(person("login"),)), asked).passed


@pytest.mark.parametrize("second", ["ben", "ada"])
def test_two_logins_are_two_people_only_when_they_are(second: str) -> None:
    asked = policy(approvals=LOGGED_IN | {"two_person": True})
    logins = tuple(person(by, how="tag", proxy="login") for by in ("ada", second))
    assert gate(APPROVALS, proof(approvals=logins, requested_by="cleo"), asked).passed is (second == "ben")
